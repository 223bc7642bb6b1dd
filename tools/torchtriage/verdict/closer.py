"""The words of a verdict: the entry's own, or closer ones where an observation at the culprit says more.

One failure mode has one proof and one next check, and may still come about in ways that are mended differently: a file
call waits for a dead server, or for whoever should write into a pipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.verdict.decide import facts_fit
from torchtriage.verdict.summary import fill, known_facts, summary_of
from torchtriage.wording import rank_words, some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.knowledge.entries import Closer
    from torchtriage.verdict.decide import Assessment
    from torchtriage.verdict.findings import Observation

MAX_PIDS = 16


@dataclass(frozen=True)
class Words:
    """How a verdict is put."""

    summary: str
    cause: str
    fix: list[str]


def words_of(best: Assessment, observations: Sequence[Observation]) -> Words:
    """The verdict's summary, cause and fixes."""
    entry = best.entry
    for closer in entry.closer:
        at_culprit = [
            o
            for o in observations
            if o.name in closer.when.signals
            and facts_fit(o.facts, closer.when.where)
            and (not o.ranks or not best.ranks or o.ranks & best.ranks)
        ]
        if at_culprit and (words := _filled(closer, best, at_culprit)) is not None:
            return words
    return Words(summary_of(best), entry.cause, list(entry.fix))


def _filled(closer: Closer, best: Assessment, observed: Sequence[Observation]) -> Words | None:
    """None when a name in summary or cause is not known; the entry's own fixes stand in for those that lack one."""
    known = known_facts(observed)
    if ranks := best.ranks or frozenset[int]().union(*(o.ranks for o in observed)):
        known["ranks"] = rank_words(ranks)
    if hosts := sorted({clean_text(host, 80) for o in observed for host in o.hosts}):
        known["hosts"] = some(hosts)
    # A pid names a process on its own host alone, and these may stand in a command.
    pids = sorted({pid for o in observed for pid in o.facts.get("pids", ()) if isinstance(pid, int)})
    if pids and len(hosts) < 2:
        known["pids"] = " ".join(map(str, pids[:MAX_PIDS]))
    summary = fill(closer.summary, known) if closer.summary else summary_of(best)
    cause = fill(closer.cause, known) if closer.cause else best.entry.cause
    fixes = [fill(fix, known) for fix in closer.fix]
    told = [fix for fix in fixes if fix is not None]
    if summary is None or cause is None:
        return None
    own = () if told and len(told) == len(fixes) else best.entry.fix
    return Words(summary[:1].upper() + summary[1:], cause, [*told, *own])
