"""Counters that say more than the entries: they count sends too, and never show that a call was finished."""

from __future__ import annotations

from typing import Any

import pytest

from flight.flight_dumps import call, dump, loop, rank_dump
from torchtriage.flight.analyze import analyze

REDUCE = call("all_reduce", 20)
OPEN = call("all_reduce", 20, done=False)
DONE = loop(8, REDUCE)
WORLD = {"0": [0, 1, 2, 3]}


def rank_2_behind() -> list[dict[str, Any]]:
    return [dump(DONE if rank == 2 else [*DONE, OPEN], WORLD) for rank in range(4)]


def count(view: dict[str, Any], enqueued: int, completed: int) -> None:
    view["pg_status"]["0"] |= {"last_enqueued_collective": enqueued, "last_completed_collective": completed}


@pytest.mark.parametrize(("enqueued", "completed"), [(999, 999), (40, 8), (9, 9)])
def test_a_counter_beyond_the_last_entry_does_not_turn_the_blame_around(enqueued: int, completed: int) -> None:
    found = rank_2_behind()
    count(found[2], enqueued, completed)
    judged = analyze([rank_dump(rank, view) for rank, view in enumerate(found)])
    assert judged.culprit_ranks == [2]


def test_sends_that_the_ring_buffer_lost_are_no_finished_calls() -> None:
    found = rank_2_behind()
    for view in found:
        view["entries"] = view["entries"][4:]
    count(found[2], 8 + 8, 8 + 8)
    judged = analyze([rank_dump(rank, view) for rank, view in enumerate(found)])
    assert judged.culprit_ranks == [2]


def test_counters_alone_beyond_all_that_peers_called_accuse_nobody() -> None:
    found = rank_2_behind()
    for view in found:
        view["entries"] = [entry for entry in view["entries"] if not entry["retired"]]
    count(found[2], 40, 40)
    judged = analyze([rank_dump(rank, view) for rank, view in enumerate(found)])
    assert (judged.culprit_ranks, judged.signals) == ([], [])
