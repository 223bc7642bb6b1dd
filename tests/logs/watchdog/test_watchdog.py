"""Collective time-outs in the words of many releases."""

from __future__ import annotations

import pytest

from logs.watchdog.watchdog_lines import DEFAULT, STAMP, dump, failed, signals, signals_of_files, work

NUMEL = "NumelIn=8, NumelOut=16, "
ALL_OF_IT = {"seq": 5, "operation": "ALLREDUCE", "timeout_ms": 1800000, "ran_ms": 1802345}


@pytest.mark.parametrize(
    ("line", "numel_in"),
    [
        ("[E ProcessGroupNCCL.cpp:821] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
         "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802345 milliseconds before timing out.", None),
        ("[rank3]:[E ProcessGroupNCCL.cpp:523] [Rank 3] Watchdog caught collective operation timeout: "
         "WorkNCCL(SeqNum=5, "
         f"OpType=ALLREDUCE, {NUMEL}Timeout(ms)=1800000) ran for 1802345 milliseconds before timing out.", 8),
        (f"[rank3]:[{STAMP}] [PG 0 Rank 3] Watchdog caught "
         f"collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, {NUMEL}"
         "Timeout(ms)=1800000) ran for 1802345 milliseconds", 8),
        (f"[rank3]:[{STAMP}] [PG ID 2 PG GUID 17(tp) Rank 1] Process group watchdog thread terminated with exception: "
         f"[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, {NUMEL}"
         "Timeout(ms)=1800000) ran for 1802345 milliseconds before timing out.", 8),
        ("[E ProcessGroupNCCL.cpp:737] [Rank 3] NCCL watchdog thread terminated with exception: [Rank 3] Watchdog "
         "caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for "
         "1802345 milliseconds before timing out.", None),
    ],
)  # fmt: skip
def test_time_outs_of_all_releases_are_read(line, numel_in):
    (found,) = signals(line, "log.watchdog_timeout")
    assert found.scope.ranks == [3]
    assert {key: found.facts[key] for key in (*ALL_OF_IT, "numel_in")} == {**ALL_OF_IT, "numel_in": numel_in}


@pytest.mark.parametrize(
    "line",
    [
        "Aborting process on rank 3 due to timeout - timeout watchdog detected operation timeout",
        "[rank3]: torch.distributed.DistBackendError: [Rank 3] Work timed out in call to wait().",
        f"[rank3]:[{STAMP}] [PG 0 Rank 3] timed out in blocking wait (TORCH_NCCL_BLOCKING_WAIT=1).",
        f"[rank3]:[{STAMP}] [{DEFAULT} Rank 3] timed out in blocking wait.",
    ],
)
def test_time_outs_without_numbers_are_read(line):
    (found,) = signals(line, "log.watchdog_timeout")
    assert (found.scope.ranks, found.facts["seq"], found.facts["operation"]) == ([3], None, None)


@pytest.mark.parametrize(
    ("line", "group"),
    [
        ("[PG 0 Rank 3] Timeout at NCCL work: 5, last enqueued NCCL work: 9, last completed NCCL work: 4.",
         "default_pg"),
        ("[PG 7 (tp) Rank 1] Timeout at NCCL work: 5, last enqueued NCCL work: 9, last completed NCCL work: 4.", "tp"),
        ("[PG ID 1 PG GUID 7(tp) Rank 1] Exception (either an error or timeout) detected by watchdog at work: 5, "
         "last enqueued NCCL work: 9, last completed NCCL work: 4.", "tp"),
        ("[PG ID 1 PG GUID 7(tp) Rank 1]  failure detected by watchdog at work sequence id: 5 PG status: last enqueued "
         "work: 9, last completed work: 4", "tp"),
        ("[PG ID 1 PG GUID 7(undefined) Rank 1]  failure detected by watchdog at work sequence id: 5 PG status: last "
         "enqueued work: 9, last completed work: 4", "7"),
    ],
)  # fmt: skip
def test_progress_of_all_releases_goes_to_its_time_out(line, group):
    (found,) = signals([work(3, 5), f"[rank3]:[{STAMP}] {line}"], "log.watchdog_timeout")
    assert found.scope.groups == [group]
    assert (found.facts["last_enqueued"], found.facts["last_completed"]) == (9, 4)
    assert found.facts["progress_by_rank"] == {"3": [9, 4]}


def test_none_enqueued_is_minus_one():
    (found,) = signals([work(3, 1), failed(3, 1, 1, -1)], "log.watchdog_timeout")
    assert found.facts["last_completed"] == -1


def test_the_rank_inside_a_group_is_never_taken_for_the_rank_of_the_job():
    tp = "PG ID 2 PG GUID 17(tp)"
    lines = [work(11, 5, group_rank=3), failed(11, 5, 6, 4, tp, group_rank=3)]
    (found,) = signals(lines, "log.watchdog_timeout")
    assert (found.scope.ranks, found.scope.groups) == ([11], ["tp"])


def test_two_groups_of_one_rank_are_two_time_outs_with_their_own_progress():
    lines = [work(0, 5), work(0, 7), failed(0, 7, 8, 6, "PG ID 1 PG GUID 1(dp)"), failed(0, 5, 5, 4), dump(0, 5, 4)]
    found = {s.facts["seq"]: s for s in signals(lines, "log.watchdog_timeout")}
    assert {seq: s.scope.groups for seq, s in found.items()} == {5: ["default_pg"], 7: ["dp"]}
    assert {seq: s.facts["last_enqueued"] for seq, s in found.items()} == {5: 5, 7: 8}


def test_one_event_that_is_printed_three_times_is_one_time_out():
    again = work(3).replace("[Rank 3]", f"[{DEFAULT} Rank 3] Process group watchdog thread terminated: [Rank 3]")
    assert len(signals([work(3), again, again], "log.watchdog_timeout")) == 1


def test_groups_of_one_dimension_are_told_apart_by_their_unique_names():
    lines: list[str] = []
    for rank, guid, inner in ((0, 3, 0), (1, 3, 1), (2, 4, 0), (3, 4, 1)):
        numel = 8 if guid == 3 else 16
        lines += [work(rank, 5, numel=numel), failed(rank, 5, 5, 4, f"PG ID 1 PG GUID {guid}(tp)", group_rank=inner)]
    found = signals(lines)
    assert [s.name for s in found if s.name == "log.collectives_differ"] == []
    shown = {s.scope.groups[0] for s in signals(lines, "log.watchdog_timeout")}
    assert shown == {"tp (3)", "tp (4)"}


def test_siblings_that_share_a_name_are_not_compared():
    group = "PG ID 1 PG GUID 3(tp)"
    lines: list[str] = []
    for rank, inner, numel in ((0, 0, 8), (1, 1, 8), (2, 0, 16), (3, 1, 16)):
        lines += [work(rank, 5, numel=numel), failed(rank, 5, 5, 4, group, group_rank=inner)]
    assert signals(lines) == []


def test_a_watchdog_that_came_late_is_noted():
    late = work(0).replace("ran for 1001", "ran for 200000")
    assert [s.facts["late_watchdog"] for s in signals([late, work(1)], "log.watchdog_timeout")] == [True, False]


def test_the_stack_of_the_call_tells_where_a_rank_waits():
    lines = [
        work(0),
        failed(0, 19, 19, 18),
        f"[rank0]:[{STAMP}] Stack trace of the failed collective: ",
        "#0 barrier from /venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:5030",
        "#1 wrapper from /venv/lib/python3.12/site-packages/torch/distributed/c10d_logger.py:83",
        "#2 save from train.py:344",
        "#3 <module> from train.py:726",
        "",
    ]
    (found,) = signals(lines, "log.watchdog_timeout")
    assert (found.facts["call"], found.facts["where"]) == ("barrier", "save (train.py:344)")


def test_a_stack_that_another_line_interrupts_is_believed_up_to_there():
    lines = [
        work(0),
        f"[rank0]:[{STAMP}] Stack trace of the failed collective: ",
        "#0 all_reduce from /venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:5030",
        "[rank1] step 1 loss 2.0",
        "#1 save from train.py:344",
    ]
    (found,) = signals(lines, "log.watchdog_timeout")
    assert found.facts["call"] == "all_reduce"
    assert "where" not in found.facts


def test_a_rank_that_a_files_name_tells_keeps_its_time_out():
    files = {f"rank_{rank}.log": (rank, work(rank)) for rank in (4, 5)}
    found = signals_of_files(files, "log.watchdog_timeout")
    assert [s.scope.ranks for s in found] == [[4], [5]]
