"""Dumps of several jobs or attempts beside each other."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from flight.flight_dumps import call, dump, loop, rank_dump
from torchtriage.flight.analyze import FlightFindings, analyze
from torchtriage.flight.tool import analyze_flight_recorder

if TYPE_CHECKING:
    from pathlib import Path

    from torchtriage.flight.model import RankDump

HOUR_NS = 3600 * 10**9
REDUCE = call("all_reduce", 10)
OPEN_REDUCE = call("all_reduce", 10, done=False)
WORLD = {"0": [0, 1, 2, 3]}
AHEAD = [*loop(15, REDUCE), OPEN_REDUCE]
BEHIND = loop(15, REDUCE)


def view(calls: list[dict[str, Any]], hours: int = 0, groups: dict[str, list[int]] | None = None) -> dict[str, Any]:
    return dump(calls, groups or WORLD, start_ns=hours * HOUR_NS)


def of_job(behind: int, folder: str = "", hours: int = 0) -> dict[int, RankDump]:
    """Four ranks of which one did not make the last call."""
    return {
        r: rank_dump(r, view(BEHIND if r == behind else AHEAD, hours), f"{folder}nccl_trace_rank_{r}") for r in range(4)
    }


def judged(found: FlightFindings) -> list[tuple[str, list[int]]]:
    return [(d.kind, d.ranks) for d in found.divergences]


def told(found: FlightFindings, *words: str) -> bool:
    return any(all(word in gap for word in words) for gap in found.gaps)


def test_a_later_foreign_file_does_not_speak_for_a_rank_whose_own_dump_fits_its_peers() -> None:
    foreign = rank_dump(
        3, view([*loop(11, call("all_reduce", 10, 9)), OPEN_REDUCE], hours=1), "foreign/nccl_trace_rank_3"
    )
    found = analyze([*of_job(behind=1).values(), foreign])
    assert judged(found) == [("behind_on_enqueue", [1])]
    assert told(found, "nccl_trace_rank_3 was used, not foreign/nccl_trace_rank_3")


def test_a_backup_in_the_same_folder_and_time_has_another_form_of_name() -> None:
    backup = rank_dump(3, view(loop(40, call("all_reduce", 10, 9))), "backup_3")
    assert judged(analyze([*of_job(behind=1).values(), backup])) == [("behind_on_enqueue", [1])]


def test_of_two_jobs_in_one_folder_both_are_named() -> None:
    pair = {"0": [0, 1]}
    other = [rank_dump(r, view(loop(9, REDUCE), 1, pair), f"small/nccl_trace_rank_{r}") for r in (0, 1)]
    found = analyze([*of_job(behind=1, folder="large/").values(), *other])
    assert judged(found) == [("behind_on_enqueue", [1])]
    assert told(found, "two jobs or attempts", "large", "small")


def test_of_two_attempts_the_later_one_is_judged_though_a_rank_left_no_dump_in_it() -> None:
    later = of_job(behind=1, folder="attempt_1/", hours=1)
    del later[2]
    found = analyze([*of_job(behind=3, folder="attempt_0/").values(), *later.values()])
    assert judged(found) == [("behind_on_enqueue", [1]), ("dump_missing", [2])]
    assert told(found, "attempt_0/nccl_trace_rank_2", "earlier run")


def test_a_dump_without_calls_is_preferred_to_one_of_an_earlier_attempt() -> None:
    later = of_job(behind=1, folder="attempt_1/", hours=1)
    later[2] = rank_dump(2, {**view(AHEAD, 1), "entries": []}, "attempt_1/nccl_trace_rank_2")
    stale = rank_dump(2, view(loop(3, REDUCE)), "attempt_0/nccl_trace_rank_2")
    found = analyze([*later.values(), stale])
    assert judged(found) == [("behind_on_enqueue", [1])]
    assert told(found, "attempt_1/nccl_trace_rank_2 was used")


def test_a_stale_dump_of_the_same_calls_does_not_make_a_job_in_step() -> None:
    dumps = [rank_dump(r, view(AHEAD[:-1], hours=0 if r == 2 else 1)) for r in range(4)]
    found = analyze(dumps)
    assert judged(found) == [("dump_missing", [2])]
    assert told(found, "rank 2's dump is of an earlier run", "59 min older")


def test_a_stale_dump_is_told_by_what_its_peers_finished_since_when_their_ring_buffers_wrapped() -> None:
    fresh = dump(AHEAD, WORLD, first_seq=500, start_ns=HOUR_NS)
    for record_id, entry in enumerate(fresh["entries"], start=499):
        entry["record_id"] = record_id
    dumps = [rank_dump(r, view(BEHIND) if r == 2 else fresh) for r in range(4)]
    assert told(analyze(dumps), "rank 2's dump is of an earlier run")


def test_a_rank_that_was_stuck_long_while_others_went_on_in_groups_without_it_is_kept() -> None:
    groups = {"0": [0, 1, 2, 3], "1": [0, 1, 3]}
    stuck = view([*loop(4, REDUCE), OPEN_REDUCE])
    busy = dump([*loop(60, call("all_reduce", 20, group="1"))], groups, first_seq=300, start_ns=HOUR_NS)
    for record_id, entry in enumerate(busy["entries"], start=900):
        entry["record_id"] = record_id
    found = analyze([rank_dump(r, stuck if r == 2 else busy) for r in range(4)])
    assert not told(found, "earlier run")


def test_a_group_whose_first_call_is_late_makes_no_rank_outside_it_stale() -> None:
    early, late = {"a": [0, 1]}, {"b": [2, 3, 4]}
    dumps = [rank_dump(r, view([call("all_reduce", 10, group="a")], 0, early)) for r in (0, 1)]
    dumps += [rank_dump(r, view([call("all_reduce", 10, group="b")], 1, late)) for r in (2, 3, 4)]
    assert not told(analyze(dumps), "earlier run")


def test_a_folder_of_which_no_dump_was_used_keeps_the_others_from_being_called_in_step(tmp_path: Path) -> None:
    for number, run in enumerate(("one", "other")):
        (tmp_path / run).mkdir()
        for rank in range(2):
            made = dump(loop(3, call("all_reduce")), {"0": [0, 1]}, start_ns=rank + 1000 * number)
            (tmp_path / run / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(made))
    assert analyze_flight_recorder([str(tmp_path / "one")]).status == "in_step"
    assert analyze_flight_recorder([str(tmp_path)]).status == "inconclusive"
