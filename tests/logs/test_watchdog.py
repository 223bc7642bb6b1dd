"""Collective time-outs in the words of many releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.read import PatternSet, scan, text_source

if TYPE_CHECKING:
    from torchtriage.report import Signal


def signals(text: str, name: str) -> list[Signal]:
    return [s for s in analyze(scan([text_source(text)], PatternSet([]))).signals if s.name == name]


NUMEL = "NumelIn=8, NumelOut=16, "


@pytest.mark.parametrize(
    ("line", "numel_in"),
    [
        ("[E ProcessGroupNCCL.cpp:821] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
         "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802345 milliseconds before timing out.", None),
        ("[rank3]:[E ProcessGroupNCCL.cpp:523] [Rank 3] Watchdog caught collective operation timeout: "
         "WorkNCCL(SeqNum=5, "
         f"OpType=ALLREDUCE, {NUMEL}Timeout(ms)=1800000) ran for 1802345 milliseconds before timing out.", 8),
        ("[rank3]:[E1130 14:27:18.123456789 ProcessGroupNCCL.cpp:607] [PG 0 Rank 3] Watchdog caught "
         f"collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, {NUMEL}"
         "Timeout(ms)=1800000) ran for 1802345 milliseconds", 8),
    ],
)  # fmt: skip
def test_time_outs_of_all_releases_are_read(line, numel_in):
    (found,) = signals(line, "log.watchdog_timeout")
    assert found.scope.ranks == [3]
    facts = {key: found.facts[key] for key in ("seq", "operation", "numel_in", "timeout_ms", "ran_ms")}
    expected = {"seq": 5, "operation": "ALLREDUCE", "numel_in": numel_in, "timeout_ms": 1800000, "ran_ms": 1802345}
    assert facts == expected


def test_the_nccl2_backend_is_read():
    text = "Aborting process on rank 3 due to timeout - timeout watchdog detected operation timeout"
    assert [s.scope.ranks for s in signals(text, "log.watchdog_timeout")] == [[3]]


def work(rank: int, operation: str, numel: int, seq: int = 5) -> str:
    return (
        f"[rank{rank}]:[E1130 14:27:18.1 ProcessGroupNCCL.cpp:607] [PG ID 1 PG GUID 1(tp) Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={operation}, NumelIn={numel}, NumelOut={numel}, "
        "Timeout(ms)=1000) ran for 1001 milliseconds before timing out."
    )


def test_different_sizes_of_an_all_reduce_contradict_each_other():
    (found,) = signals(work(0, "ALLREDUCE", 8) + "\n" + work(1, "ALLREDUCE", 9), "log.collectives_differ")
    assert (found.scope.ranks, found.scope.groups, found.facts["seq"]) == ([0, 1], ["tp"], 5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (work(0, "ALLREDUCE", 8), work(1, "ALLREDUCE", 8)),
        (work(0, "ALLTOALL_BASE", 8), work(1, "ALLTOALL_BASE", 9)),
        (work(0, "SEND", 8), work(1, "RECV", 8)),
        (work(0, "ALLREDUCE", 8, seq=5), work(1, "ALLREDUCE", 9, seq=6)),
    ],
)
def test_what_may_differ_is_no_contradiction(first, second):
    assert signals(first + "\n" + second, "log.collectives_differ") == []


def test_a_fingerprint_shows_both_sides():
    text = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[8]), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=7, OpType=BARRIER)."
    )
    (found,) = signals(text, "log.collectives_differ")
    assert (found.scope.ranks, found.facts["seq"]) == ([0, 1], 7)
