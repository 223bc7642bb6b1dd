"""From the timeline of a job's logs to signals. Pure; causes are the playbook's business."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.logs.crashes.exceptions import exception_signals, ranks_with_exception
from torchtriage.logs.crashes.native import crash_signals
from torchtriage.logs.ends.exits import exit_signals
from torchtriage.logs.metrics.progress import good_signals, step_signals, stepping
from torchtriage.logs.metrics.values import value_signals
from torchtriage.logs.quotes import quote
from torchtriage.logs.watchdog.judgement import hang_orders, waits_of_ranks, watchdog_signals

if TYPE_CHECKING:
    from torchtriage.logs.records import PatternHits, Timeline
    from torchtriage.report import Evidence, Signal

_PATTERN = "log.pattern"


@dataclass(frozen=True)
class PatternMatch:
    """One pattern that lines of the same ranks matched: the first such line, and how many there were."""

    pattern_id: str
    ranks: list[int]
    """Ranks that the line names, else the rank that printed it; empty when neither is known."""
    facts: dict[str, Any]
    evidence: Evidence
    order: int
    time_s: float | None
    count: int


@dataclass(frozen=True)
class LogFindings:
    """What the logs say."""

    signals: list[Signal] = field(default_factory=list["Signal"])
    pattern_matches: list[PatternMatch] = field(default_factory=list[PatternMatch])
    rank_of_pid: dict[int, int] = field(default_factory=dict[int, int])
    ranks_seen: list[int] = field(default_factory=list[int])
    world_size: int | None = None
    notes: list[str] = field(default_factory=list[str])


def analyze(timeline: Timeline) -> LogFindings:
    """Read the signals off a timeline that ``read.scan`` returned."""
    exceptions = exception_signals(timeline)
    ended = {rank for signal in exceptions if signal.name == "log.python_exception" for rank in signal.scope.ranks}
    exits = exit_signals(timeline, ranks_with_exception(timeline))
    watchdog = watchdog_signals(timeline, exceptions, exits)
    values, well = value_signals(timeline)
    steps = step_signals(timeline, hang_orders(timeline), ended, waits_of_ranks(watchdog))
    uneven = any(signal.name in ("log.left_loop_early", "log.stopped_early") for signal in steps)
    good = good_signals(timeline, values_are_well=well and not uneven)
    return LogFindings(
        signals=exceptions + exits + crash_signals(timeline) + watchdog + values + steps + good,
        pattern_matches=_matches(timeline),
        rank_of_pid=dict(timeline.rank_of_pid),
        ranks_seen=timeline.ranks_seen,
        world_size=timeline.world_size,
        notes=timeline.notes + _silent(timeline),
    )


def _matches(timeline: Timeline) -> list[PatternMatch]:
    merged: dict[tuple[str, tuple[int, ...]], list[PatternHits]] = {}
    for hits in timeline.hits:
        rank = hits.lines[0].rank
        ranks = hits.ranks or (() if rank is None else (rank,))
        merged.setdefault((hits.pattern_id, ranks), []).append(hits)
    matches: list[PatternMatch] = []
    for (pattern_id, ranks), group in merged.items():
        first = min(group, key=lambda hits: hits.lines[0].order)
        line = first.lines[0]
        matches.append(
            PatternMatch(
                pattern_id=pattern_id,
                ranks=list(ranks),
                facts=dict(first.facts),
                evidence=quote(line, _PATTERN, first.text),
                order=line.order,
                time_s=line.time_s,
                count=sum(hits.count for hits in group),
            )
        )
    return sorted(matches, key=lambda match: match.order)


def _silent(timeline: Timeline) -> list[str]:
    notes: list[str] = []
    seen = set(timeline.ranks_seen)
    size = timeline.world_size
    if size is not None and seen and size - len(seen) > 0 and size <= 1 << 20:
        missing = [rank for rank in range(size) if rank not in seen]
        notes.append(f"{len(missing)} of {size} ranks appear in no log: {_short(missing)}")
    wordless = sorted(
        owner
        for owner, own in timeline.owners.items()
        if isinstance(owner, int) and own.last_own is None and stepping(timeline) and owner not in stepping(timeline)
    )
    if wordless:
        notes.append(f"ranks that print no steps: {_short(wordless)}")
    return notes


def _short(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:12])
    return shown if len(ranks) <= 12 else f"{shown}, ... ({len(ranks)} in all)"
