"""Collective time-outs as ProcessGroupNCCL's watchdog words them, and what all ranks' words together show.

A rank that prints such a line is normally a victim: the signals say what did not finish where, and which rank did not
join it where that can be told. They never say why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.logs.scan.read import MAX_RECORDS_KEPT
from torchtriage.logs.watchdog.absent import Rest, absent_signals
from torchtriage.logs.watchdog.call_sites import add_call_sites, call_of, site_of
from torchtriage.logs.watchdog.cross import cross_signals
from torchtriage.logs.watchdog.differ import judge_groups
from torchtriage.logs.watchdog.groups import GroupView, Job, view_job
from torchtriage.logs.watchdog.lines import Timeout, quote_record, read_progress, read_timeouts
from torchtriage.logs.watchdog.reports import desync_words, report_signals
from torchtriage.logs.watchdog.waits import wait_signals
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.logs.records import Timeline
    from torchtriage.logs.watchdog.lines import Progress

MAX_SIGNALS = 128
_MAX_PROGRESS = 64
_ABSENCE_KINDS = ("watchdog", "progress", "watchdog_nccl2", "wait_timeout", "observed_dump")
# The watchdog looks every second or so; this far above the time-out, the watchdog itself was held up.
_LATE_FACTOR = 1.5
_LATE_MS = 60_000
_SIGKILL = -9
# How a process ends when its own watchdog or its launcher ends it.
_NO_END_OF_ITS_OWN = frozenset({None, -6, -15})


def watchdog_signals(
    timeline: Timeline, exceptions: Sequence[Signal] = (), exits: Sequence[Signal] = ()
) -> list[Signal]:
    """``log.watchdog_timeout`` per rank and group, and what ranks show together.

    Args:
        timeline: what was read.
        exceptions: signals of ``exceptions.exception_signals``; a rank with one of its own did not just go missing.
        exits: signals of ``exits.exit_signals``, likewise.
    """
    progress = read_progress(timeline)
    timeouts = read_timeouts(timeline, progress)
    add_call_sites(timeline, timeouts)
    job = view_job(timeline, timeouts, progress, complete=_is_complete(timeline))
    desync = desync_words(timeline)
    told = {view.key: _progress_facts(view) for view in job.views.values()}
    signals = [_signal(timeout, job, told, desync) for timeout in timeouts[:MAX_SIGNALS]]
    signals += cross_signals(job) + judge_groups(job)
    signals += absent_signals(timeline, job, progress, timeouts, _rest(exceptions, exits))
    return signals + report_signals(timeline) + wait_signals(timeline)


def hang_orders(timeline: Timeline) -> dict[int | None, int]:
    """The place of the first line that says that a collective timed out, by the rank that printed it."""
    found: dict[int | None, int] = {}
    for kind in ("watchdog", "watchdog_nccl2", "wait_timeout"):
        for line in timeline.records.get(kind, ()):
            found[line.rank] = min(line.order, found.get(line.rank, line.order))
    return found


def waits_of_ranks(signals: Sequence[Signal]) -> dict[int, set[tuple[object, ...]]]:
    """In which calls ranks timed out: group, number, operation and sizes; without a number no two calls are one."""
    found: dict[int, set[tuple[object, ...]]] = {}
    for signal in signals:
        if signal.name == "log.watchdog_timeout":
            call = tuple(signal.facts[fact] for fact in ("group", "seq", "operation", "numel_in", "numel_out"))
            for rank in signal.scope.ranks:
                found.setdefault(rank, set()).update({call} if signal.facts["seq"] is not None else ())
    return found


def _is_complete(timeline: Timeline) -> bool:
    """Whether all lines were kept, so that the lack of one says something."""
    kept = [timeline.records.get(kind, ()) for kind in _ABSENCE_KINDS]
    return all(len(lines) < MAX_RECORDS_KEPT and all(line.weight == 1 for line in lines) for lines in kept)


def _rest(exceptions: Sequence[Signal], exits: Sequence[Signal]) -> Rest:
    own = [s for s in exceptions if s.name == "log.python_exception" and not s.facts["cascade"]]
    ended = {rank for signal in own for rank in signal.scope.ranks}
    killed: set[int] = set()
    for signal in exits:
        if signal.facts["by_launcher"] and signal.facts["exitcode"] == _SIGKILL:
            killed.update(signal.scope.ranks)
        elif not signal.facts["by_launcher"] and signal.facts["exitcode"] not in _NO_END_OF_ITS_OWN:
            ended.update(signal.scope.ranks)
    return Rest(frozenset(ended), frozenset(killed))


def _progress_facts(view: GroupView) -> dict[str, list[int]]:
    """Enqueued and completed by rank, those that are furthest behind first where not all can be told."""
    furthest = sorted(view.progress.values(), key=_behindness)[:_MAX_PROGRESS]
    return {str(told.rank): [told.enqueued, told.completed] for told in sorted(furthest, key=lambda told: told.rank)}


def _behindness(told: Progress) -> tuple[int, int, int]:
    return (told.enqueued, told.completed, told.rank)


def _signal(timeout: Timeout, job: Job, told: dict[str | None, dict[str, list[int]]], desync: list[str]) -> Signal:
    name = "log.watchdog_timeout"
    group = timeout.group
    view = job.views.get(None if group is None else "default_pg" if group.is_default else group.key)
    shown = (view.name if view else None) or (group and (group.desc or group.key)) or None
    facts: dict[str, Any] = {
        "seq": timeout.seq,
        "operation": timeout.operation,
        "numel_in": timeout.numel_in,
        "numel_out": timeout.numel_out,
        "timeout_ms": timeout.timeout_ms,
        "ran_ms": timeout.ran_ms,
        "last_enqueued": timeout.progress.enqueued if timeout.progress else None,
        "last_completed": timeout.progress.completed if timeout.progress else None,
        "group": shown,
        "from_this_rank": True,
        "late_watchdog": _is_late(timeout),
    }
    more = {
        "call": call_of(timeout),
        "where": site_of(timeout),
        "desync": desync,
        "progress_by_rank": told.get(view.key if view else None),
    }
    facts |= {fact: value for fact, value in more.items() if value}
    evidence = [quote_record(timeout.line, name)]
    if timeout.progress:
        evidence.append(quote_record(timeout.progress.line, name))
    return Signal(
        name=name,
        scope=Scope(ranks=[] if timeout.rank is None else [timeout.rank], groups=[shown] if shown else []),
        facts=facts,
        evidence=evidence,
        time_s=timeout.line.time_s,
    )


def _is_late(timeout: Timeout) -> bool:
    """Whether the time-out was noticed long after it was over."""
    if timeout.ran_ms is None or not timeout.timeout_ms:
        return False
    return timeout.ran_ms > timeout.timeout_ms * _LATE_FACTOR and timeout.ran_ms - timeout.timeout_ms > _LATE_MS
