"""From curves of losses, gradient norms and loss scales to signals: spikes, zeros, a climb, a scale at its end.

Losses of reinforcement learning and of adversaries cross zero and jump as a matter of course; rows that print rewards
are not judged here.
"""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING, Any

from torchtriage.logs.metrics.merged import Found, merge
from torchtriage.logs.metrics.names import GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, REWARD, SKIPPED
from torchtriage.logs.metrics.trends import N_BLOCKS, block_levels, quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.logs.metrics.collect import OwnerMetrics
    from torchtriage.logs.metrics.curves import Curve, Curves, Point
    from torchtriage.logs.records import Owner
    from torchtriage.report import Signal

SPIKE_FACTORS = {LOSS: 2.0, GRAD_NORM: 10.0}
SPIKE_DEVIATIONS = 6.0
_NEIGHBOURS = 10
_RETURNED = 1.3
MIN_ZEROS = 5
_SUDDEN = 0.3
_NO_ROUNDING = 0.05
CLIMB_FACTOR = 2.0
_CLIMB_SHARE = 0.4
_MIN_CLIMB_POINTS = 40
_SCALE_FLOOR = 1.0
_SCALE_FALL = 256.0


def loss_signals(curves: Mapping[Owner, Curves], owners: Mapping[Owner, OwnerMetrics]) -> list[Signal]:
    """Signals about losses that stay finite; ``owners`` tells which metrics did not."""
    spikes: list[Found] = []
    zeros: list[Found] = []
    climbs: list[Found] = []
    scales: list[Found] = []
    somebody_has_a_loss = any(point.value != 0 for own in curves.values() for c in own.of(LOSS) for point in c.points)
    for owner, own in curves.items():
        if (scale := own.longest(LOSS_SCALE)) is not None and (fell := _collapse(owner, scale, own)) is not None:
            scales.append(fell)
        if own.of(REWARD):
            continue
        for curve in own.of(LOSS, GRAD_NORM)[:4]:
            if (spike := _spike(owner, curve)) is not None:
                spikes.append(spike)
            if curve.standard != LOSS or curve.metric in owners[owner].nonfinite:
                continue
            if (climb := _climb(owner, curve, own)) is not None:
                climbs.append(climb)
        if (zero := _zero(owner, own, from_start=not somebody_has_a_loss)) is not None:
            zeros.append(zero)
    return [
        *merge("log.metric_diverged", climbs, curves),
        *merge("log.loss_exactly_zero", zeros, curves),
        *merge("log.loss_scale_collapsed", scales, curves),
        *merge("log.metric_spike", spikes, curves),
    ]


def _spike(owner: Owner, curve: Curve) -> Found | None:
    """The highest value that stands far out of its neighbours on both sides."""
    points, factor = curve.points, SPIKE_FACTORS[curve.standard]
    values = curve.values
    best: tuple[float, int, float] | None = None
    count = 0
    jumps = [abs(math.log(b / a)) for a, b in itertools.pairwise(values) if a > 0 and b > 0]
    usual_jump = statistics.median(jumps) if jumps else 0.0
    for i in range(_NEIGHBOURS, len(values) - _NEIGHBOURS // 2):
        value = values[i]
        if value < factor * values[i - 4] or value < values[i - 1] or value < values[i + 1]:
            continue
        before, after = values[i - _NEIGHBOURS : i], values[i + 1 : i + 1 + _NEIGHBOURS]
        usual, later = statistics.median(before), statistics.median(after)
        if min(before) <= 0 or min(after) <= 0 or later > _RETURNED * usual or value < factor * max(usual, later):
            continue
        # Noise of losses and norms is a matter of factors, so deviations are those of logarithms.
        spread = max(usual_jump, statistics.median(abs(math.log(other / usual)) for other in (*before, *after)))
        if math.log(value / usual) < SPIKE_DEVIATIONS * spread:
            continue
        count += 1
        if best is None or value > best[0]:
            best = (value, i, usual)
    if best is None:
        return None
    value, i, usual = best
    facts = {
        "usual": usual,
        "value": value,
        "factor": round(value / usual, 2),
        "step": points[i].step,
        "n_spikes": count,
    }
    return Found(owner, curve.metric, facts, [points[i - 1].row, points[i].row])


def _zero(owner: Owner, own: Curves, *, from_start: bool) -> Found | None:
    """A loss that fell to exactly zero at once and stays there, or that never was anything else.

    A stage of a pipeline that has no loss prints zeros while another one prints the loss; a loss that is learnt to
    nothing comes near zero before it is rounded to it.
    """
    losses = own.of(LOSS)
    curve = max(losses, key=lambda c: len(c.points), default=None)
    if curve is None:
        return None
    n_zeros = len(list(itertools.takewhile(lambda p: p.value == 0, reversed(curve.points))))
    if n_zeros < MIN_ZEROS:
        return None
    first = curve.points[-n_zeros]
    others = [point.value for point in curve.points[:-n_zeros]]
    if others:
        recent = others[-_NEIGHBOURS:]
        usual = statistics.median(recent)
        if others[-1] < max(_SUDDEN * usual, _NO_ROUNDING):
            return None
    elif not from_start:
        return None
    facts: dict[str, Any] = {
        "step": first.step,
        "n_zeros": n_zeros,
        "from_start": not others,
        "before": others[-1] if others else None,
        "grad_norm": _gradients(own, curve.points[-n_zeros:]),
    }
    before = [curve.points[-n_zeros - 1].row] if others else []
    return Found(owner, curve.metric, facts, [*before, first.row])


def _gradients(own: Curves, points: Sequence[Point]) -> str | None:
    """How the gradient norm is at these points, in one word."""
    name = next((curve.metric for curve in own.of(GRAD_NORM)), None)
    name = name or next((s.name for s in points[0].row.plan.fields if "grad" in s.name and "norm" in s.name), None)
    values = [point.row.values[name] for point in points if name in point.row.values] if name else []
    if not values:
        return None
    if all(math.isnan(value) for value in values):
        return "nan"
    if len(set(values)) == 1:
        return "zero" if values[0] == 0 else "constant"
    return "varies"


def _climb(owner: Owner, curve: Curve, own: Curves) -> Found | None:
    """A loss that had come down, rose to a multiple of its best level, and ended there."""
    points = curve.points
    levels = block_levels(points) if len(points) >= _MIN_CLIMB_POINTS else None
    if levels is None or min(levels) <= 0:
        return None
    place = min(range(N_BLOCKS - 2), key=lambda i: levels[i])
    best, start = levels[place], statistics.median(point.value for point in points[:3])
    least = max(CLIMB_FACTOR * best, best + _CLIMB_SHARE * (start - best))
    if min(levels[-2:]) < least:
        return None
    first, last = points[0].x, points[-1].x
    width = (last - first) / N_BLOCKS
    until = first + (place + 1) * width
    at_best = [point.value for point in points if until - width <= point.x <= until]
    at_end = [point.value for point in points if point.x >= last - 2 * width]
    # A loss of small batches is all noise; then parts of it differ by chance.
    if quantile(at_end, 0.2) <= quantile(at_best, 0.8):
        return None
    low = next(point for point in reversed(points) if point.x <= until)
    above = next(point for point in points if point.x > until and point.value >= least)
    facts: dict[str, Any] = {"from": best, "to": levels[-1], "step": above.step, "became_nonfinite": False}
    if (rates := own.longest(LEARNING_RATE)) is not None:
        facts["learning_rate"] = min(rates.points, key=lambda point: abs(point.x - above.x)).value
    return Found(owner, curve.metric, facts, [low.row, above.row])


def _collapse(owner: Owner, scale: Curve, own: Curves) -> Found | None:
    """A dynamic loss scale that was halved again and again until it could not be lowered any more."""
    points = scale.points
    top = max(points, key=lambda point: point.value)
    last = points[-1]
    if last.value > _SCALE_FLOOR or last.value <= 0 or top.value < _SCALE_FALL * last.value:
        return None
    if any(math.frexp(point.value)[0] != 0.5 for point in (top, last)):
        return None
    floor = next(point for point in points if point.x >= top.x and point.value <= _SCALE_FLOOR)
    skipped = own.longest(SKIPPED)
    facts = {
        "from": top.value,
        "to": last.value,
        "step": floor.step,
        "skipped_steps": int(max(point.value for point in skipped.points)) if skipped is not None else None,
    }
    return Found(owner, scale.metric, facts, [top.row, floor.row, last.row])
