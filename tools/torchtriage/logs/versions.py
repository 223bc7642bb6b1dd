"""The versions that a job's logs print, as signals: in lines that hold one of the texts that software prints there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.logs.quotes import quote
from torchtriage.logs.records import LogPattern
from torchtriage.prose.versions import MAX_MENTIONS, Mention, printed_texts, versions_in
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchtriage.logs.records import PatternHits

SIGNAL = "log.version"
_KEY = "version/"


def version_patterns() -> list[LogPattern]:
    """What a log is searched for."""
    return [LogPattern(id=_KEY + text, text=text) for text in printed_texts()]


def is_version_pattern(pattern_id: str) -> bool:
    """Whether a pattern is one of :func:`version_patterns`."""
    return pattern_id.startswith(_KEY)


def version_signals(hits: Iterable[PatternHits]) -> list[Signal]:
    """The signals ``log.version``: each version once, with the first rank that printed it."""
    found: dict[Mention, Signal] = {}
    for hit in hits:
        if not is_version_pattern(hit.pattern_id):
            continue
        for line in hit.lines:
            for mention in versions_in(line.text):
                if mention not in found and len(found) < MAX_MENTIONS:
                    ranks = [] if line.rank is None else [line.rank]
                    facts = dict(vars(mention))
                    found[mention] = Signal(
                        name=SIGNAL, scope=Scope(ranks=ranks), facts=facts, evidence=[quote(line, SIGNAL)]
                    )
    return list(found.values())
