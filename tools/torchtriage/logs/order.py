"""One order for lines of many files, and ranks for processes.

Inside a file its own order is the truth; across files wall-clock time is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.logs.times import seconds_of, year_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchtriage.logs.metrics import OwnerMetrics
    from torchtriage.logs.records import Line, Owner, Timeline

_DEFAULT_YEAR = 1970


def put_in_order(timeline: Timeline) -> None:
    """Give every kept line its time, its rank and its place, and give processes whose rank is known that rank."""
    lines = {id(line): line for line in _lines(timeline)}
    ordered = sorted(lines.values(), key=lambda line: line.key)
    years = [year for line in ordered if line.stamp is not None and (year := year_of(line.stamp)) is not None]
    default_year = years[0] if years else _DEFAULT_YEAR
    times: dict[int, float] = {}
    latest: dict[int, float] = {}
    known: dict[tuple[str, str], float | None] = {}
    for line in ordered:
        if line.stamp is not None:
            if line.stamp not in known:
                known[line.stamp] = seconds_of(line.stamp, default_year)
            line.time_s = known[line.stamp]
        source = line.key[0]
        if line.time_s is not None:
            # File order is the truth inside a file, so time never runs backwards there.
            latest[source] = max(latest.get(source, line.time_s), line.time_s)
        times[id(line)] = latest.get(source, float("-inf"))
    if len({line.key[0] for line in ordered}) > 1:
        ordered.sort(key=lambda line: (times[id(line)], line.key))
    for order, line in enumerate(ordered):
        line.order = order
        line.rank = _rank(line.owner, timeline.rank_of_pid)
    for record in timeline.tracebacks:
        record.rank = _rank(record.owner, timeline.rank_of_pid)
    _join_owners(timeline)


def _rank(owner: Owner, rank_of_pid: dict[int, int]) -> int | None:
    if isinstance(owner, str):
        return rank_of_pid.get(int(owner.partition(":")[2]))
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
    """Let what a process printed count for its rank, unless the rank printed under its own name too."""
    for owner in [owner for owner in timeline.owners if isinstance(owner, str)]:
        rank = _rank(owner, timeline.rank_of_pid)
        said = timeline.owners.pop(owner)
        steps = timeline.metrics.owners.pop(owner, None)
        if rank is None:
            continue
        timeline.owners.setdefault(rank, said)
        if steps is not None:
            timeline.metrics.owners.setdefault(rank, steps)
