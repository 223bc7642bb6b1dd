"""What must be seen before ranks are called in step, and damage that must not hide or make a fault."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from flight.flight_dumps import BASE_NS, call, dump, loop, rank_dump
from torchtriage.flight import read
from torchtriage.flight.analyze import analyze

if TYPE_CHECKING:
    from torchtriage.flight.analyze import FlightFindings
    from torchtriage.flight.model import RankDump

REDUCE, GATHER = call("all_reduce", 20), call("all_gather", 21)
OPEN = call("all_reduce", 20, done=False)
DONE = loop(4, REDUCE, GATHER)
WORLD = {"0": [0, 1, 2, 3]}


def views(*calls_by_rank: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dump(calls, WORLD) for calls in calls_by_rank]


def judge(found: list[dict[str, Any]]) -> FlightFindings:
    return analyze([rank_dump(rank, view) for rank, view in enumerate(found)])


def names(found: FlightFindings) -> list[str]:
    return [signal.name for signal in found.signals]


def healthy() -> list[dict[str, Any]]:
    return views(DONE, DONE, DONE, DONE)


def rank_2_behind() -> list[dict[str, Any]]:
    return views([*DONE, OPEN], [*DONE, OPEN], DONE, [*DONE, OPEN])


@pytest.mark.parametrize("entries", [[], "lost", None, {"0": 1}])
def test_a_dump_that_says_nothing_is_not_in_step(entries: object) -> None:
    found = healthy()
    found[2] |= {"entries": entries, "pg_status": {}}
    judged = judge(found)
    assert names(judged) == []
    assert any("rank 2" in gap and "neither calls nor counters" in gap for gap in judged.gaps)


def test_counters_that_say_the_same_as_the_peers_are_enough() -> None:
    found = healthy()
    found[2]["entries"] = []
    assert names(judge(found)) == ["flight.in_step"]


@pytest.mark.parametrize("at", [3, -1])
def test_entries_that_cannot_be_read_are_not_in_step(at: int) -> None:
    found = healthy()
    found[2]["entries"][at]["profiling_name"] = None
    judged = judge(found)
    assert (judged.divergences, names(judged)) == ([], [])


def test_what_follows_the_last_whole_entry_is_lost_when_the_last_one_cannot_be_read() -> None:
    found = healthy()
    found[2]["entries"][-2:] = [1, 2]
    assert any("after its last whole entry is lost" in gap for gap in judge(found).gaps)


def test_groups_beyond_those_that_are_read_may_hold_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_GROUPS", 2)
    groups = {str(n): [0, 1] for n in range(3)}
    calls = [call("all_reduce", group=group) for group in groups]
    stuck = [*calls[:2], call("all_reduce", group="2", done=False)]
    judged = analyze([rank_dump(0, dump(stuck, groups)), rank_dump(1, dump(calls[:2], groups))])
    assert (judged.divergences, names(judged)) == ([], [])
    assert any("only the first 2 were read" in gap for gap in judged.gaps)


def test_a_last_number_that_leaps_beyond_the_peers_calls_is_damage_and_no_progress() -> None:
    found = rank_2_behind()
    found[2]["entries"][-1]["collective_seq_id"] = 300
    judged = judge(found)
    assert (judged.divergences, names(judged)) == ([], [])
    assert any("numbered 7 and then 300" in gap for gap in judged.gaps)


@pytest.mark.parametrize("number", [300, 1 << 61])
def test_a_leap_on_a_waiting_rank_hides_nobody(number: int) -> None:
    found = rank_2_behind()
    found[0]["entries"][-1]["collective_seq_id"] = number
    assert judge(found).culprit_ranks == [2]


@pytest.mark.parametrize("number", [1, 300, 1 << 61])
def test_a_number_that_its_neighbours_refute_is_left_out_and_the_rest_is_kept(number: int) -> None:
    found = rank_2_behind()
    found[2]["entries"][4]["collective_seq_id"] = number
    assert judge(found).culprit_ranks == [2]


def test_a_leap_that_all_ranks_have_is_calls_that_are_not_recorded() -> None:
    found = healthy()
    for view in found:
        for entry in view["entries"][5:]:
            entry["collective_seq_id"] += 40
    assert names(judge(found)) == ["flight.in_step"]


def test_numbers_that_start_over_are_no_leap() -> None:
    found = views(*[[*DONE, *DONE]] * 4)
    for view in found:
        for number, entry in enumerate(view["entries"][8:], 1):
            entry["collective_seq_id"] = number
    assert names(judge(found)) == ["flight.in_step"]


def test_a_dump_with_far_fewer_finished_calls_is_not_in_step() -> None:
    judged = judge(views(DONE, DONE, DONE[:3], DONE))
    assert (judged.divergences, names(judged)) == ([], [])
    assert any("rank 2 enqueued 3 calls" in gap for gap in judged.gaps)


def written(found: list[dict[str, Any]], after_ms: int) -> list[RankDump]:
    newest_ms = BASE_NS // 1_000_000 + 8
    return [replace(rank_dump(rank, view), written_ms=newest_ms + after_ms) for rank, view in enumerate(found)]


def test_a_rank_that_is_quiet_for_far_longer_than_ever_before_is_not_in_step() -> None:
    judged = analyze(written(rank_2_behind(), 1500))
    assert (judged.divergences, names(judged)) == ([], ["flight.waits_young"])
    assert any("peers wait for rank 2" in gap for gap in judged.gaps)


def test_a_rank_that_is_a_moment_late_is_in_step() -> None:
    assert names(analyze(written(rank_2_behind(), 100))) == ["flight.in_step", "flight.waits_young"]


def test_an_unknown_state_of_one_waiting_rank_hides_nobody() -> None:
    found = rank_2_behind()
    found[0]["entries"][-1] |= {"state": "?", "retired": None}
    assert judge(found).culprit_ranks == [2]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_last_entry_with_another_group_id_is_put_back_where_its_number_fits(rank: int) -> None:
    found = rank_2_behind()
    found[rank]["entries"][-1]["pg_id"] = 99
    assert judge(found).culprit_ranks == [2]


@pytest.mark.parametrize("ranks", ["[0, 1, 2]", "[0, 1, 2, 3, 4, 5]"])
def test_one_odd_list_of_ranks_does_not_split_the_group(ranks: str) -> None:
    found = rank_2_behind()
    found[2]["pg_config"]["0"]["ranks"] = ranks
    judged = judge(found)
    assert judged.culprit_ranks == [2]
    assert any("list other ranks" in gap for gap in judged.gaps)


def test_ranks_that_dispute_who_is_in_a_group_are_not_in_step() -> None:
    found = healthy()
    found[2]["pg_config"]["0"]["ranks"] = "[0, 1, 2]"
    assert names(judge(found)) == []


def test_groups_of_a_split_share_a_name_and_stay_apart() -> None:
    halves = [[0, 1], [0, 1], [2, 3], [2, 3]]
    found = [dump(DONE, {"0": half}) for half in halves]
    judged = judge(found)
    assert (len(judged.groups), names(judged)) == (2, ["flight.in_step"])
