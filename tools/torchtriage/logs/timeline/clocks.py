"""How well the clocks of several logs agree, and whether the order of two lines is therefore known.

Every host has a clock; a log whose lines name no single host counts as having one of its own. Ranks of a synchronous
job print one step at nearly the same time, so the median difference over common steps is the skew of two clocks (or of
their time zones). Time-outs of one collective on several ranks tell skews of whole half-hours only: they may really lie
minutes apart. Where nothing tells a skew, stamps that lie close together do not tell an order.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from torchtriage.logs.records import Line

MIN_COMMON_STEPS = 5
TOLERANCE_S = 2.0
"""Stamps of clocks whose skew is not known must be this far apart to tell an order."""
MIN_SKEW_S = 1.0
"""Smaller differences may as well be a rank's own lateness, and are left as they are."""
_MAX_SPREAD_S = 2.0
_ZONE_STEP_S = 1800.0
_MAX_FROM_ZONE_S = 120.0
_MAX_SKEW_S = 400 * 86400.0


@dataclass
class Clocks:
    """What is known of the clocks of a timeline's sources."""

    skew: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds by which a clock is ahead, by host or file name; only clocks whose skew is known, 0 included."""
    clock_of_source: dict[int, str] = field(default_factory=dict[int, str])
    _error_s: dict[str, float] = field(default_factory=dict[str, float])

    def order_is_known(self, first: Line, second: Line) -> bool:
        """Whether it is certain which of two lines was printed first; inside one file its own order is the truth."""
        if first.key[0] == second.key[0]:
            return True
        if first.time_s is None or second.time_s is None:
            return False
        if first.time_s > second.time_s:
            first, second = second, first
        # A line without a stamp of its own came at some time after the stamp that it inherits.
        if not is_stamped(first) or first.time_s is None or second.time_s is None:
            return False
        gap = second.time_s - first.time_s
        one, other = self.clock_of_source.get(first.key[0]), self.clock_of_source.get(second.key[0])
        if one is not None and one == other:
            return gap > 0 and gap >= _resolution_s(first)
        if one in self._error_s and other in self._error_s:
            return gap > max(self._error_s[one] + self._error_s[other], _resolution_s(first))
        return gap >= TOLERANCE_S

    def learn(self, steps: Iterable[StepTime], timeouts: Iterable[EventTime]) -> None:
        """Estimate the skew of every clock from what they all saw."""
        found = _from_steps(list(steps))
        for clock, skew in _from_timeouts(list(timeouts)).items():
            found.setdefault(clock, skew)
        if len(found) < 2:
            return
        # The clock in the middle is the reference, so that one wrong clock does not move all others.
        middle = statistics.median_low([estimate.skew_s for estimate in found.values()])
        for clock, estimate in found.items():
            skew = estimate.skew_s - middle
            self.skew[clock] = skew if abs(skew) >= MIN_SKEW_S else 0.0
            self._error_s[clock] = estimate.error_s + (abs(skew) if abs(skew) < MIN_SKEW_S else 0.0)


@dataclass(frozen=True)
class StepTime:
    """When a rank printed a step, by which clock."""

    clock: str
    owner: Hashable
    step: int
    time_s: float


@dataclass(frozen=True)
class EventTime:
    """When something happened that several clocks saw; ``event`` is the same for all of them."""

    clock: str
    event: Hashable
    time_s: float


@dataclass(frozen=True)
class _Estimate:
    skew_s: float
    error_s: float


def is_stamped(line: Line) -> bool:
    """Whether a line carries its time stamp itself."""
    return line.stamp is not None and line.stamp[1] in line.text


def _resolution_s(line: Line) -> float:
    return 0.0 if line.stamp is not None and ("." in line.stamp[1] or "," in line.stamp[1]) else 1.0


def _from_steps(rows: list[StepTime]) -> dict[str, _Estimate]:
    """Skews against the clock that saw most steps."""
    times: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    owners: defaultdict[str, set[Hashable]] = defaultdict(set)
    seen: defaultdict[tuple[str, Hashable, int], int] = defaultdict(int)
    for row in rows:
        seen[row.clock, row.owner, row.step] += 1
    for row in rows:
        owners[row.clock].add(row.owner)
        # A step that comes twice belongs to two epochs or two attempts.
        if seen[row.clock, row.owner, row.step] == 1:
            times[row.clock][row.step].append(row.time_s)
    if len(times) < 2:
        return {}
    medians = {clock: {step: statistics.median(t) for step, t in steps.items()} for clock, steps in times.items()}
    reference = max(medians, key=lambda clock: len(medians[clock]))
    found = {reference: _Estimate(0.0, 0.0)}
    for clock, steps in medians.items():
        # One rank by two clocks is one rank of two attempts: the time between them is no skew.
        if clock == reference or not owners[clock].isdisjoint(owners[reference]):
            continue
        estimate = _compare(steps, medians[reference])
        if estimate is not None:
            found[clock] = estimate
    return found if len(found) > 1 else {}


def _compare(steps: Mapping[int, float], reference: Mapping[int, float]) -> _Estimate | None:
    differences = sorted(steps[step] - reference[step] for step in steps.keys() & reference.keys())
    if len(differences) < MIN_COMMON_STEPS:
        return None
    quarter = len(differences) // 4
    spread = differences[-1 - quarter] - differences[quarter]
    skew = statistics.median(differences)
    if spread > _MAX_SPREAD_S or abs(skew) > _MAX_SKEW_S:
        return None
    return _Estimate(skew, max(spread, 0.05))


def _from_timeouts(events: list[EventTime]) -> dict[str, _Estimate]:
    """Skews of whole half-hours, against the clock that saw most."""
    times: defaultdict[str, dict[Hashable, float]] = defaultdict(dict)
    for event in events:
        known = times[event.clock].get(event.event)
        times[event.clock][event.event] = event.time_s if known is None else min(known, event.time_s)
    if len(times) < 2:
        return {}
    reference = max(times, key=lambda clock: len(times[clock]))
    found = {reference: _Estimate(0.0, 0.0)}
    for clock, seen in times.items():
        common = seen.keys() & times[reference].keys()
        if clock == reference or not common:
            continue
        difference = statistics.median(seen[event] - times[reference][event] for event in common)
        zone = round(difference / _ZONE_STEP_S) * _ZONE_STEP_S
        if zone and abs(difference - zone) <= _MAX_FROM_ZONE_S and abs(zone) <= 86400:
            found[clock] = _Estimate(zone, _MAX_FROM_ZONE_S)
    return found if len(found) > 1 else {}
