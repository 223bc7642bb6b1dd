"""Which rank is slower than its peers by its own doing, from the parts of a step that it prints.

Ranks that run in step need the same time for a step, as the fast ones wait for the slow one; so the time of the step
tells nothing. Time for data is a rank's own; time for the forward pass mostly is, and is only believed when the rank
waits less than its peers in what follows.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from torchtriage.logs.metrics.curves import WARM_UP_ROWS
from torchtriage.logs.metrics.merged import Found, merge
from torchtriage.logs.metrics.names import DATA_TIME, FORWARD_TIME, PHASES, STEP_TIME, WAIT_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchtriage.logs.metrics.curves import Curve, Curves
    from torchtriage.logs.records import Owner
    from torchtriage.report import Signal

MIN_ROWS = 10
SLOWER_FACTOR = 1.5
SHARE_OF_STEP = 0.1
CONSISTENT = 0.8
_MAX_SHARE_OF_RANKS = 0.25
_MAX_METRICS = 16


def slow_rank_signals(curves: Mapping[Owner, Curves]) -> list[Signal]:
    """``log.slow_rank``: ranks whose own part of the step is longer than their peers', nearly always."""
    ranks = {owner: own for owner, own in curves.items() if isinstance(owner, int)}
    if len(ranks) < 2:
        return []
    for standard in (DATA_TIME, FORWARD_TIME):
        metrics = dict.fromkeys(curve.metric for own in ranks.values() for curve in own.of(standard))
        found = [one for metric in list(metrics)[:_MAX_METRICS] for one in _slow(metric, ranks, standard)]
        # A rank that is late with its data waits nowhere, so that its peers' later parts seem long: data come first.
        if found:
            return merge("log.slow_rank", found, {**ranks})
    return []


def _slow(metric: str, ranks: Mapping[int, Curves], standard: str) -> list[Found]:
    levels = {rank: _level(own.by_metric.get(metric)) for rank, own in ranks.items()}
    known = {rank: value for rank, value in levels.items() if value is not None}
    if len(known) < 2:
        return []
    ordered = sorted(known.values())
    found: list[Found] = []
    for rank, own_level in known.items():
        # The median of the others, without sorting them anew for every rank.
        at = ordered.index(own_level)
        others = ordered[:at] + ordered[at + 1 :] if len(ordered) <= 64 else ordered
        peers = statistics.median(others)
        step_s = _step_time(ranks[rank])
        excess = own_level - peers
        if step_s is None or excess < SHARE_OF_STEP * step_s or own_level < SLOWER_FACTOR * peers:
            continue
        curve = ranks[rank].by_metric[metric]
        points = curve.points[WARM_UP_ROWS:]
        high = [point for point in points if point.value > peers + excess / 2]
        if len(high) < CONSISTENT * len(points):
            continue
        if standard == FORWARD_TIME and not _waits_less(rank, ranks, excess):
            continue
        peer = min((r for r in known if r != rank), key=lambda r: (abs(known[r] - peers), r))
        shown = high[len(high) // 2]
        facts = {
            "phase": standard.removesuffix("_time_s"),
            "own_s": round(own_level, 6),
            "peers_s": round(peers, 6),
            "step_s": round(step_s, 6),
            "step": shown.step,
        }
        theirs = ranks[peer].by_metric[metric].points
        row = min(theirs, key=lambda point: abs((point.step or 0) - (shown.step or 0))).row
        found.append(Found(rank, metric, facts, [row, shown.row]))
    # Where many ranks take longer, they have another task (to load data for others, say), or it is what all do.
    return found if len(found) <= max(1, int(_MAX_SHARE_OF_RANKS * len(known))) else []


def _level(curve: Curve | None) -> float | None:
    if curve is None or len(curve.points) < MIN_ROWS:
        return None
    return statistics.median(point.value for point in curve.points[WARM_UP_ROWS:])


def _step_time(own: Curves) -> float | None:
    """How long a step takes, as it is printed, or between stamps, or as the sum of its parts."""
    if (timed := own.longest(STEP_TIME)) is not None and (value := _level(timed)) is not None:
        return value
    parts = [_level(curve) for curve in own.of(*PHASES)]
    known = [part for part in parts if part is not None]
    return sum(known) or None


def _waits_less(rank: int, ranks: Mapping[int, Curves], excess: float) -> bool:
    waits = {r: [value for c in own.of(WAIT_TIME) if (value := _level(c)) is not None] for r, own in ranks.items()}
    others = [sum(values) for r, values in waits.items() if values and r != rank]
    return bool(waits[rank] and others) and sum(waits[rank]) <= statistics.median(others) - excess / 2
