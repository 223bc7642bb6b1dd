"""Makes dumps as torch's writer makes them, from a short description of each rank's calls."""

from __future__ import annotations

from typing import Any

from torchtriage.flight.model import RankDump
from torchtriage.flight.read import summarise

LIBRARY = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
BASE_NS = 1_790_000_000_000_000_000


def call(op: str, line: int | None = 10, size: Any = 64, *, out: Any = None, dtype: str = "Float", done: bool = True,
         group: str = "0", function: str = "train", thread: str = "python3") -> dict[str, Any]:  # fmt: skip
    """One collective; ``size`` is a number of elements or a list of sizes."""
    sizes = size if isinstance(size, list) else [[size]]
    return {
        "op": op, "line": line, "in": sizes, "out": sizes if out is None else out, "dtype": dtype, "done": done,
        "group": group, "function": function, "thread": thread, "p2p": False,
    }  # fmt: skip


def p2p(op: str, here: int, there: int, *, done: bool = False, size: int = 64, group: str = "0") -> dict[str, Any]:
    arrow = "->" if op == "send" else "<-"
    return {**call(f"{op} {here}{arrow}{there}", 30, size, done=done, group=group), "p2p": True}


def dump(calls: list[dict[str, Any]], groups: dict[str, list[int]], *, first_seq: int = 1, start_ns: int = 0,
         lagging_status: bool = False) -> dict[str, Any]:  # fmt: skip
    """A schema 2.10 dump of one rank that made these calls."""
    seqs = dict.fromkeys(groups, first_seq - 1)
    p2p_seqs = dict.fromkeys(groups, 0)
    done = dict.fromkeys(groups, 0)
    names = list(groups)
    entries: list[dict[str, Any]] = []
    for index, c in enumerate(calls):
        group = c["group"]
        if c["p2p"]:
            p2p_seqs[group] += 1
        else:
            seqs[group] += 1
            if c["done"]:
                done[group] = seqs[group]
        frames = [] if c["line"] is None else [
            {"name": c["op"], "filename": LIBRARY, "line": 3000},
            {"name": c["function"], "filename": "/workspace/train.py", "line": c["line"]},
            {"name": "<module>", "filename": "/workspace/train.py", "line": 300},
        ]  # fmt: skip
        entries.append({
            "frames": frames, "record_id": index, "pg_id": names.index(group),
            "process_group": (group, f"group_{group}"), "thread_name": c["thread"], "thread_id": "1",
            "collective_seq_id": seqs[group], "p2p_seq_id": p2p_seqs[group], "op_id": index + 1,
            "profiling_name": f"nccl:{c['op']}", "time_created_ns": BASE_NS + start_ns + index * 1_000_000,
            "input_sizes": c["in"], "input_dtypes": [c["dtype"]], "output_sizes": c["out"],
            "output_dtypes": [c["dtype"]], "state": "completed" if c["done"] else "scheduled",
            "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": c["done"],
            "timeout_ms": 600000, "is_p2p": c["p2p"],
        })  # fmt: skip
    return {
        "version": "2.10",
        "comm_lib_version": "2.28.9",
        "pg_config": {g: {"name": g, "desc": f"group_{g}", "ranks": str(r)} for g, r in groups.items()},
        "pg_status": {
            str(k): {
                "last_enqueued_collective": seqs[g] + p2p_seqs[g],
                "last_started_collective": -1,
                "last_completed_collective": 0 if lagging_status else done[g],
            }
            for k, g in enumerate(names)
        },
        "entries": entries,
    }


def rank_dump(rank: int | None, view: Any, name: str | None = None) -> RankDump:
    summary = summarise(view)
    # No two processes make their calls in the same nanosecond.
    summary["first_ns"] = [ns + (rank or 0) for ns in summary["first_ns"]]
    return RankDump(name or f"nccl_trace_rank_{rank}", rank, None, summary)


def job(
    *calls_by_rank: list[dict[str, Any]], groups: dict[str, list[int]] | None = None, **options: Any
) -> list[RankDump]:
    """Dumps of ranks 0, 1, ... that made these calls; each rank lists the groups that it is in."""
    every = groups or {"0": list(range(len(calls_by_rank)))}
    return [
        rank_dump(rank, dump(calls, {g: r for g, r in every.items() if rank in r}, **options))
        for rank, calls in enumerate(calls_by_rank)
    ]


def loop(n: int, *body: dict[str, Any]) -> list[dict[str, Any]]:
    """The same calls n times over."""
    return [dict(c) for _ in range(n) for c in body]
