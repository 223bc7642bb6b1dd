"""What the watchdogs of all ranks show together: who did not join which collective."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.watchdog.watchdog_lines import DEFAULT, STAMP, dump, failed, signals, step, waits, work

TP = "PG ID 1 PG GUID 7(tp)"
OBSERVED = f"[{STAMP}] [{DEFAULT} Rank 1] Observed flight recorder dump signal from another rank via TCPStore."


def observed(rank: int) -> str:
    return f"[rank{rank}]:{OBSERVED.replace('Rank 1', f'Rank {rank}')}"


def many(ranks: range | list[int], *, seq: int = 19, operation: str = "ALLREDUCE", numel: int = 8) -> list[str]:
    return [line for rank in ranks for line in waits(rank, seq, operation, numel, enqueued=seq + 2)]


LINES = [*waits(0), *waits(1, numel=9), *waits(2, 18), work(3, 5), failed(3, 5, 6, 4, TP), dump(3, 17, 17), observed(3)]


# other operations and sizes


@pytest.mark.parametrize(("numel", "sides"), [(9, "rank 0 in ALLREDUCE 8, rank 1 in ALLREDUCE 9")])
def test_different_sizes_of_an_all_reduce_contradict_each_other(numel, sides):
    (found,) = signals(waits(0) + waits(1, numel=numel), "log.collectives_differ")
    assert (found.scope.ranks, found.scope.groups, found.facts["seq"]) == ([0, 1], ["default_pg"], 19)
    assert (found.facts["same_operation"], found.facts["odd_ranks"], found.facts["sides"]) == (True, [], sides)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (waits(0), waits(1)),
        (waits(0, operation="ALLTOALL_BASE"), waits(1, operation="ALLTOALL_BASE", numel=9)),
        (waits(0, operation="SEND"), waits(1, operation="RECV")),
        (waits(0, 5), waits(1, 6, numel=9)),
    ],
)
def test_what_may_differ_is_no_contradiction(first, second):
    assert signals(first + second, "log.collectives_differ") == []


def test_of_64_ranks_the_odd_one_is_named_and_quoted_beside_another():
    lines = many(range(64))
    lines[2 * 41 : 2 * 42] = [work(41, 19, "BROADCAST"), failed(41, 19, 19, 18)]
    (found,) = signals(lines, "log.collectives_differ")
    assert (found.scope.ranks, found.facts["odd_ranks"], found.facts["n_ranks"]) == ([41], [41], 64)
    assert (found.facts["usual"], found.facts["found"]) == ("ALLREDUCE 8", "BROADCAST 8")
    assert (found.facts["peers_enqueued"], found.facts["last_enqueued"]) == (21, 19)
    assert [e.where for e in found.evidence] == ["1", "83"]


def test_two_equal_camps_have_no_odd_one():
    (found,) = signals(many(range(2)) + many(range(2, 4), operation="BROADCAST"), "log.collectives_differ")
    assert (found.scope.ranks, found.facts["odd_ranks"]) == ([0, 1, 2, 3], [])


# behind on enqueue


def test_the_rank_that_never_issued_the_call_is_named_with_how_far_it_was():
    lines = [*many(range(3)), observed(3), dump(3, 18, 18, asked_by=0)]
    (found,) = signals(lines, "log.behind_on_enqueue")
    assert (found.scope.ranks, found.scope.groups) == ([3], ["default_pg"])
    facts = {k: found.facts[k] for k in ("seq", "operation", "last_enqueued", "behind_by", "all_completed", "waiting")}
    assert facts == {"seq": 19, "operation": "ALLREDUCE", "last_enqueued": 18, "behind_by": 3, "all_completed": True,
                     "waiting": "ranks 0-2 wait"}  # fmt: skip
    assert not found.facts["went_past"]
    assert "Last enqueued" in found.evidence[0].quote
    assert "WorkNCCL" in found.evidence[1].quote


def test_a_rank_that_issued_the_call_and_is_only_slower_is_not_behind():
    assert signals([*many(range(3)), dump(3, 19, 18, asked_by=0)], "log.behind_on_enqueue") == []


def test_a_rank_that_waits_with_its_peers_elsewhere_went_past_the_call_that_it_lacks():
    lines = [work(0, 25), failed(0, 25, 27, 24, TP), work(0, 9), failed(0, 9, 9, 8)]
    lines += [work(1, 25), failed(1, 25, 27, 24, TP), dump(1, 8, 8)]
    (found,) = signals(lines, "log.behind_on_enqueue")
    assert (found.scope.ranks, found.facts["seq"]) == ([1], 9)
    assert (found.facts["went_past"], found.facts["joined_elsewhere"]) == (True, True)
    assert signals(lines, "log.two_groups_cross") == []


def test_one_early_rank_among_many_entered_alone_and_the_others_are_not_late():
    lines = [*waits(0), *(dump(rank, 18, 18, asked_by=0) for rank in range(1, 4))]
    assert signals(lines, "log.behind_on_enqueue") == []
    (found,) = signals(lines, "log.waits_alone")
    assert (found.scope.ranks, found.facts["n_ranks"], found.facts["by_rank_zero"]) == ([0], 4, True)


# no time-out where peers have one


def test_a_rank_without_a_time_out_is_told_with_what_it_last_said():
    lines = [step(r, 4) for r in range(4)] + ["[rank2] Saving model checkpoint to out/4"]
    lines += [*many([0, 1, 3]), observed(2)]
    (found,) = signals(lines, "log.rank_without_timeout")
    assert found.scope.ranks == [2]
    facts = {k: found.facts[k] for k in ("watchdog_alive", "ended", "finished", "activity", "sure", "last_line")}
    assert facts == {"watchdog_alive": True, "ended": False, "finished": False, "activity": "saving", "sure": True,
                     "last_line": "[rank2] Saving model checkpoint to out/4"}  # fmt: skip


def test_a_rank_whose_watchdog_is_silent_too_is_told_apart():
    later = dump(0, 21, 18).replace("14:27:19", "14:28:19")
    (found,) = signals([*(step(r, 4) for r in range(3)), *many([0, 1]), later], "log.rank_without_timeout")
    assert (found.scope.ranks, found.facts["watchdog_alive"], found.facts["sure"]) == ([2], False, True)


def test_a_job_that_ended_with_the_first_time_outs_shows_nobody_missing():
    assert signals([step(r, 4) for r in range(3)] + many([0, 1]), "log.rank_without_timeout") == []


def test_a_rank_that_had_ended_with_an_exception_is_told_apart():
    lines = [step(r, 4) for r in range(3)]
    lines += ["[rank2]: Traceback (most recent call last):", '[rank2]:   File "a.py", line 1, in f',
              "[rank2]: ValueError: x", *many([0, 1])]  # fmt: skip
    (found,) = signals(lines, "log.rank_without_timeout")
    assert (found.scope.ranks, found.facts["ended"]) == ([2], True)


def test_nobody_is_missing_when_most_of_the_ranks_report_nothing():
    assert signals([step(r, 4) for r in range(8)] + many([0, 1]), "log.rank_without_timeout") == []


def test_a_log_of_rank_0_alone_blames_nobody():
    found = signals(["world_size: 8", step(0, 1), step(0, 2), *waits(0)])
    assert {s.name for s in found} == {"log.steps_even"}


def test_one_rank_that_waits_after_all_others_finished_waits_alone():
    lines = [step(r, n) for n in range(3) for r in range(2)] + waits(0) + ["[rank1] finished"]
    (found,) = signals(lines, "log.waits_alone")
    assert (found.scope.ranks, found.facts["peers_finished"], found.facts["same_steps"]) == ([0], True, True)


def test_a_process_that_only_sigkill_ended_and_that_no_watchdog_spoke_for_is_told():
    lines = [
        *waits(0),
        "W1130 14:27:30.000000 9 torch/distributed/elastic/multiprocessing/api.py:1012] Sending process 41 closing "
        "signal SIGTERM",
        "Failures:",
        "[1]:",
        "  host      : localhost",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 41)",
        "Root Cause (first observed failure):",
        "[0]:",
        "  host      : localhost",
        "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -6 (pid: 40)",
    ]
    (found,) = signals(lines, "log.rank_without_timeout")
    assert (found.scope.ranks, found.facts["needed_sigkill"], found.facts["watchdog_alive"]) == ([1], True, False)


# silent ranks


def test_a_few_silent_ranks_of_a_talking_world_are_named():
    lines = ["world_size: 16", *(step(r, 1) for r in range(16) if r != 9), *many([0, 1, 2])]
    (found,) = signals(lines, "log.rank_silent")
    assert found.scope.ranks == [9]
    assert (found.facts["n_ranks"], found.facts["n_silent"]) == (16, 1)
    assert (found.facts["waiting"], found.facts["seq"]) == ("ranks 0-2 wait", 19)


@pytest.mark.parametrize("missing", [0, 3, 6])
def test_a_hole_in_the_ranks_is_a_silent_rank_although_no_size_is_told(missing):
    lines = many(r for r in range(8) if r != missing)
    (found,) = signals(lines, "log.rank_silent")
    assert (found.scope.ranks, found.facts["n_ranks"]) == ([missing], 8)
    assert signals(lines, "log.all_joined_none_finished") == []


def test_of_a_job_in_which_some_rank_is_silent_no_group_is_known_to_be_complete():
    group = "PG ID 1 PG GUID 1(tp)"
    lines = [line for r in range(4) for line in (work(r), failed(r, 19, 19, 18, group))]
    lines += [step(r, 1) for r in (4, 6)]
    assert [s.scope.ranks for s in signals(lines, "log.rank_silent")] == [[5]]
    assert signals(lines, "log.all_joined_none_finished") == []


def test_a_process_that_is_no_known_ranks_is_the_rank_behind_the_last():
    lines = many(range(3))
    lines += [
        "W1130 14:27:20.1 9 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 43 closing signal "
        "SIGTERM",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "train.py FAILED",
        "Failures:",
    ]
    for rank in (1, 2, 0):
        lines += ["Root Cause (first observed failure):"] if rank == 0 else []
        lines += [
            f"[{rank}]:",
            "  host      : localhost",
            f"  rank      : {rank} (local_rank: {rank})",
            f"  exitcode  : -6 (pid: {40 + rank})",
        ]
    assert [s.scope.ranks for s in signals(lines, "log.rank_silent")] == [[3]]
    assert signals(lines, "log.all_joined_none_finished") == []


def test_logs_of_the_second_node_alone_tell_neither_silence_nor_that_all_joined():
    lines = many(range(8, 16))
    assert signals(lines, "log.rank_silent") == []
    assert signals(lines, "log.all_joined_none_finished") == []


@pytest.mark.parametrize("seen", [range(1), range(8), range(0, 16, 8)])
def test_logs_that_were_not_given_are_no_silent_ranks(seen):
    lines = ["world_size: 16", *(step(r, 1) for r in seen), *waits(0)]
    assert signals(lines, "log.rank_silent") == []


# all joined


def test_when_all_ranks_wait_in_one_call_no_host_is_missing():
    (found,) = signals(many(range(4)), "log.all_joined_none_finished")
    facts = {k: found.facts[k] for k in ("seq", "operation", "n_ranks", "same_progress")}
    assert (found.scope.ranks, facts) == (
        [0, 1, 2, 3], {"seq": 19, "operation": "ALLREDUCE", "n_ranks": 4, "same_progress": True}
    )  # fmt: skip


def test_a_known_rank_that_does_not_wait_denies_that_all_joined():
    lines = ["world_size: 5", *many(range(4))]
    assert signals(lines, "log.all_joined_none_finished") == []


def test_a_call_that_one_rank_completed_and_another_waits_in_does_not_fit_together():
    lines = [work(0, 12), failed(0, 12, 13, 11), work(1, 13, "BROADCAST"), failed(1, 13, 13, 12)]
    (found,) = signals(lines, "log.completed_on_some")
    assert (found.facts["seq"], found.facts["waiting_ranks"], found.facts["done_ranks"]) == (12, [0], [1])


def test_the_root_of_a_broadcast_may_be_done_before_the_others():
    lines = [work(1, 12, "BROADCAST"), failed(1, 12, 12, 11), work(0, 13), failed(0, 13, 13, 12)]
    assert signals(lines, "log.completed_on_some") == []


# small groups


def test_a_small_group_is_judged_by_itself():
    lines = [*(step(r, 1) for r in range(16)), observed(12)]
    for inner in (0, 1, 3):
        rank = 8 + 2 * inner
        lines += [work(rank, 5, group_rank=inner), failed(rank, 5, 6, 4, TP, group_rank=inner)]
    (found,) = signals(lines, "log.rank_without_timeout")
    assert (found.scope.ranks, found.scope.groups, found.facts["n_ranks"]) == ([12], ["tp"], 4)


def test_two_members_of_a_group_of_unknown_size_show_nobody_missing():
    lines = [step(r, 1) for r in range(16)]
    for inner in (0, 1):
        lines += [work(8 + inner, 5, group_rank=inner), failed(8 + inner, 5, 6, 4, TP, group_rank=inner)]
    assert signals(lines, "log.rank_without_timeout") == []


# two groups


def test_two_ranks_that_wait_for_each_other_in_two_groups_cross():
    lines = [work(0, 2), failed(0, 2, 2, 1), work(1, 13), failed(1, 13, 15, 12, TP), dump(1, 1, 1)]
    (found,) = signals(lines, "log.two_groups_cross")
    assert (found.scope.ranks, found.scope.groups) == ([0, 1], ["default_pg", "tp"])
    facts = {k: found.facts[k] for k in ("seq", "other_seq", "entered_alone", "by_rank_zero", "both_joined")}
    assert facts == {"seq": 2, "other_seq": 13, "entered_alone": True, "by_rank_zero": True, "both_joined": False}
    assert [e.quote.count("WorkNCCL") for e in found.evidence] == [1, 1]


def test_two_ranks_that_wait_in_the_same_calls_of_two_groups_cross():
    dp = "PG ID 2 PG GUID 8(dp)"
    lines = [line for r in range(2) for line in (work(r, 37), failed(r, 37, 44, 36, TP), work(r, 7, numel=4),
                                                 failed(r, 7, 8, 6, dp))]  # fmt: skip
    (found,) = signals(lines, "log.two_groups_cross")
    assert (found.scope.ranks, found.facts["both_joined"]) == ([0, 1], True)


# whatever the order of the lines


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_order_in_which_ranks_write_changes_nothing(data):
    ranks = {r: [step(r, 1), *waits(r, enqueued=21), dump(r, 21, 18)] for r in range(3)}
    ranks[3] = [step(3, 1), observed(3), dump(3, 18, 18, asked_by=0)]
    order = data.draw(st.permutations([r for r, lines in ranks.items() for _ in lines]))
    queues = {r: iter(lines) for r, lines in ranks.items()}
    told = {s.name: s.scope.ranks for s in signals([next(queues[r]) for r in order])}
    assert told == {"log.behind_on_enqueue": [3], "log.rank_without_timeout": [3]}


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 400), st.integers(0, 400)), max_size=12))
def test_cut_and_mixed_lines_are_read(pieces):
    signals([line[:start] + line[start + length :] for line, start, length in pieces])


def test_a_healthy_job_says_nothing():
    lines = [step(r, n) for n in range(4) for r in range(4)] + [f"[rank{r}] finished" for r in range(4)]
    lines += [
        f'[rank3]:[W1130 14:27:18.1 ProcessGroupNCCL.cpp:1662] [{DEFAULT} Rank 3] Failed to check the "should dump" '
        "flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe"
    ]
    assert {s.name for s in signals(lines)} <= {"log.steps_even", "log.finished", "log.store_gone"}


def test_thousands_of_ranks_are_compared():
    lines = [line for rank in range(3000) if rank != 77 for line in (work(rank), failed(rank, 19, 21, 18), work(rank))]
    lines += [observed(77), dump(77, 18, 18, asked_by=0)]
    (found,) = signals(lines, "log.behind_on_enqueue")
    assert found.scope.ranks == [77]
    assert [s.scope.ranks for s in signals(lines, "log.rank_without_timeout")] == [[77]]


def test_what_a_rank_printed_before_its_own_time_out_counts_whatever_its_peers_had_reported_by_then():
    lines = [step(r, n) for n in range(6) for r in range(3) if r != 1 or n < 4]
    lines += [work(0), work(2), "[rank1] epoch 0 done, saving checkpoint", work(1, operation="BROADCAST")]
    (found,) = signals(lines, "log.left_loop_early")
    assert found.scope.ranks == [1]


def test_a_rank_that_waits_in_one_call_with_its_peers_has_gone_past_nothing():
    lines = [step(r, n) for n in range(6) for r in range(4)]
    lines += ["[rank0] saving checkpoint", "[rank2] evaluating 37 prompts", *map(work, (1, 2, 3))]
    (found,) = signals(lines, "log.done_before_peers")
    assert found.scope.ranks == [0]
