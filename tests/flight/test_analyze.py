"""Judging of small jobs made for one question each."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flight.flight_dumps import call, dump, job, loop, p2p, rank_dump
from torchtriage.flight.analyze import FlightFindings, analyze
from torchtriage.flight.model import RankDump

REDUCE = call("all_reduce", 10)
CAST = call("broadcast", 11)
OPEN_REDUCE = call("all_reduce", 10, done=False)
OPEN_CAST = call("broadcast", 11, done=False)
STEPS = loop(4, REDUCE, CAST)


def kinds(found: FlightFindings) -> list[tuple[str, list[int]]]:
    return [(d.kind, d.ranks) for d in found.divergences]


def facts(found: FlightFindings) -> dict[str, Any]:
    return found.signals[0].facts


def test_ranks_that_did_the_same_are_in_step() -> None:
    found = analyze(job(STEPS, STEPS, STEPS))
    assert (found.divergences, [s.name for s in found.signals]) == ([], ["flight.in_step"])
    assert found.signals[0].scope.ranks == [0, 1, 2]


def test_dumps_a_few_calls_apart_with_all_finished_are_no_trouble() -> None:
    found = analyze(job(STEPS, STEPS[:-3], lagging_status=True))
    assert (found.divergences, [s.name for s in found.signals]) == ([], ["flight.in_step"])


def test_a_rank_that_skipped_one_collective_is_named() -> None:
    found = analyze(job([*STEPS, OPEN_REDUCE, OPEN_CAST], [*STEPS, OPEN_CAST], [*STEPS, OPEN_REDUCE, OPEN_CAST]))
    assert kinds(found) == [("collective_missing", [1])]
    assert found.culprit_ranks == [1]
    assert (found.divergences[0].seq, found.divergences[0].where) == (9, "train (train.py:10)")
    assert facts(found)["sure"]


def test_a_skip_is_told_though_the_peers_wait_in_the_skipped_call() -> None:
    found = analyze(job([*STEPS, OPEN_REDUCE], [*STEPS, OPEN_CAST]))
    assert kinds(found) == [("collective_missing", [1])]


def test_a_skip_between_calls_of_one_kind_is_told_by_the_call_sites() -> None:
    body = (call("all_reduce", 20), call("all_reduce", 21), call("all_reduce", 22))
    last = [dict(c, done=False) for c in body]
    found = analyze(job([*loop(4, *body), *last], [*loop(4, *body), *last[1:]]))
    assert kinds(found) == [("collective_missing", [1])]
    assert found.divergences[0].where == "train (train.py:20)"


def test_code_that_differs_by_rank_on_purpose_is_no_trouble() -> None:
    root, leaf = call("broadcast", 40, function="send_batch"), call("broadcast", 50, function="take_batch")
    found = analyze(job(loop(6, REDUCE, root), loop(6, REDUCE, leaf), loop(6, REDUCE, leaf)))
    assert [s.name for s in found.signals] == ["flight.in_step"]


def test_an_extra_call_after_which_ranks_agree_again_is_extra() -> None:
    extra = call("all_gather", 90, function="log_metrics")
    ahead = [*STEPS, extra, REDUCE, OPEN_CAST]
    peers = [*STEPS, REDUCE, CAST, OPEN_REDUCE]
    found = analyze(job(peers, peers, ahead, peers))
    assert kinds(found) == [("collective_extra", [2])]
    assert found.divergences[0].where == "log_metrics (train.py:90)"


def test_a_whole_skipped_backward_is_one_finding_with_its_number_of_calls() -> None:
    buckets = [call("all_reduce", None, size, thread="pt_autograd_0") for size in (10, 20, 30, 40)]
    body = (CAST, *buckets)
    waiting = [dict(c, done=False) for c in (*buckets, CAST, *buckets)]
    found = analyze(job([*loop(3, *body), CAST, *waiting], [*loop(3, *body), CAST, *waiting[4:]]))
    assert kinds(found) == [("collective_missing", [1])]
    assert facts(found)["n_calls"] == 4


def test_a_rank_that_left_the_loop_is_told_with_where_it_went() -> None:
    barrier = call("all_reduce_barrier", 77, 1, done=False, function="save_checkpoint")
    found = analyze(job([*STEPS, OPEN_REDUCE], [*STEPS, barrier], [*STEPS, OPEN_REDUCE]))
    assert kinds(found) == [("type_mismatch", [1])]
    assert facts(found) | {"left_loop": True, "left_to": "save_checkpoint (train.py:77)", "barrier": True} == facts(
        found
    )


def test_two_ranks_and_one_that_left_the_loop() -> None:
    barrier = call("all_reduce_barrier", 77, 1, done=False, function="save_checkpoint")
    for ranks in ([[*STEPS, OPEN_REDUCE], [*STEPS, barrier]], [[*STEPS, barrier], [*STEPS, OPEN_REDUCE]]):
        found = analyze(job(*ranks))
        odd = next(r for r, calls in enumerate(ranks) if calls[-1] is barrier)
        assert kinds(found) == [("type_mismatch", [odd])]


def test_when_most_left_the_loop_the_one_that_stayed_is_named() -> None:
    barrier = call("all_reduce_barrier", 77, 1, done=False, function="save_checkpoint")
    found = analyze(job([*STEPS, barrier], [*STEPS, OPEN_REDUCE], [*STEPS, barrier]))
    assert kinds(found) == [("type_mismatch", [1])]
    assert (facts(found)["left_loop"], facts(found)["peers_left_loop"]) == (False, True)


@pytest.mark.parametrize("odd", range(4))
def test_the_minority_with_another_size_is_named_whatever_its_rank(odd: int) -> None:
    calls = [[*STEPS, call("all_reduce", 10, 99 if rank == odd else 64, done=False)] for rank in range(4)]
    found = analyze(job(*calls))
    assert kinds(found) == [("size_mismatch", [odd])]
    assert (found.divergences[0].expected, found.divergences[0].found) == (
        "all_reduce [[64]] Float at train (train.py:10)",
        "all_reduce [[99]] Float at train (train.py:10)",
    )


def test_with_two_ranks_the_one_that_departs_from_its_own_past_has_the_wrong_size() -> None:
    found = analyze(job([*STEPS, call("all_reduce", 10, 99, done=False)], [*STEPS, OPEN_REDUCE]))
    assert kinds(found) == [("size_mismatch", [0])]
    assert found.culprit_ranks == [0]


def test_with_two_ranks_and_no_past_either_may_have_the_wrong_size() -> None:
    found = analyze(job([call("all_reduce", 10, 99, done=False)], [OPEN_REDUCE]))
    assert [d.kind for d in found.divergences] == ["size_mismatch"]
    assert (facts(found)["sure"], found.culprit_ranks) == (False, [0, 1])


def test_equal_numbers_of_elements_in_another_shape_fit() -> None:
    found = analyze(job(loop(3, call("broadcast", 10, [[2, 3]])), loop(3, call("broadcast", 10, [[6]]))))
    assert [s.name for s in found.signals] == ["flight.in_step"]


def test_another_dtype_is_a_dtype_mismatch() -> None:
    odd = [*STEPS, call("all_reduce", 10, dtype="BFloat16", done=False)]
    found = analyze(job([*STEPS, OPEN_REDUCE], odd, [*STEPS, OPEN_REDUCE]))
    assert kinds(found) == [("dtype_mismatch", [1])]


def test_gather_may_differ_between_root_and_others() -> None:
    root = call("gather", 10, [[4]], out=[[4], [4]])
    leaf = call("gather", 10, [[4]], out=[[]], dtype="")
    assert [s.name for s in analyze(job(loop(3, root), loop(3, leaf))).signals] == ["flight.in_step"]


def test_all_to_all_may_be_uneven_as_long_as_nothing_is_lost() -> None:
    a = call("all_to_all", 10, [[300, 8]], out=[[100, 8]])
    b = call("all_to_all", 10, [[100, 8]], out=[[300, 8]])
    assert [s.name for s in analyze(job([*STEPS, a], [*STEPS, b])).signals] == ["flight.in_step"]


def test_all_to_all_that_sends_more_than_is_received_is_a_size_mismatch() -> None:
    even = call("all_to_all", 10, [[512, 8]])
    wrong = call("all_to_all", 10, [[4608, 8]], out=[[512, 8]])
    found = analyze(job(loop(4, even), [*loop(3, even), wrong], loop(4, even)))
    assert kinds(found) == [("size_mismatch", [1])]


def test_uneven_all_to_all_without_a_pattern_tells_of_both_ranks() -> None:
    rng = random.Random(5)
    sizes = [rng.randrange(100, 900) for _ in range(6)]
    a = [call("all_to_all", 10, [[n]], out=[[1000 - n]]) for n in sizes]
    b = [call("all_to_all", 10, [[1000 - n]], out=[[n]]) for n in sizes]
    a[-1] = call("all_to_all", 10, [[17]], out=[[1000 - sizes[-1]]])
    found = analyze(job(a, b))
    assert [d.kind for d in found.divergences] == ["size_mismatch"]
    assert found.culprit_ranks == [0, 1]


def test_a_rank_that_stopped_while_peers_wait_is_behind_on_enqueue() -> None:
    found = analyze(job([*STEPS, OPEN_REDUCE, OPEN_CAST], STEPS, [*STEPS, OPEN_REDUCE, OPEN_CAST]))
    assert kinds(found) == [("behind_on_enqueue", [1])]
    assert facts(found) | {
        "seq": 9,
        "behind_by": 2,
        "collective": "all_reduce",
        "where": "train (train.py:10)",
    } == facts(found)


def test_a_rank_that_alone_has_not_finished_is_behind_on_complete() -> None:
    ahead = [*STEPS, REDUCE, OPEN_CAST]
    found = analyze(job(ahead, [*STEPS, OPEN_REDUCE, OPEN_CAST], ahead))
    assert kinds(found) == [("behind_on_complete", [1])]


def test_a_call_that_all_joined_and_none_finished_accuses_nobody() -> None:
    found = analyze(job([*STEPS, OPEN_REDUCE, OPEN_CAST], [*STEPS, OPEN_REDUCE]))
    assert kinds(found) == [("all_joined_none_finished", [0, 1])]
    assert found.culprit_ranks == []


def test_a_dump_that_is_missing_is_told_and_the_others_still_judged() -> None:
    dumps = job([*STEPS, OPEN_REDUCE], STEPS, [*STEPS, OPEN_REDUCE], groups={"0": [0, 1, 2, 3]})
    found = analyze(dumps)
    assert kinds(found) == [("behind_on_enqueue", [1]), ("dump_missing", [3])]
    assert found.culprit_ranks == [1]
    assert not facts(found)["sure"]


def test_only_active_dumps_are_judged_by_their_counters() -> None:
    groups = {"0": [0, 1]}
    waiting = dump([OPEN_REDUCE], groups, first_seq=51)
    silent = dump([], groups)
    silent["pg_status"]["0"] = {
        "last_enqueued_collective": 50,
        "last_started_collective": -1,
        "last_completed_collective": 50,
    }
    found = analyze([rank_dump(0, waiting), rank_dump(1, silent)])
    assert kinds(found) == [("behind_on_enqueue", [1])]
    assert {e.where for e in found.signals[0].evidence} >= {"/pg_status/0/last_enqueued_collective"}


def test_a_lag_that_another_groups_lag_explains_comes_after_it() -> None:
    groups = {"tp0": [0, 1], "tp1": [2, 3], "dp0": [0, 2], "dp1": [1, 3]}
    past = {g: loop(3, call("all_reduce", 10, group=g)) for g in groups}
    tp, dp = (
        (lambda g: call("all_reduce", 10, done=False, group=g)),
        (lambda g: call("all_gather", 12, done=False, group=g)),
    )
    # Rank 1 stalls before its tensor-parallel call; rank 0 waits for it there, rank 2 waits for rank 0 in dp0.
    dumps = job(
        [*past["tp0"], *past["dp0"], tp("tp0")],
        [*past["tp0"], *past["dp1"]],
        [*past["tp1"], *past["dp0"], call("all_reduce", 10, group="tp1"), dp("dp0")],
        [*past["tp1"], *past["dp1"], call("all_reduce", 10, group="tp1"), dp("dp1")],
        groups=groups,
    )
    found = analyze(dumps)
    assert found.culprit_ranks == [1]
    assert (found.divergences[0].kind, found.divergences[0].ranks) == ("behind_on_enqueue", [1])
    assert [d.ranks for d in found.divergences if d.group.startswith("dp0")] == [[0]]


def test_two_groups_entered_in_another_order_are_an_order_deadlock() -> None:
    groups = {"a": [0, 1, 2], "b": [0, 1, 2]}
    a, b = call("all_reduce", 10, group="a"), call("all_gather", 20, group="b")
    past = loop(3, a, b)
    found = analyze(
        job([*past, dict(a, done=False)], [*past, dict(b, done=False)], [*past, dict(a, done=False)], groups=groups)
    )
    assert kinds(found) == [("order_deadlock", [1])]
    assert facts(found)["cycle"] == [0, 1, 2]


def test_crossed_orders_of_asynchronous_calls_are_an_order_deadlock() -> None:
    groups = {"a": [0, 1], "b": [0, 1]}
    a, b = call("all_reduce", 10, group="a"), call("all_gather", 20, group="b")
    past = loop(3, a, b)
    stuck_a, stuck_b = dict(a, done=False), dict(b, done=False)
    found = analyze(job([*past, stuck_a, stuck_b], [*past, stuck_b, stuck_a], groups=groups))
    assert kinds(found)[0] == ("order_deadlock", [1])


def test_a_send_never_accuses_ranks_that_have_no_part_in_it() -> None:
    found = analyze(job([*STEPS, p2p("send", 0, 1)], [*STEPS, p2p("recv", 1, 0)], STEPS, STEPS))
    assert kinds(found) == [("all_joined_none_finished", [0, 1])]
    assert found.culprit_ranks == []


def test_a_send_and_a_receive_of_different_sizes_are_a_p2p_mismatch() -> None:
    found = analyze(job([*STEPS, p2p("send", 0, 1, size=64)], [*STEPS, p2p("recv", 1, 0, size=32)], STEPS))
    assert kinds(found) == [("p2p_mismatch", [0, 1])]
    assert found.culprit_ranks == [0, 1]


def test_two_ranks_that_both_receive_first_are_an_order_deadlock() -> None:
    found = analyze(job([*STEPS, p2p("recv", 0, 1)], [*STEPS, p2p("recv", 1, 0)]))
    assert kinds(found) == [("order_deadlock", [0, 1])]


def test_a_ring_buffer_that_starts_later_on_one_rank_is_aligned() -> None:
    groups = {"0": [0, 1]}
    whole = dump([*loop(8, REDUCE, CAST), OPEN_REDUCE], groups)
    cut = dump([*loop(3, REDUCE, CAST), OPEN_REDUCE], groups, first_seq=11)
    assert kinds(analyze([rank_dump(0, whole), rank_dump(1, cut)])) == [("all_joined_none_finished", [0, 1])]


def test_coalesced_calls_that_share_a_sequence_number_are_one_call() -> None:
    views = [dump([*STEPS, REDUCE, CAST], {"0": [0, 1]}) for _ in range(2)]
    for view in views:
        view["entries"][-1]["collective_seq_id"] = view["entries"][-2]["collective_seq_id"]
    assert [s.name for s in analyze([rank_dump(r, v) for r, v in enumerate(views)]).signals] == ["flight.in_step"]
    views[1]["entries"][-1]["input_sizes"] = [[7]]
    assert [d.kind for d in analyze([rank_dump(r, v) for r, v in enumerate(views)]).divergences] == ["size_mismatch"]


def test_a_dump_whose_rank_cannot_be_told_is_a_gap() -> None:
    dumps = [*job(STEPS, STEPS), RankDump("stray", None, None, rank_dump(0, dump(STEPS, {"0": [0, 1]})).summary)]
    found = analyze(dumps)
    assert [s.name for s in found.signals] == ["flight.in_step"]
    assert found.gaps == ["stray: its name does not say whose dump it is; not used"]


def test_a_rank_is_told_by_its_own_groups_when_the_name_does_not_say_it() -> None:
    groups = {"world": [0, 1], "mine": [1]}
    stray = rank_dump(None, dump([call("all_reduce", 10, group="world")], groups), "stray")
    other = rank_dump(0, dump([call("all_reduce", 10, group="world")], {"world": [0, 1]}))
    assert analyze([stray, other]).signals[0].scope.ranks == [0, 1]


def test_no_dump_at_all_gives_no_finding() -> None:
    assert analyze([]) == FlightFindings()


@pytest.mark.parametrize("seed", range(6))
def test_the_order_in_which_dumps_are_given_does_not_matter(seed: int) -> None:
    barrier = call("all_reduce_barrier", 77, 1, done=False, function="save_checkpoint")
    jobs = [
        job([*STEPS, OPEN_REDUCE, OPEN_CAST], [*STEPS, OPEN_CAST], [*STEPS, barrier], [*STEPS, OPEN_REDUCE]),
        job([*STEPS, call("all_reduce", 10, 9)], [*STEPS, call("all_reduce", 10, 8)]),
        job([*STEPS, OPEN_REDUCE], STEPS, STEPS[:-1]),
    ]
    for dumps in jobs:
        shuffled = list(dumps)
        random.Random(seed).shuffle(shuffled)
        assert analyze(shuffled) == analyze(dumps)
