"""Waits that show only because a device runs the calls of a rank one after the other."""

from __future__ import annotations

from typing import Any

from flight.flight_dumps import call, dump, job, loop, p2p, rank_dump
from torchtriage.flight.analyze import FlightFindings, analyze


def _told(found: FlightFindings) -> list[tuple[str, list[int]]]:
    return [(d.kind, d.ranks) for d in found.divergences]


def _open(one: dict[str, Any]) -> dict[str, Any]:
    return dict(one, done=False)


def test_groups_that_hold_each_other_up_in_a_ring_are_an_order_deadlock() -> None:
    groups = {"a": [0, 1], "b": [1, 2], "c": [0, 2]}
    a, b, c = (call("all_reduce", line, group=g) for line, g in enumerate(groups))
    past = [[a, c], [a, b], [b, c]]
    stuck = [[c, a], [a, b], [b, c]]
    found = analyze(job(*([*loop(3, *p), *map(_open, s)] for p, s in zip(past, stuck, strict=True)), groups=groups))
    assert _told(found) == [("order_deadlock", [0])]


def test_of_groups_that_wait_in_a_row_only_the_first_is_joined_by_all() -> None:
    groups = {"a": [0, 1], "b": [0, 2]}
    a, b = call("all_reduce", 1, group="a"), call("all_reduce", 2, group="b")
    calls = [[*loop(3, a, b), _open(a), _open(b)], [*loop(3, a), _open(a)], [*loop(3, b), _open(b)]]
    assert _told(analyze(job(*calls, groups=groups))) == [("all_joined_none_finished", [0, 1])]


def test_a_call_behind_one_of_a_group_without_a_dump_is_not_what_a_job_hangs_in() -> None:
    groups = {"a": [0, 3], "b": [0, 1, 2]}
    a, b = call("all_reduce", 1, group="a"), call("all_reduce", 2, group="b")
    calls = [[*loop(3, a, b), _open(a), _open(b)], [*loop(3, b), _open(b)], [*loop(3, b), _open(b)]]
    assert _told(analyze(job(*calls, groups=groups))) == [("dump_missing", [3])]


def test_a_send_whose_receive_the_peer_went_past_is_a_p2p_mismatch_of_both() -> None:
    groups = {"pp": [0, 1], "all": [0, 1, 2]}
    norm = call("all_reduce", 5, group="all")
    past = loop(3, norm)
    send = p2p("send", 0, 1, group="pp")
    found = analyze(job([*past, send, _open(norm)], [*past, _open(norm)], [*past, _open(norm)], groups=groups))
    assert _told(found) == [("p2p_mismatch", [0, 1])]
    assert found.culprit_ranks == [0, 1]


def test_a_send_that_the_peer_may_yet_receive_is_none() -> None:
    groups = {"pp": [0, 1], "all": [0, 1, 2]}
    norm = call("all_reduce", 5, group="all")
    past = loop(3, norm)
    found = analyze(job([*past, p2p("send", 0, 1, group="pp"), _open(norm)], past, [*past, _open(norm)], groups=groups))
    assert _told(found) == [("behind_on_enqueue", [1])]


def test_two_ranks_that_both_receive_before_they_send_wait_for_each_other() -> None:
    calls = [[p2p("recv", rank, 1 - rank), p2p("send", rank, 1 - rank)] for rank in range(2)]
    assert _told(analyze(job(*calls))) == [("order_deadlock", [0, 1])]


def test_two_ranks_whose_send_and_receive_meet_have_both_come_to_it() -> None:
    found = analyze(job([p2p("recv", 0, 1), p2p("send", 0, 1)], [p2p("send", 1, 0), p2p("recv", 1, 0)]))
    assert _told(found) == [("all_joined_none_finished", [0, 1])]


def test_a_rank_that_never_came_to_its_receive_is_named_though_no_collective_waits() -> None:
    past = loop(3, call("all_reduce", 5))
    found = analyze(job([*past, p2p("send", 0, 1)], past, past))
    assert (_told(found), found.culprit_ranks) == ([("behind_on_enqueue", [1])], [1])


def test_a_rank_without_a_dump_that_its_neighbours_wait_for_is_named_and_they_are_not() -> None:
    groups = {"pp": [0, 1, 2, 3], "all": [0, 1, 2, 3]}
    norm = call("all_reduce", 5, group="all")
    past = loop(3, norm)
    calls = [
        [*past, p2p("send", 0, 1, group="pp"), _open(norm)],
        past,
        [*past, p2p("recv", 2, 1, group="pp")],
        [*past, _open(norm)],
    ]
    found = analyze([one for one in job(*calls, groups=groups) if one.rank != 1])
    assert (_told(found)[0], found.culprit_ranks) == (("dump_missing", [1]), [1])


def test_the_one_rank_that_most_wait_for_is_named_though_it_waits_for_them_elsewhere() -> None:
    groups = {"tp": [0, 1, 2], "all": [0, 1, 2]}
    tp, norm = call("all_reduce", 4, group="tp"), call("all_reduce", 5, group="all")
    past = loop(3, tp, norm)
    # Rank 1 left out a norm: its next one is in the place of the others', behind a call that they have yet to make.
    calls = [[*past, tp, _open(norm)], [*past, tp, _open(tp), _open(norm)], [*past, tp, _open(norm)]]
    found = analyze(job(*calls, groups=groups))
    assert _told(found)[0] == ("order_deadlock", [1])
    assert found.culprit_ranks == [1]


def test_a_rank_whose_device_alone_did_not_start_a_call_is_named() -> None:
    views = [dump([*loop(5, call("all_reduce")), _open(call("all_reduce"))], {"0": [0, 1, 2]}) for _ in range(3)]
    for rank, view in enumerate(views):
        view["pg_status"]["0"]["last_started_collective"] = 5 if rank == 1 else 6
    found = analyze([rank_dump(rank, view) for rank, view in enumerate(views)])
    assert _told(found) == [("behind_on_complete", [1])]
    assert found.divergences[0].found == "not started on its device"


def test_a_call_left_out_is_missing_though_a_whole_step_follows_it() -> None:
    step = (call("all_reduce", 1, 30), call("all_reduce", 2, 20), call("all_reduce", 3, 10))
    past = loop(4, *step)
    waiting = [*past, step[0], step[1], _open(step[2])]
    skipped = [*past, step[0], step[1], *map(_open, step)]
    found = analyze(job(waiting, skipped, waiting))
    assert [(d.kind, d.ranks, d.where) for d in found.divergences] == [
        ("collective_missing", [1], "train (train.py:3)")
    ]


def test_the_parts_of_a_finished_coalesced_call_are_finished() -> None:
    views = [dump([*loop(3, call("all_reduce")), _open(call("all_gather")), call("ALLGATHER_coalesced")], {"0": [0, 1]})
             for _ in range(2)]  # fmt: skip
    for view in views:
        view["entries"][-1]["collective_seq_id"] = 4
        view["pg_status"]["0"] = {"last_enqueued_collective": 4, "last_completed_collective": 4}
    assert [s.name for s in analyze([rank_dump(r, v) for r, v in enumerate(views)]).signals] == ["flight.in_step"]


def test_the_sends_and_receives_of_a_finished_batch_are_finished() -> None:
    views = [dump([*loop(3, call("all_reduce")), p2p("send", r, 1 - r), p2p("recv", r, 1 - r),
                   {**p2p("send", r, 1 - r, done=True), "op": "coalesced"}], {"0": [0, 1]})
             for r in range(2)]  # fmt: skip
    for view in views:
        for entry in view["entries"][-3:]:
            entry["p2p_seq_id"] = 1
    assert [s.name for s in analyze([rank_dump(r, v) for r, v in enumerate(views)]).signals] == ["flight.in_step"]
