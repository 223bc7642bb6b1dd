"""A rank's metrics as curves: value by value over its run, in standard units, from the rows that were kept.

Rows may be a sample of those that were printed, so nothing here takes two neighbours for consecutive steps: every point
knows its own step and its place on the axis of the run.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from torchtriage.logs.metrics.names import SIZE, STEP_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchtriage.logs.metrics.collect import OwnerMetrics, Row
    from torchtriage.logs.records import Line

WARM_UP_ROWS = 3
WARM_UP_SHARE = 0.05
MAX_OWNER_ROWS = 2000
_MIN_OWNER_ROWS = 64
_JOB_ROWS = 30_000
_STAMP_CHARS = 200
# Times that are read off stamps must be long against what a stamp can resolve.
_MIN_TICKS = 5
_MIN_ROWS = 8
# Beyond these no metric means anything, and ratios overflow.
_TINY, _HUGE = 1e-30, 1e30


class Point(NamedTuple):
    """One value: where it is in the run, at which printed step, and the line that shows it."""

    x: float
    step: int | None
    value: float
    row: Row


@dataclass
class Curve:
    """All points of one metric of one rank, in order of ``x``."""

    metric: str
    """The name as it is printed, in one spelling."""
    standard: str
    points: list[Point] = field(default_factory=list[Point])
    shows_slowest: bool = True
    """The slowest steps of the whole run are among the points."""

    @property
    def values(self) -> list[float]:
        """The values alone."""
        return [point.value for point in self.points]

    def settled(self) -> list[Point]:
        """The points behind the warm-up of the run."""
        if len(self.points) <= WARM_UP_ROWS:
            return []
        first, last = self.points[0].x, self.points[-1].x
        begin = first + WARM_UP_SHARE * (last - first)
        return [point for point in self.points[WARM_UP_ROWS:] if point.x >= begin]


@dataclass
class Curves:
    """The curves of one rank, by metric."""

    by_metric: dict[str, Curve]

    def of(self, *standards: str) -> list[Curve]:
        """Curves of these standard names, in the order in which the job prints them."""
        return [curve for curve in self.by_metric.values() if curve.standard in standards]

    def longest(self, standard: str) -> Curve | None:
        """The curve of this standard name that has the most points."""
        return max(self.of(standard), key=lambda curve: len(curve.points), default=None)


def row_limit(n_owners: int) -> int:
    """How many rows of each of so many owners are read into curves."""
    return max(_MIN_OWNER_ROWS, _JOB_ROWS // max(1, n_owners))


def curves_of(own: OwnerMetrics, limit: int = MAX_OWNER_ROWS) -> Curves:
    """Read the curves off one owner's rows; step times come from time stamps where they are not printed.

    About ``limit`` rows are read, at even distances, and with them those that hold an extreme.
    """
    rows = [row for row in own.rows if not row.plan.evaluates]
    if len(rows) > limit:
        every = math.ceil(len(rows) / limit)
        extremes = {id(row) for seen in own.extremes.values() for row in seen.rows()}
        rows = [row for i, row in enumerate(rows) if i % every == 0 or id(row) in extremes]
    places = _places(rows)
    found: dict[str, Curve] = {}
    for row, x in zip(rows, places, strict=True):
        start, text = row.offset, row.line.text
        for spot in row.plan.measured:
            meaning = spot.meaning
            part = text[spot.start - start : spot.end - start]
            if meaning is None or not part:
                continue
            value = float(part.replace(",", "") if spot.commas else part)
            if meaning.inverse:
                value = 1 / value if value > 0 else math.inf
            value *= meaning.factor
            if value != 0 and not _TINY < abs(value) < _HUGE:
                continue
            curve = found.get(spot.name)
            if curve is None:
                curve = found[spot.name] = Curve(spot.name, meaning.name)
            if curve.standard == meaning.name:
                curve.points.append(Point(x, row.step, value, row))
    curves = Curves(found)
    longest = curves.longest(STEP_TIME)
    if (longest is None or len(longest.points) < _MIN_ROWS) and (derived := _from_stamps(rows, places)) is not None:
        found[derived.metric] = derived
    return curves


def _places(rows: list[Row]) -> list[float]:
    """Places on one axis that never runs back: steps, going on where they begin anew; else line numbers."""
    by_step = 2 * sum(row.step is not None for row in rows) > len(rows)
    places: list[float] = []
    offset = last = at = 0
    source = rows[0].line.key[0] if rows else 0
    for row in rows:
        if by_step:
            if row.step is not None:
                if row.step < last:
                    offset += last - row.step + 1
                last = row.step
                at = offset + last
        else:
            if row.line.key[0] != source:
                source, offset = row.line.key[0], at
            at = offset + row.line.number
        places.append(float(at))
    return places


def _from_stamps(rows: list[Row], places: list[float]) -> Curve | None:
    """Seconds per step between time stamps, over stretches that are about equally long."""
    stamped: list[tuple[float, float, Row]] = []
    for row, x in zip(rows, places, strict=True):
        own_stamp = row.step is not None and row.line.time_s is not None and _carries_stamp(row.line)
        if own_stamp and (not stamped or x > stamped[-1][0]):
            stamped.append((x, row.line.time_s or 0.0, row))
    if len(stamped) < _MIN_ROWS:
        return None
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(stamped)]
    usual = statistics.median(gaps)
    width = max(gaps)
    even = width == min(gaps)
    # One gap that is far wider than the others is a pause in printing, not the density of the sample.
    width = width if width <= 4 * usual else sorted(gaps)[int(len(gaps) * 0.95)]
    tick = 1.0 if all(time_s == int(time_s) for _, time_s, _ in stamped) else 0.001
    pace = (stamped[-1][1] - stamped[0][1]) / (stamped[-1][0] - stamped[0][0])
    if pace <= 0:
        return None
    coarse = math.ceil(_MIN_TICKS * tick / pace)
    curve = Curve("time between steps", STEP_TIME, shows_slowest=even and coarse <= usual)
    width = max(width, coarse)
    last_x, last_s, _ = stamped[0]
    for x, time_s, row in stamped[1:]:
        steps = x - last_x
        if steps < width:
            continue
        if steps <= 2 * width and time_s >= last_s:
            curve.points.append(Point(x, row.step, (time_s - last_s) / steps, row))
        last_x, last_s = x, time_s
    return curve if len(curve.points) >= _MIN_ROWS else None


def _carries_stamp(line: Line) -> bool:
    return line.stamp is not None and line.stamp[1] in line.text[:_STAMP_CHARS]


def level(points: Iterable[Point]) -> float:
    """The median value of some points."""
    return statistics.median(point.value for point in points)


def work_grew(curves: Curves, rise: float) -> bool:
    """Whether lengths or batch sizes rose over the run, by about as much as something else that rose ``rise`` times."""
    for curve in curves.of(SIZE):
        settled = curve.settled()
        if len(settled) < _MIN_ROWS:
            continue
        eighth = max(1, len(settled) // 8)
        before, after = level(settled[:eighth]), level(settled[-eighth:])
        # What counts on for ever, as a total does, rises far more.
        if before > 0 and 1 + 0.3 * (rise - 1) <= after / before <= 1 + 4 * (rise - 1):
            return True
    return False
