"""Generate flight-recorder dumps as torch's writer writes them, with one fault in them.

Schema 2.10, pickle protocol 2, eight frames per entry that are shared between entries; shapes of gathers and scatters
fit their group, so that a tool that checks them finds the fault and nothing else.
"""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "nccl_trace_rank_"
VARIANTS = (
    "healthy", "missing_last", "skipped_one", "wrong_size", "wrong_size_first", "wrong_type", "all_joined",
    "order_swap", "truncated_file", "json_file",
)  # fmt: skip
_FEW_ENTRIES = 100_000
_STEP_NS = 3_000_000
_BASE_NS = 1_790_000_000_000_000_000
_LIBRARY = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"


class Op(NamedTuple):
    """A collective: elements per rank, and whether input or output holds them once for each rank of the group."""

    name: str
    elements: int
    gathered_input: bool = False
    gathered_output: bool = False


class DumpSet(NamedTuple):
    """What to generate."""

    n_ranks: int
    n_entries: int
    layout: str
    """world; 3d: the world, tensor-parallel rows of 8, data-parallel columns; two: the world and two more of all."""
    variant: str


_OPS = (
    Op("all_reduce", 65536),
    Op("_all_gather_base", 4096, gathered_output=True),
    Op("_reduce_scatter_base", 8192, gathered_input=True),
    Op("all_reduce", 262144),
)
_Group = tuple[str, str, list[int]]


def write_dumps(folder: Path, wanted: DumpSet) -> tuple[list[int], int]:
    """Write one file per rank (at least four); return the ranks that a perfect analyser would name, and all bytes."""
    for rank in range(wanted.n_ranks):
        (folder / f"{PREFIX}{rank}").touch()
    # The file that its folder lists first is what a pairwise comparison takes as its reference.
    first = int(next(folder.iterdir()).name.removeprefix(PREFIX))
    odd = min(13, wanted.n_ranks - 3)
    if wanted.variant == "wrong_size_first":
        odd = first
    elif odd == first:
        odd -= 1
    if wanted.n_ranks * wanted.n_entries < _FEW_ENTRIES:
        for rank in range(wanted.n_ranks):
            _write(rank, folder, wanted, odd)
    else:
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for _ in pool.map(partial(_write, folder=folder, wanted=wanted, odd=odd), range(wanted.n_ranks)):
                pass
    spare_rank = next(rank for rank in reversed(range(wanted.n_ranks)) if rank != odd)
    spare = folder / f"{PREFIX}{spare_rank}"
    if wanted.variant == "truncated_file":
        content = spare.read_bytes()
        spare.write_bytes(content[: len(content) // 2])
    if wanted.variant == "json_file":
        spare.write_text(json.dumps(_as_json(_dump(spare_rank, wanted, odd))), encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.iterdir())
    return ([] if wanted.variant in ("healthy", "all_joined") else [odd]), size


def _write(rank: int, folder: Path, wanted: DumpSet, odd: int) -> None:
    (folder / f"{PREFIX}{rank}").write_bytes(pickle.dumps(_dump(rank, wanted, odd), protocol=2))


def _groups(n_ranks: int, layout: str) -> list[_Group]:
    everybody = list(range(n_ranks))
    world: list[_Group] = [("0", "default_pg", everybody)]
    if layout == "world":
        return world
    if layout == "two":
        return [*world, ("1", "GRADIENTS", everybody), ("2", "METRICS", everybody)]
    rows = [("TENSOR_PARALLEL", everybody[k : k + 8]) for k in range(0, n_ranks, 8)]
    rows += [("DATA_PARALLEL", everybody[k::8]) for k in range(min(8, n_ranks))]
    return world + [(str(number), desc, ranks) for number, (desc, ranks) in enumerate(rows, start=1)]


def _frames(op: int) -> list[dict[str, Any]]:
    """Innermost first: two of torch, one of the training loop, five above it."""
    return [
        {"name": _OPS[op].name, "filename": _LIBRARY, "line": 3000 + op},
        {"name": "wrapper", "filename": _LIBRARY.replace("distributed_c10d", "c10d_logger"), "line": 83},
        {"name": "train_step", "filename": "/workspace/train.py", "line": 50 + op},
        *({"name": f"level_{k}", "filename": "/workspace/train.py", "line": 100 + k} for k in range(5)),
    ]  # fmt: skip


def _plan(groups: list[_Group], wanted: DumpSet, *, odd: bool) -> list[tuple[_Group, int]]:
    """Group and op of each call of one rank."""
    plan = [(groups[i // len(_OPS) % len(groups)], i % len(_OPS)) for i in range(wanted.n_entries)]
    if wanted.variant == "order_swap":
        tail = [(groups[-2], 0), (groups[-1], 3)]
        plan[-2:] = reversed(tail) if odd else tail
    if odd and wanted.variant in ("missing_last", "truncated_file", "json_file"):
        del plan[-1]
    if odd and wanted.variant == "skipped_one":
        del plan[-2]
    return plan


def _n_unfinished(wanted: DumpSet) -> int:
    return {"healthy": 0, "skipped_one": 2, "order_swap": 2}.get(wanted.variant, 1)


def _dump(rank: int, wanted: DumpSet, odd_rank: int) -> dict[str, Any]:
    """One rank's dump; everything but the last calls is completed."""
    groups = [group for group in _groups(wanted.n_ranks, wanted.layout) if rank in group[2]]
    frames = [_frames(op) for op in range(len(_OPS))]
    odd = rank == odd_rank
    enqueued = dict.fromkeys((group[0] for group in groups), 0)
    completed = dict(enqueued)
    entries: list[dict[str, Any]] = []
    jitter = Random(rank)  # no two ranks make a call at the same moment, and no two steps take as long
    plan = _plan(groups, wanted, odd=odd)
    for position, (group, op) in enumerate(plan):
        done = position < wanted.n_entries - _n_unfinished(wanted)
        name, elements, gathered_input, gathered_output = _OPS[op]
        if odd and position == len(plan) - 1:
            elements += 128 * wanted.variant.startswith("wrong_size")
            name = "broadcast" if wanted.variant == "wrong_type" else name
        enqueued[group[0]] += 1
        completed[group[0]] += done
        seq = enqueued[group[0]]
        created = _BASE_NS + position * _STEP_NS + jitter.randrange(_STEP_NS)
        entries.append({
            "frames": frames[op], "record_id": position, "pg_id": groups.index(group),
            "process_group": (group[0], group[1]), "thread_name": "python3", "thread_id": "140241203544384",
            "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": f"nccl:{name}",
            "time_created_ns": created,
            "input_sizes": [[elements * (len(group[2]) if gathered_input else 1)]], "input_dtypes": ["Float"],
            "output_sizes": [[elements * (len(group[2]) if gathered_output else 1)]], "output_dtypes": ["Float"],
            "state": "completed" if done else "scheduled", "time_discovered_started_ns": None,
            "time_discovered_completed_ns": created + 500 if done else None,
            "retired": done, "timeout_ms": 600000, "is_p2p": False,
        })  # fmt: skip
    return {
        "version": "2.10",
        "comm_lib_version": "2.28.9",
        "pg_config": {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, desc, ranks in groups},
        "pg_status": {
            str(uid): {
                "last_enqueued_collective": enqueued[group[0]],
                "last_started_collective": -1,
                "last_completed_collective": completed[group[0]],
            }
            for uid, group in enumerate(groups)
        },
        "entries": entries,
    }


def _as_json(dump: dict[str, Any]) -> dict[str, Any]:
    """The JSON form of a dump: no frames, counters as text, 0 for times that are not known."""
    status = {uid: {k: str(v) for k, v in counters.items()} for uid, counters in dump["pg_status"].items()}
    entries = [{k: 0 if v is None else v for k, v in e.items() if k != "frames"} for e in dump["entries"]]
    return {**dump, "pg_status": status, "entries": entries}
