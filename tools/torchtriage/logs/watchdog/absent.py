"""Ranks that say nothing where their peers report a time-out, and ranks that say nothing at all.

Such a rank was not waiting in the collective: it is in host code, or gone. That nothing was printed proves something
only if the group's members are known, all lines were kept, and the job lived on long enough for the rank to print.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.metrics.progress import stepping
from torchtriage.logs.quotes import quote
from torchtriage.logs.watchdog.differ import call_facts, waiting_words
from torchtriage.logs.watchdog.lines import quote_record
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchtriage.logs.records import Line, OwnerLines, Timeline
    from torchtriage.logs.watchdog.groups import GroupView, Job
    from torchtriage.logs.watchdog.lines import Progress, Timeout

# What a rank says it is doing, by the word that its own last line begins with or holds.
_ACTIVITY = lazy_re(
    r"\b(?:(?P<saving>(?:[Ss]aving|SAVING|[Ww]riting|[Cc]onsolidating|[Ee]xporting|[Uu]ploading|[Cc]onverting)\b)"
    r"|(?P<evaluating>(?:[Ee]valuating|[Vv]alidating|[Gg]enerating)\b)"
    r"|(?P<compiling>(?:[Cc]ompiling|[Aa]utotuning|AUTOTUNE|[Bb]uilding extension)\b)"
    r"|(?P<preparing>(?:[Tt]okenizing|[Pp]reprocessing|[Dd]ownloading|[Ii]ndexing|[Pp]reparing|[Bb]uilding index)\b))"
)
# Below this the launcher may have ended the rank before its own watchdog came round.
_LONG_ENOUGH_S = 5.0
_MAX_KINDS = 8


@dataclass(frozen=True)
class Rest:
    """What other parts of the logs say of ranks."""

    ended: frozenset[int]
    """Ranks that ended with an exception of their own."""
    killed_on_order: frozenset[int]
    """Ranks that the launcher had asked to end, and then had to kill."""


def absent_signals(
    timeline: Timeline, job: Job, progress: list[Progress], timeouts: list[Timeout], rest: Rest
) -> list[Signal]:
    """``log.rank_without_timeout``, ``log.waits_alone`` and ``log.rank_silent``."""
    signals: list[Signal] = []
    if job.complete and len(job.world) > 1:
        told: dict[int, Progress] = {p.rank: p for p in progress}
        observed = {line.rank for line in timeline.records.get("observed_dump", ()) if line.rank is not None}
        for view in _known(job):
            signals += _without_timeout(timeline, job, view, told, observed, rest)
    if timeouts:
        signals += _silent(job, timeouts)
    return signals


def _known(job: Job) -> list[GroupView]:
    """Groups whose members are known: where the default group waits, else where a whole small job does."""
    waiting = [view for view in job.views.values() if view.timeouts and not view.mixed]
    default = [view for view in waiting if view.is_default]
    return default or waiting[:_MAX_KINDS]


def _without_timeout(
    timeline: Timeline, job: Job, view: GroupView, told: dict[int, Progress], observed: set[int], rest: Rest
) -> list[Signal]:
    members = job.members(view)
    # Only some ranks print steps; of the others it is known that they were there when their end was watched.
    known = job.seen | rest.killed_on_order
    missing = sorted(r for r in members & known if r not in job.waits)
    if not missing or members - known - view.timeouts.keys():
        return []
    alone = _finished_peers(timeline, view, missing, rest)
    if len(missing) > len(view.timeouts):
        return alone
    first = min(view.timeouts.values(), key=lambda timeout: timeout.line.order)
    long_enough = _lived_on_s(timeline, first.line) >= _LONG_ENOUGH_S
    kinds: dict[tuple[object, ...], tuple[dict[str, Any], list[int]]] = {}
    for rank in missing:
        facts = _facts(timeline.owners.get(rank), rank, first.line, alive=rank in told or rank in observed, rest=rest)
        printed = facts.pop("printed") and (facts["finished"] or long_enough)
        facts["sure"] = printed or facts["watchdog_alive"] or facts["ended"]
        if facts["sure"] or facts["needed_sigkill"]:
            kinds.setdefault(tuple(facts.values()), (facts, []))[1].append(rank)
    signals: list[Signal] = []
    for facts, ranks in list(kinds.values())[:_MAX_KINDS]:
        name = "log.rank_without_timeout"
        own = next((own.last_own for r in ranks if (own := timeline.owners.get(r)) and own.last_own), None)
        shown = next((told[r].line for r in ranks if r in told), own)
        facts |= call_facts(first) | {
            "group": view.name,
            "n_ranks": len(members),
            "waiting": waiting_words(view.timeouts),
            "last_line": clean_text(own.text) if own else None,
        }
        evidence = [quote_record(line, name) for line in (first.line, shown) if line is not None]
        scope = Scope(ranks=ranks, groups=view.groups)
        signals.append(Signal(name=name, scope=scope, facts=facts, evidence=evidence, time_s=first.line.time_s))
    return signals + alone


def _facts(own: OwnerLines | None, rank: int, before: Line, *, alive: bool, rest: Rest) -> dict[str, Any]:
    """What one rank did instead of waiting, as far as lines tell."""
    last = own.last_own if own is not None else None
    return {
        "printed": last is not None,
        "ended": rank in rest.ended,
        "finished": own is not None and last is not None and own.last_own_is_finish,
        "watchdog_alive": alive,
        "needed_sigkill": rank in rest.killed_on_order,
        "activity": _activity(last, before),
        "is_rank_zero": rank == 0,
    }


def _finished_peers(timeline: Timeline, view: GroupView, missing: list[int], rest: Rest) -> list[Signal]:
    """One rank waits in a call, and all others ended their program in good order without it."""
    if len(view.timeouts) != 1:
        return []
    said = [timeline.owners.get(rank) for rank in missing]
    if not all(own is not None and own.last_own is not None and own.last_own_is_finish for own in said):
        return []
    if rest.ended.intersection(missing):
        return []
    name = "log.waits_alone"
    ((rank, timeout),) = view.timeouts.items()
    steps = {own.last_step for r, own in stepping(timeline).items() if r in {rank, *missing}}
    finish = next(own.last_own for own in said if own is not None and own.last_own is not None)
    facts = call_facts(timeout) | {
        "group": view.name,
        "n_ranks": 1 + len(missing),
        "peers_finished": True,
        "same_steps": len(steps) == 1,
        "by_rank_zero": rank == 0,
    }
    evidence = [quote_record(timeout.line, name), quote(finish, name)]
    return [Signal(name=name, scope=Scope(ranks=[rank], groups=view.groups), facts=facts, evidence=evidence)]


def _activity(own: Line | None, before: Line) -> str | None:
    match = _ACTIVITY.search(own.text[:400]) if own is not None else None
    if own is None or match is None:
        return None
    # Behind the time-out a rank may save what it can, which is no reason for it; nobody compiles or tokenizes then.
    late = own.order > before.order
    return None if late and match.lastgroup not in ("compiling", "preparing") else match.lastgroup


def _lived_on_s(timeline: Timeline, since: Line) -> float:
    """How long after a line the job still printed, in seconds; 0 when no times are known."""
    lines: Iterable[Line] = (line for kept in timeline.records.values() for line in kept)
    times = [line.time_s for line in lines if line.time_s is not None]
    times += [report.line.time_s for report in timeline.launcher if report.line.time_s is not None]
    said = (own.last_own for own in timeline.owners.values() if own.last_own is not None)
    times += [line.time_s for line in said if line.time_s is not None]
    return max(times) - since.time_s if times and since.time_s is not None else 0.0


def _silent(job: Job, timeouts: list[Timeout]) -> list[Signal]:
    """``log.rank_silent``: a few ranks that must exist print nothing where nearly all others print."""
    missing = sorted(job.silent)
    if not missing:
        return []
    name = "log.rank_silent"
    facts: dict[str, Any] = {"n_ranks": len(job.world | job.silent), "n_silent": len(missing)}
    views = [view for view in job.views.values() if view.timeouts and not view.mixed]
    if views:
        # The wait that a silent rank is known to belong to tells most, else that of most ranks.
        view = max(views, key=lambda view: (bool(job.silent & job.members(view)), len(view.timeouts)))
        shown = view.timeouts[min(view.timeouts)]
        facts |= call_facts(shown) | {"group": view.name, "waiting": waiting_words(view.timeouts)}
    else:
        shown = timeouts[0]
    return [Signal(name=name, scope=Scope(ranks=missing), facts=facts, evidence=[quote_record(shown.line, name)])]
