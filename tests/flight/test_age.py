"""Dumps asked for from a running job: calls that were made a moment ago and are unfinished are no hang."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flight.flight_dumps import BASE_NS, call, dump, loop, rank_dump
from torchtriage.flight.analyze import FlightFindings, analyze

GROUPS = {"0": [0, 1, 2]}
REDUCE = call("all_reduce", 10)
OPEN = dict(REDUCE, done=False)
STEPS = loop(6, REDUCE)
CALL_MS = BASE_NS // 1_000_000 + len(STEPS)
"""When the call after the steps is made."""


def _found(*calls_by_rank: list[dict[str, Any]], after_ms: int | None, timeout_ms: int = 600_000) -> FlightFindings:
    dumps = []
    for rank, calls in enumerate(calls_by_rank):
        view = dump(calls, GROUPS)
        for entry in view["entries"]:
            entry["timeout_ms"] = timeout_ms
        dumps.append(replace(rank_dump(rank, view), written_ms=None if after_ms is None else CALL_MS + after_ms))
    return analyze(dumps)


def test_a_call_that_a_peer_has_not_made_yet_is_no_fault_a_moment_later() -> None:
    found = _found([*STEPS, OPEN], STEPS, [*STEPS, OPEN], after_ms=300)
    assert (found.divergences, found.culprit_ranks) == ([], [])
    in_step, young = found.signals
    assert (in_step.name, in_step.facts["oldest_wait_ms"]) == ("flight.in_step", 300)
    assert (young.name, young.facts["oldest_wait_s"]) == ("flight.waits_young", 0.3)
    assert "0.3 s old when it was dumped" in found.gaps[0]


@pytest.mark.parametrize(
    ("after_ms", "timeout_ms"),
    [(600_500, 600_000), (30_000, 600_000), (2000, 2000), (None, 600_000), (-60_000, 600_000)],
    ids=["watchdog", "asked for after a wait", "short time-out", "no file time", "file older than its calls"],
)
def test_the_same_is_a_fault_where_it_is_not_known_to_be_young(after_ms: int | None, timeout_ms: int) -> None:
    found = _found([*STEPS, OPEN], STEPS, [*STEPS, OPEN], after_ms=after_ms, timeout_ms=timeout_ms)
    assert [(d.kind, d.ranks) for d in found.divergences] == [("behind_on_enqueue", [1])]


def test_one_dump_that_was_written_late_is_enough_to_show_a_wait() -> None:
    views = [dump(calls, GROUPS) for calls in ([*STEPS, OPEN], STEPS, [*STEPS, OPEN])]
    times = [CALL_MS + 100, CALL_MS + 100, CALL_MS + 60_000]
    dumps = [replace(rank_dump(r, v), written_ms=t) for r, (v, t) in enumerate(zip(views, times, strict=True))]
    assert analyze(dumps).culprit_ranks == [1]


def test_calls_that_differ_are_a_fault_however_young() -> None:
    other = call("all_gather", 10, done=False)
    found = _found([*STEPS, OPEN], [*STEPS, other], [*STEPS, OPEN], after_ms=10)
    assert [(d.kind, d.ranks) for d in found.divergences] == [("type_mismatch", [1])]
