"""The inputs that torch's own analyser is tested with: the same pairs and jobs, and the answers that are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flight.flight_dumps import BASE_NS, rank_dump
from torchtriage.flight.analyze import analyze

CASES: dict[str, Any] = yaml.safe_load(
    (Path(__file__).resolve().parents[1] / "data" / "flight" / "analyser_cases.yaml").read_text(encoding="utf-8")
)
OPERATIONS = [
    "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "all_gather", "all_reduce", "_all_gather_base",
    "all_gather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base",
    "gather", "scatter", "all_to_all", "all_reduce_barrier", "allreduce_coalesced", "ALLGATHER_coalesced",
    "REDUCE_SCATTER_coalesced",
]  # fmt: skip


def _view(rank: int, calls: list[list[list[Any]]], *, own_groups: bool = False) -> dict[str, Any]:
    """A dump of schema 2.8 of one of two ranks; ``calls``: per sequence number its entries."""
    groups = {"0": [0, 1]}
    made = [("0", seq, entry) for seq, entries in enumerate(calls, 1) for entry in entries]
    if own_groups:  # as split_group makes them: one name, other ranks
        groups["sub_pg"] = [rank]
        made.append(("sub_pg", 1, calls[0][0]))
    entries = [
        {
            "frames": [{"name": "train", "filename": "/workspace/train.py", "line": 10}],
            "record_id": index,
            "pg_id": list(groups).index(name),
            "process_group": (name, "group"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "op_id": index + 1,
            "profiling_name": f"nccl:{op}",
            "time_created_ns": BASE_NS + index * 1000,
            "input_sizes": ins,
            "input_dtypes": [in_type] * len(ins),
            "output_sizes": outs,
            "output_dtypes": [out_type] * len(outs),
            "state": state,
            "retired": state == "completed",
            "timeout_ms": 600000,
            "is_p2p": False,
        }
        for index, (name, seq, (op, ins, outs, in_type, out_type, state)) in enumerate(made)
    ]
    config = {name: {"name": name, "desc": "group", "ranks": str(ranks)} for name, ranks in groups.items()}
    return {"version": "2.8", "pg_config": config, "entries": entries}


def _kinds(views: list[dict[str, Any]]) -> list[str]:
    return [d.kind for d in analyze([rank_dump(rank, view) for rank, view in enumerate(views)]).divergences]


@pytest.mark.parametrize("case", CASES["pairs"], ids=lambda case: case["name"])
@pytest.mark.parametrize("swapped", [False, True])
def test_two_calls_are_told_apart(case: dict[str, Any], swapped: bool) -> None:
    calls = case["calls"][::-1] if swapped else case["calls"]
    assert _kinds([_view(rank, [[call]]) for rank, call in enumerate(calls)]) == case["kinds"]


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_fits_itself(op: str) -> None:
    call = [op, [[4, 4]], [[4, 4]], "float", "float", "completed"]
    assert _kinds([_view(rank, [[call]]) for rank in range(2)]) == []


@pytest.mark.parametrize("case", CASES["jobs"], ids=lambda case: case["name"])
def test_the_calls_of_two_ranks_are_told_apart(case: dict[str, Any]) -> None:
    own = case.get("own_groups", False)
    found = analyze([rank_dump(r, _view(r, calls, own_groups=own)) for r, calls in enumerate(case["ranks"])])
    if case["kinds"]:
        assert found.divergences[0].kind in case["kinds"]
    else:
        assert [signal.name for signal in found.signals] == ["flight.in_step"]
