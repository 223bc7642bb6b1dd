"""From lines that held a literal of a known message to what those messages say, each line counted once. Pure.

A message may be looked for by several literals: their pattern ids are the message's key, "#" and a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.quotes import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchtriage.logs.records import Line, PatternHits
    from torchtriage.report import Evidence

SIGNAL = "log.template"
MAX_READINGS = 16
"""Kept of one message and the same ranks: lines that differ in what they tell."""

_INTEGER = lazy_re(r"-?\d{1,200}")
_REGEX_CHARS = 4096


@dataclass(frozen=True)
class Reading:
    """One message of the same ranks, with the same facts: the first such line."""

    key: str
    ranks: tuple[int, ...]
    """Ranks that the line names, else the rank that printed it; empty when neither is known."""
    facts: dict[str, str | int]
    evidence: Evidence
    order: int
    count: int
    """How many lines of these ranks are this message, whatever their facts."""


def readings(hits: Iterable[PatternHits], regexes: Mapping[str, str | None]) -> list[Reading]:
    """What known messages say, in the order in which they were printed.

    Args:
        hits: of a timeline; those of other patterns are left out.
        regexes: the messages by key, and what reads the facts off their lines.
    """
    grouped: dict[tuple[str, tuple[int, ...]], list[PatternHits]] = {}
    for hit in hits:
        key = hit.pattern_id.rpartition("#")[0]
        if key in regexes:
            rank = hit.lines[0].rank
            grouped.setdefault((key, hit.ranks or (() if rank is None else (rank,))), []).append(hit)
    found = [
        reading for (key, ranks), group in grouped.items() for reading in _readings_of(key, ranks, group, regexes[key])
    ]
    return sorted(found, key=lambda reading: reading.order)


def _readings_of(key: str, ranks: tuple[int, ...], group: list[PatternHits], regex: str | None) -> list[Reading]:
    compiled = re.compile(regex) if regex else None
    held = {line.key: (line, hit) for hit in reversed(group) for line in hit.lines}
    count = _count(group)
    found: dict[tuple[tuple[str, str | int], ...], Reading] = {}
    for line, hit in sorted(held.values(), key=lambda pair: pair[0].order):
        facts = _facts(line, hit, compiled)
        said = tuple(facts.items())
        if said not in found:
            found[said] = Reading(key, ranks, facts, quote(line, SIGNAL, hit.text), line.order, count)
            if len(found) >= MAX_READINGS:
                break
    return list(found.values())


def _facts(line: Line, hit: PatternHits, compiled: re.Pattern[str] | None) -> dict[str, str | int]:
    """The facts of this very line: a hit knows only those of its first one."""
    match = compiled.search(line.text, 0, _REGEX_CHARS) if compiled is not None and line is not hit.lines[0] else None
    if match is None:
        return {name: _value(value) for name, value in hit.facts.items()}
    said = {name: value[:200] for name, value in match.groupdict().items() if value is not None}
    return {name: _value(value) for name, value in said.items() if not name.startswith("rank")}


def _value(text: str) -> str | int:
    return int(text) if _INTEGER.fullmatch(text) else text


def _count(group: list[PatternHits]) -> int:
    """Lines, each once: literals of one message that meet in a line meet in all lines like it."""
    of_owner: dict[object, list[PatternHits]] = {}
    for hit in group:
        of_owner.setdefault(hit.lines[0].owner, []).append(hit)
    total = 0
    for hits in of_owner.values():
        kept = [line.key for hit in hits for line in hit.lines]
        overlap = len(set(kept)) < len(kept)
        total += max(hit.count for hit in hits) if overlap else sum(hit.count for hit in hits)
    return total
