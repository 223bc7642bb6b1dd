"""From step times and throughput to signals: a run that slows down, at once or bit by bit, and periodic stalls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchtriage.logs.metrics.curves import WARM_UP_ROWS, level, work_grew
from torchtriage.logs.metrics.merged import Found, merge
from torchtriage.logs.metrics.names import STEP_TIME, THROUGHPUTS, TOKENS
from torchtriage.logs.metrics.trends import MIN_POINTS, beat, level_shift, steady_rise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchtriage.logs.metrics.curves import Curve, Curves, Point
    from torchtriage.logs.records import Owner
    from torchtriage.report import Signal

LASTING_FACTOR = 1.4
GRADUAL_FACTOR = 1.4
STALL_FACTOR = 2.5
_STEADY = 0.85
_DIGITS = 4


class _Slower(NamedTuple):
    """Times rose ``factor`` times: at one point for good, or bit by bit until the last point."""

    before: float
    after: float
    points: list[Point]
    place: int
    gradual: bool

    @property
    def factor(self) -> float:
        return self.after / self.before


def pace_signals(curves: Mapping[Owner, Curves]) -> list[Signal]:
    """Signals about how fast steps are done.

    Steps that take longer because there is more work in them (longer sequences, larger batches, as many tokens per
    second as before) are no slower.
    """
    jumps: list[Found] = []
    drifts: list[Found] = []
    stalls: list[Found] = []
    drops: list[Found] = []
    for owner, own in curves.items():
        timed = own.longest(STEP_TIME)
        if timed is not None:
            if not _tokens_are_steady(own) and (slower := _slower(timed.settled(), own)) is not None:
                (drifts if slower.gradual else jumps).append(_slowed(owner, timed, slower))
            if (stall := _stall(owner, timed)) is not None:
                stalls.append(stall)
        speeds = [speed for standard in THROUGHPUTS if (speed := own.longest(standard)) is not None]
        drops += [drop for speed in speeds if (drop := _drop(owner, speed, own)) is not None]
    return [
        *merge("log.step_time_jump", jumps, curves, shared=True),
        *merge("log.step_time_drift", drifts, curves, shared=True),
        *merge("log.periodic_stall", stalls, curves),
        *merge("log.throughput_drop", drops, curves, shared=True),
    ]


def _slower(points: list[Point], own: Curves) -> _Slower | None:
    shift = level_shift([point.value for point in points], LASTING_FACTOR)
    if shift is not None:
        found = _Slower(shift.before, shift.after, points, shift.place, gradual=False)
    elif (rise := steady_rise(points, GRADUAL_FACTOR)) is not None:
        found = _Slower(rise.first, rise.last, points, len(points) - 1, gradual=True)
    else:
        return None
    return None if work_grew(own, found.factor) else found


def _tokens_are_steady(own: Curves) -> bool:
    speed = own.longest(TOKENS)
    points = speed.settled() if speed is not None else []
    if len(points) < MIN_POINTS:
        return False
    third = len(points) // 3
    return level(points[-third:]) >= _STEADY * level(points[:third])


def _slowed(owner: Owner, timed: Curve, slower: _Slower) -> Found:
    before, at = slower.points[max(0, slower.place - 1) if not slower.gradual else 0], slower.points[slower.place]
    facts = {
        "from_s": round(slower.before, _DIGITS + 2),
        "to_s": round(slower.after, _DIGITS + 2),
        "factor": round(slower.factor, 2),
        "step": at.step,
    }
    return Found(owner, timed.metric, facts, [before.row, at.row])


def _drop(owner: Owner, speed: Curve, own: Curves) -> Found | None:
    inverse = [point._replace(value=1 / point.value) for point in speed.settled() if point.value > 0]
    slower = _slower(inverse, own)
    if slower is None:
        return None
    before, at = slower.points[max(0, slower.place - 1) if not slower.gradual else 0], slower.points[slower.place]
    facts = {
        "from": float(f"{1 / slower.before:.6g}"),
        "to": float(f"{1 / slower.after:.6g}"),
        "factor": round(slower.factor, 2),
        "step": at.step,
        "gradual": slower.gradual,
    }
    return Found(owner, speed.metric, facts, [before.row, at.row])


def _stall(owner: Owner, timed: Curve) -> Found | None:
    """Slow steps that come back; times between stamps show them only where every step is there."""
    found = beat(timed.points[WARM_UP_ROWS:], STALL_FACTOR) if timed.shows_slowest else None
    if found is None:
        return None
    facts = {
        "every_steps": found.period,
        "factor": round(found.high / found.usual, 2),
        "usual_s": round(found.usual, _DIGITS + 2),
        "stall_s": round(found.high, _DIGITS + 2),
        "n_stalls": len(found.points),
        "step": found.points[0].step,
    }
    return Found(owner, timed.metric, facts, [point.row for point in found.points[:2]])
