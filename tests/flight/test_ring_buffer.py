"""What the ring buffer has overwritten is neither finished nor a call of another kind."""

from __future__ import annotations

from typing import Any

from flight.flight_dumps import BASE_NS, call, dump, loop, rank_dump
from torchtriage.flight.analyze import FlightFindings, analyze
from torchtriage.flight.model import RankDump

GROUPS = {"0": [0, 1], "1": [0, 1]}
REDUCE, NORM = call("all_reduce", 10), call("all_reduce", 20, 1, group="1")
OPEN_REDUCE, OPEN_NORM = dict(REDUCE, done=False), dict(NORM, done=False)


def _wrapped(rank: int, calls: list[dict[str, Any]], keep: int, wait_s: float | None = None) -> RankDump:
    view = dump(calls, GROUPS, start_ns=rank)
    view["entries"] = view["entries"][-keep:]
    one = rank_dump(rank, view)
    written_ms = None if wait_s is None else BASE_NS // 1_000_000 + len(calls) + int(wait_s * 1000)
    return RankDump(one.artefact, rank, None, one.summary, written_ms)


def _told(found: FlightFindings) -> list[tuple[str, list[int]]]:
    return [(d.kind, d.ranks) for d in found.divergences]


def test_a_call_that_the_ring_buffer_lost_counts_as_unfinished_by_the_counters() -> None:
    calls = [*loop(3, REDUCE, NORM), *loop(6, OPEN_REDUCE), OPEN_NORM]
    found = analyze([_wrapped(0, calls, 5), _wrapped(1, calls, 8)])
    assert _told(found) == [("all_joined_none_finished", [0, 1])]
    assert found.divergences[0].seq == 4


def test_ring_buffers_that_hold_no_finished_call_never_make_a_job_healthy() -> None:
    calls = [*loop(3, REDUCE, NORM), *loop(6, OPEN_REDUCE), OPEN_NORM]
    assert analyze([_wrapped(0, calls, 5), _wrapped(1, calls, 4)]).signals == []


def test_small_ring_buffers_without_a_finished_call_do_not_make_a_job_look_alive() -> None:
    calls = [*loop(3, REDUCE, NORM), *loop(6, OPEN_REDUCE), OPEN_NORM]
    found = analyze([_wrapped(rank, calls, 5, wait_s=90.0) for rank in range(2)])
    assert _told(found) == [("all_joined_none_finished", [0, 1])]


def test_dumps_written_when_the_time_out_had_passed_are_of_a_job_that_stands() -> None:
    calls = [*loop(3, REDUCE, NORM), OPEN_REDUCE]
    peers = [_wrapped(rank, calls, 100, wait_s=605.0) for rank in range(2)]
    for one in peers:  # the watchdog had not counted what the dump says is finished
        one.summary["status"][0][3] = 1
    assert _told(analyze(peers)) == [("all_joined_none_finished", [0, 1])]


def test_a_coalesced_call_of_which_the_ring_buffer_lost_a_part_is_no_other_call() -> None:
    def parts(n: int) -> list[dict[str, Any]]:
        return loop(
            n, call("_all_gather_base", 10, 8), call("_all_gather_base", 10, 4), call("ALLGATHER_coalesced", 10)
        )

    views = [dump([*loop(4, REDUCE), *parts(4), *loop(2, REDUCE)], GROUPS, start_ns=rank) for rank in range(2)]
    for view in views:
        for index, entry in enumerate(view["entries"]):
            at = index - 4
            if 0 <= at < 12:
                entry["collective_seq_id"] = 5 + at // 3
            elif at >= 12:
                entry["collective_seq_id"] = 9 + at - 12
        view["pg_status"]["0"] = {"last_enqueued_collective": 10, "last_completed_collective": 10}
    views[0]["entries"] = views[0]["entries"][6:]
    found = analyze([rank_dump(rank, view) for rank, view in enumerate(views)])
    assert [s.name for s in found.signals] == ["flight.in_step"]


def test_a_group_of_which_a_whole_dump_holds_no_call_was_never_called() -> None:
    groups = {"all": [0, 1, 2], "named": [0, 1, 2]}
    names = {"all": "0:mesh", "named": "0:data"}
    save, step = call("barrier", 30, group="all", done=False), call("all_reduce", 10, group="named", done=False)
    views = [dump(calls, groups, start_ns=rank) for rank, calls in enumerate([[step], [step], [save]])]
    for view in views:  # names that say no order, and no counters
        del view["pg_status"]
        view["pg_config"] = {names[k]: {**v, "name": names[k]} for k, v in view["pg_config"].items()}
        for entry in view["entries"]:
            entry["process_group"] = (names[entry["process_group"][0]], entry["process_group"][1])
        own = dump([call("all_gather", 3, group="own")], {"own": [0]}, start_ns=7)["entries"][0]
        view["entries"].insert(0, {**own, "pg_id": 7})
        view["entries"][1]["record_id"] = 1
    found = analyze([rank_dump(rank, view) for rank, view in enumerate(views)])
    assert _told(found) == [("order_deadlock", [2])]
