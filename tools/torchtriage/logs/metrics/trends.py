"""Shapes of a curve: a lasting change of level, a steady rise, a beat. Robust numbers: medians and quantiles.

Thresholds are such that noise without a trend is as good as never called a trend; see the tests, which measure it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchtriage.logs.metrics.curves import Point

MIN_POINTS = 24
MIN_SIDE = 8
N_BLOCKS = 8
MIN_BLOCK_POINTS = 3
# A share of the whole rise that one of the blocks may bring at most, and that one half must bring at least.
_LARGEST_STEP = 0.5
_SMALLEST_HALF = 0.25
_DIP = 0.15
_CORRELATION, _DEVIATIONS = 0.5, 4.5
# How much each side of a shift may itself change, as a share of the shift.
_WOBBLE = 0.4
MIN_BEATS = 4
_BEAT_SHARE = 0.5
_BEATS_HIT = 0.7
_MAX_OFF_BEAT = 0.1


class Shift(NamedTuple):
    """The level changed for good at the point ``place``."""

    place: int
    before: float
    after: float


class Rise(NamedTuple):
    """The level rose over the whole run, evenly: medians of the first and of the last part."""

    first: float
    last: float


class Beat(NamedTuple):
    """Points that stand out come back every ``period`` steps."""

    period: int
    points: list[Point]
    usual: float
    high: float


def level_shift(values: Sequence[float], factor: float) -> Shift | None:
    """Find a lasting rise by ``factor`` or more; both sides must be level, and hardly overlap."""
    n = len(values)
    if n < MIN_POINTS:
        return None
    ordered = sorted(values)
    low, high = ordered[n // 20], ordered[-1 - n // 20]
    clipped = [min(max(value, low), high) for value in values]
    mean = sum(clipped) / n
    sums = list(itertools.accumulate(value - mean for value in clipped))
    index = 1 + min(range(MIN_SIDE - 1, n - MIN_SIDE), key=lambda i: sums[i])
    before, after = values[:index], values[index:]
    low_level, high_level = statistics.median(before), statistics.median(after)
    if low_level <= 0 or high_level < factor * low_level:
        return None
    if quantile(before, 0.9) >= quantile(after, 0.1):
        return None
    wobble = 1 + _WOBBLE * (high_level / low_level - 1)
    if not (_is_level(before, wobble) and _is_level(after, wobble)):
        return None
    return Shift(index, low_level, high_level)


def _is_level(values: Sequence[float], wobble: float) -> bool:
    half = len(values) // 2
    one, other = statistics.median(values[:half]), statistics.median(values[half:])
    return max(one, other) <= wobble * min(one, other)


def steady_rise(points: Sequence[Point], factor: float) -> Rise | None:
    """Find a rise by ``factor`` or more that goes on from part to part of the run, without one jump that makes it.

    A part may lie a little below the one before it if so many points rise with the run that it is no chance.
    """
    blocks = block_levels(points)
    if blocks is None or blocks[0] <= 0 or blocks[-1] < factor * blocks[0]:
        return None
    rise = blocks[-1] - blocks[0]
    steps = [b - a for a, b in itertools.pairwise(blocks)]
    half = blocks[len(blocks) // 2] - blocks[0]
    dip = max(top - level for top, level in zip(itertools.accumulate(blocks, max), blocks, strict=True))
    if min(steps) <= 0 and (dip > _DIP * rise or not _rises(points)):
        return None
    if max(steps) > _LARGEST_STEP * rise or not _SMALLEST_HALF <= half / rise <= 1 - _SMALLEST_HALF:
        return None
    return Rise(blocks[0], blocks[-1])


def _rises(points: Sequence[Point]) -> bool:
    """Whether values and places go together, by Spearman's rank correlation."""
    n = len(points)
    if n < MIN_POINTS:
        return False
    order = sorted(range(n), key=lambda i: points[i].value)
    square = sum((rank - i) ** 2 for rank, i in enumerate(order))
    correlation = 1 - 6 * square / (n * (n * n - 1))
    return correlation >= _CORRELATION and correlation * math.sqrt(n - 1) >= _DEVIATIONS


def block_levels(points: Sequence[Point]) -> list[float] | None:
    """Medians of parts of the run that are equally long; None when a part has too few points."""
    if len(points) < N_BLOCKS:
        return None
    first, last = points[0].x, points[-1].x
    if last <= first:
        return None
    least = MIN_BLOCK_POINTS if len(points) >= MIN_POINTS else 1
    parts: list[list[float]] = [[] for _ in range(N_BLOCKS)]
    for point in points:
        parts[min(N_BLOCKS - 1, int((point.x - first) / (last - first) * N_BLOCKS))].append(point.value)
    if any(len(part) < least for part in parts):
        return None
    return [statistics.median(part) for part in parts]


def beat(points: Sequence[Point], factor: float) -> Beat | None:
    """Find points ``factor`` times above the usual that come back every so many steps.

    Points may be a sample that holds the highest values of all; so it is asked for the seen ones among the expected.
    """
    stepped = {point.step: point for point in points if point.step is not None}
    if len(stepped) < MIN_POINTS:
        return None
    usual = statistics.median(point.value for point in stepped.values())
    slow = sorted(step for step, point in stepped.items() if usual > 0 and point.value >= factor * usual)
    if len(slow) < MIN_BEATS or 3 * len(slow) > len(stepped):
        return None
    gaps = Counter(b - a for a, b in itertools.pairwise(slow))
    density = _usual_gap(sorted(stepped))
    for period, _ in gaps.most_common(6):
        if period >= 2 * density and (hit := _on_beat(period, slow, stepped.keys())) is not None:
            high = statistics.median(stepped[step].value for step in hit)
            return Beat(period, [stepped[step] for step in hit], usual, high)
    return None


def _on_beat(period: int, slow: Sequence[int], seen: Collection[int]) -> list[int] | None:
    phase, count = Counter(step % period for step in slow).most_common(1)[0]
    if count < MIN_BEATS or count < _BEAT_SHARE * len(slow):
        return None
    hit = [step for step in slow if step % period == phase]
    expected = sum(step % period == phase and hit[0] <= step <= hit[-1] for step in seen)
    off_beat = len(slow) - count
    rare = off_beat <= _MAX_OFF_BEAT * (len(seen) - expected)
    return hit if rare and len(hit) >= _BEATS_HIT * expected else None


def _usual_gap(steps: Sequence[int]) -> int:
    return min((b - a for a, b in itertools.pairwise(steps)), default=1)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
