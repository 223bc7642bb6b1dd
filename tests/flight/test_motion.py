"""Dumps of a job that is running: leads of single ranks are no fault, and still a halt is one."""

from __future__ import annotations

from typing import Any

from flight.flight_dumps import call, dump, loop, rank_dump
from torchtriage.flight.analyze import FlightFindings, analyze

GROUPS = {"0": [0, 1, 2]}
REDUCE = call("all_reduce", 10)
OPEN = dict(REDUCE, done=False)
CAST = call("broadcast", 11)


def _found(*calls_by_rank: list[dict[str, Any]], uncounted: tuple[int, ...] = ()) -> FlightFindings:
    """Ranks of ``uncounted`` finished their last call after their watchdog last looked."""
    dumps = []
    for rank, calls in enumerate(calls_by_rank):
        view = dump(calls, GROUPS)
        view["pg_status"]["0"]["last_completed_collective"] -= rank in uncounted
        dumps.append(rank_dump(rank, view))
    return analyze(dumps)


def test_a_lead_of_ranks_that_had_just_finished_a_call_is_no_fault() -> None:
    steps = loop(6, REDUCE)
    found = _found([*steps, REDUCE], [*steps, OPEN], [*steps, OPEN], uncounted=(0,))
    assert found.divergences == []
    assert [s.name for s in found.signals] == ["flight.in_step"]
    assert found.signals[0].facts["running"]


def test_the_same_lead_is_told_when_the_watchdog_had_counted_it() -> None:
    steps = loop(6, REDUCE)
    found = _found([*steps, REDUCE], [*steps, OPEN], [*steps, REDUCE])
    assert [(d.kind, d.ranks) for d in found.divergences] == [("behind_on_complete", [1])]


def test_a_rank_that_lacks_a_call_which_its_peers_finished_was_dumped_before_them() -> None:
    steps = loop(6, REDUCE)
    found = _found([*steps, REDUCE, REDUCE, OPEN], steps, [*steps, REDUCE, REDUCE, OPEN])
    assert found.divergences == []


def test_a_broadcast_finishes_on_its_root_without_the_others() -> None:
    steps = loop(6, CAST)
    found = _found([*steps, CAST, dict(REDUCE, done=False)], steps, [*steps, CAST, dict(REDUCE, done=False)])
    assert [(d.kind, d.ranks) for d in found.divergences] == [("behind_on_enqueue", [1])]


def test_a_counter_that_nobody_keeps_tells_of_no_motion() -> None:
    steps = loop(6, REDUCE)
    views = [dump([*steps, *more], GROUPS, lagging_status=True) for more in ([OPEN], [], [OPEN])]
    found = analyze([rank_dump(rank, view) for rank, view in enumerate(views)])
    assert [(d.kind, d.ranks) for d in found.divergences] == [("behind_on_enqueue", [1])]


def test_idle_dumps_of_active_calls_with_equal_counters_are_in_step() -> None:
    views = [dump([], GROUPS) for _ in range(3)]
    for view in views:
        view["pg_status"]["0"] = dict.fromkeys(("last_enqueued_collective", "last_completed_collective"), 50)
    assert [s.name for s in analyze([rank_dump(r, v) for r, v in enumerate(views)]).signals] == ["flight.in_step"]
    views[1]["pg_status"]["0"]["last_completed_collective"] = 49
    assert "flight.in_step" not in [s.name for s in analyze([rank_dump(r, v) for r, v in enumerate(views)]).signals]


def test_dumps_that_could_not_be_used_leave_open_whether_all_is_well() -> None:
    dumps = [rank_dump(rank, dump(loop(6, REDUCE), GROUPS)) for rank in range(3)]
    assert analyze(dumps).signals
    assert analyze([*dumps, rank_dump(7, dump(loop(6, REDUCE), GROUPS))]).signals == []
