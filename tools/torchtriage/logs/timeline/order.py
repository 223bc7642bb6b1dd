"""One order for lines of many files, and ranks for processes and tasks.

Inside a file its own order is the truth; across files it is wall-clock time, corrected for what the clocks of hosts are
known to differ. Steps that files have in common put lines without a time in their place. A file that has neither comes
last: nothing may look like a first mover because it lacks a time.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.timeline.clocks import EventTime, StepTime, is_stamped
from torchtriage.logs.timeline.times import StampReader, seconds_of, year_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchtriage.logs.metrics.collect import OwnerMetrics
    from torchtriage.logs.records import Line, Owner, OwnerLines, Timeline

_DEFAULT_YEAR = 1970
_DAY_S = 86400
_COMPARED_ROWS = 32
"""First and last rows of a rank that clocks are compared by."""
_TIMEOUT = lazy_re(r"\(SeqNum=(\d{1,19}), OpType=(\w{1,60}),.{0,120}?Timeout\(ms\)=(\d{1,19})\)")


def put_in_order(timeline: Timeline) -> None:
    """Give every kept line its time, its rank and its place, and give processes whose rank is known that rank."""
    lines = {id(line): line for line in _lines(timeline)}
    ordered = sorted(lines.values(), key=lambda line: line.key)
    by_source: defaultdict[int, list[Line]] = defaultdict(list)
    for line in ordered:
        by_source[line.key[0]].append(line)
    _read_stamps(by_source)
    if len(by_source) > 1:
        steps = {id(row.line): row.step for own in timeline.metrics.owners.values() for row in own.rows}
        _agree_on_time(timeline, by_source)
        places = _places(by_source, steps)
        ordered.sort(key=lambda line: places[id(line)])
    for order, line in enumerate(ordered):
        line.order = order
        line.rank = _rank(line.owner, timeline)
    for record in timeline.tracebacks:
        record.rank = _rank(record.owner, timeline)
    _join_owners(timeline)


def _read_stamps(by_source: dict[int, list[Line]]) -> None:
    stamps = [line.stamp for lines in by_source.values() for line in lines if line.stamp is not None]
    default_year = next((year for stamp in stamps if (year := year_of(stamp)) is not None), _DEFAULT_YEAR)
    dated = next((s for stamp in stamps if stamp[0] != "clock" and (s := seconds_of(stamp, default_year))), 0.0)
    known: dict[tuple[str, str], float | None] = {}
    for lines in by_source.values():
        with_date = any(line.stamp is not None and line.stamp[0] != "clock" for line in lines)
        reader = StampReader(default_year, dated // _DAY_S * _DAY_S, with_date, known)
        last: tuple[tuple[str, str], float | None] | None = None
        for line in lines:
            if line.stamp is None:
                continue
            if last is None or last[0] != line.stamp:
                last = (line.stamp, reader.read(line.stamp))
            line.time_s = last[1]


def _agree_on_time(timeline: Timeline, by_source: dict[int, list[Line]]) -> None:
    """Learn how clocks differ, and put all times on one clock."""
    clocks = timeline.clocks
    for source, lines in by_source.items():
        hosts = {line.host for line in lines if line.host is not None}
        clocks.clock_of_source[source] = hosts.pop() if len(hosts) == 1 else lines[0].source
    rows: list[StepTime] = []
    for owner, own in timeline.metrics.owners.items():
        kept = own.rows
        for row in kept if len(kept) <= 2 * _COMPARED_ROWS else kept[:_COMPARED_ROWS] + kept[-_COMPARED_ROWS:]:
            line = row.line
            if row.step is not None and line.time_s is not None and is_stamped(line):
                rows.append(StepTime(clocks.clock_of_source[line.key[0]], owner, row.step, line.time_s))
    clocks.learn(rows, _timeouts(timeline))
    if not any(clocks.skew.values()):
        return
    for source, lines in by_source.items():
        skew = clocks.skew.get(clocks.clock_of_source[source], 0.0)
        for line in lines:
            if skew and line.time_s is not None:
                line.time_s -= skew


def _timeouts(timeline: Timeline) -> Iterator[EventTime]:
    """Time-outs of collectives that several ranks took part in, as their watchdogs report them."""
    for line in timeline.records.get("watchdog", ()):
        if line.time_s is not None and is_stamped(line) and (match := _TIMEOUT.search(line.text)):
            yield EventTime(timeline.clocks.clock_of_source[line.key[0]], match.groups(), line.time_s)


def _places(
    by_source: dict[int, list[Line]], steps: dict[int, int | None]
) -> dict[int, tuple[float, float, tuple[int, int, int]]]:
    """What to sort lines by: time, then step, then their place in the files."""
    table = _step_times(by_source, steps)
    places: dict[int, tuple[float, float, tuple[int, int, int]]] = {}
    for lines in by_source.values():
        has_step = any(steps.get(id(line)) is not None for line in lines)
        now = -math.inf if has_step or any(line.time_s is not None for line in lines) else math.inf
        progress = -math.inf
        for line, limit in zip(lines, _next_stamps(lines), strict=True):
            if line.time_s is not None:
                # File order is the truth inside a file, so time never runs backwards there.
                now = max(now, line.time_s)
            if (step := steps.get(id(line))) is not None:
                progress = max(progress, step)
                if not is_stamped(line) and (told := table.at(step)) is not None:
                    now = max(now, min(told, limit))
            places[id(line)] = (now, progress, line.key)
    return places


def _next_stamps(lines: Sequence[Line]) -> list[float]:
    """For each line of a file the next time that is printed behind it; infinite where there is none."""
    limits: list[float] = []
    limit = math.inf
    for line in reversed(lines):
        limits.append(limit)
        if line.time_s is not None and is_stamped(line):
            limit = line.time_s
    return limits[::-1]


class _StepTimes:
    """When steps were done, by the lines that tell it."""

    def __init__(self, times: dict[int, float]) -> None:
        self._steps = sorted(times)
        self._times = times

    def at(self, step: int) -> float | None:
        """The time of the latest known step up to this one."""
        at = bisect.bisect_right(self._steps, step)
        return self._times[self._steps[at - 1]] if at else None


def _step_times(by_source: dict[int, list[Line]], steps: dict[int, int | None]) -> _StepTimes:
    found: defaultdict[int, list[float]] = defaultdict(list)
    for lines in by_source.values():
        for line in lines:
            step = steps.get(id(line))
            if step is not None and line.time_s is not None and is_stamped(line):
                found[step].append(line.time_s)
    return _StepTimes({step: statistics.median(times) for step, times in found.items()})


def _rank(owner: Owner, timeline: Timeline) -> int | None:
    if isinstance(owner, str):
        kind, _, number = owner.partition(":")
        return timeline.rank_of_pid.get(int(number)) if kind == "pid" else timeline.rank_of_task.get(owner)
    return owner


def _lines(timeline: Timeline) -> Iterator[Line]:
    for hits in timeline.hits:
        yield from hits.lines
    for kept in timeline.records.values():
        yield from kept
    for record in timeline.tracebacks:
        yield record.start
        if record.end is not None:
            yield record.end
        for exception in record.exceptions:
            yield exception.line
            for frame in (exception.user_frame, exception.last_frame):
                if frame is not None:
                    yield frame.line
    for report in timeline.launcher:
        yield report.line
    for block in timeline.crashes:
        yield block.start
        for frame in block.frames:
            yield frame.line
    for own in timeline.metrics.owners.values():
        yield from _metric_lines(own)
    for table in timeline.metrics.integers.values():
        for examples in table.examples.values():
            for _, row in examples:
                yield row.line
    for said in timeline.owners.values():
        for line in (said.last_own, said.end_line):
            if line is not None:
                yield line


def _metric_lines(own: OwnerMetrics) -> Iterator[Line]:
    for row in own.rows:
        yield row.line
    if own.last_step_row is not None:
        yield own.last_step_row.line
    for seen in own.nonfinite.values():
        yield seen.row.line
        for row in seen.before:
            yield row.line


def _join_owners(timeline: Timeline) -> None:
    """Let what a process or a task printed count for its rank, together with what it printed under its rank."""
    unnamed = [owner for owner in timeline.owners if isinstance(owner, str)]
    n_unknown = sum(_rank(owner, timeline) is None for owner in unnamed)
    for owner in unnamed:
        rank = _rank(owner, timeline)
        # A task that is not a rank is as good as nobody: it may be a node with several ranks. So is the only process.
        if rank is None and n_unknown > 1 and not owner.startswith("task:"):
            continue
        said = timeline.owners.pop(owner)
        steps = timeline.metrics.owners.pop(owner, None)
        known = timeline.owners.get(rank)
        timeline.owners[rank] = said if known is None else _join(known, said)
        if steps is not None:
            timeline.metrics.owners.setdefault(rank, steps)


def _join(one: OwnerLines, other: OwnerLines) -> OwnerLines:
    """What one process printed under two names."""
    first, second = one, other
    if one.last_own is not None and (other.last_own is None or one.last_own.order > other.last_own.order):
        first, second = other, one
    second.n_lines += first.n_lines
    ends = [line for line in (first.end_line, second.end_line) if line is not None]
    second.end_line = min(ends, key=lambda line: line.order) if ends else None
    return second
