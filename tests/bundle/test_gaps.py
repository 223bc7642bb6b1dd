"""What a collection lacks: what weighs most first, and once for all ranks that have it in common."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from bundle.test_job_logs import process
from torchtriage.bundle.gaps import gaps_of
from torchtriage.bundle.manifest import Item

if TYPE_CHECKING:
    from torchtriage.bundle.processes import JobProcess


def failed(kind: str, rank: int | None, error: str, reason: str | None, pid: int | None = None) -> Item:
    return Item(path="", kind=kind, rank=rank, pid=pid, ok=False, error=error, reason=reason, redacted=True)


def gaps(items: list[Item], ranks: list[JobProcess], world_size: int | None = None) -> list[str]:
    return gaps_of(items, ranks, ranks, world_size=world_size, interrupted=False, stopped_by=None)


def told(pid: int, rank: int | None, **variables: str) -> JobProcess:
    return dataclasses.replace(process(pid, rank=rank), environment=variables)


def test_missing_stacks_come_first_and_ranks_with_one_reason_are_one_gap() -> None:
    dumps = [failed("flight_recorder", rank, "no such file", "run it as root") for rank in range(12)]
    stacks = [failed("stack_dump", rank, f"error of {rank}", "no right to trace") for rank in range(12)]
    worker = failed("stack_dump", None, "error of 0", "no right to trace", pid=77)
    assert gaps([*dumps, *stacks, worker], [process(7, rank=0)], 12) == [
        "stack_dump: ranks 0-11 and pid 77: error of 0 (and other errors) - no right to trace",
        "1 of the job's 12 ranks run on this node; the others have to be collected there",
        "flight_recorder: ranks 0-11: no such file - run it as root",
    ]


def test_different_reasons_stay_apart_and_an_error_without_one_stands_for_itself() -> None:
    items = [
        failed("log", 0, "a", "b"),
        failed("log", 1, "a", "c"),
        failed("log", 2, "a", None),
        failed("ras", None, "a", None),
    ]
    assert gaps(items, []) == ["log: rank 0: a - b", "log: rank 1: a - c", "log: rank 2: a", "ras: a"]


def test_ranks_that_are_no_number_are_counted_and_nobody_is_sent_to_other_nodes() -> None:
    ranks = [told(7, 0, RANK="0"), *(told(pid, None, RANK=text) for pid, text in ((8, "-1"), (9, ""), (10, "x")))]
    assert gaps([], ranks, 4) == ["3 processes of this job have a RANK that is no number: pids 8, 9, 10"]
    assert gaps([], [told(7, 0, RANK="0"), told(8, None)]) == []


def test_a_rank_that_the_world_does_not_have_is_noted() -> None:
    ranks = [told(7, 0, RANK="0", WORLD_SIZE="2"), told(8, 2, RANK="2", WORLD_SIZE="2")]
    assert gaps([], ranks, 2) == ["rank 2: RANK must be less than WORLD_SIZE, which is 2 there (pid 8)"]
    assert gaps([], [told(8, 2)], 1) == []
