"""What is said about a job, as signals: the phrases are data (skill/statements.yaml); what is denied is not said."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.evidence import quote_line
from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.cached import load_yaml
from torchtriage.knowledge.locate import data_root
from torchtriage.lazy_re import lazy_re
from torchtriage.prose.read import sentences
from torchtriage.report import Scope, Signal
from torchtriage.signals import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    Ways = list[tuple[re.Pattern[str], tuple[str, ...]]]
    """How a thing is said: expressions, each with the words of which a sentence holds one that it matches."""

MAX_EVIDENCE = 3
_DENIED_WITHIN_CHARS = 32
_DENIAL = lazy_re(
    r"\b(?:no|not|never|without|nothing|none|nobody|neither|nor|free of|zero|0|\w{2,6}n't|cannot|can not)\b"
    r"[^,;:]{0,28}$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Statement:
    """One thing that people say, in the ways they say it."""

    signal: str
    regexes: tuple[re.Pattern[str], ...]
    needed: tuple[tuple[str, ...], ...]
    """For each of them the words of which a sentence holds one that it matches; empty when none is certain."""
    deniable: bool
    """Whether a negation before it takes it back."""
    matches: tuple[str, ...]
    rejects: tuple[str, ...]


def said(text: str, artefact: str = "text") -> list[Signal]:
    """The signals ``said.*`` of a text, each once, with the sentences that say it."""
    found: dict[str, Signal] = {}
    read = list(sentences(text))
    everything = [(s, list(zip(s.regexes, s.needed, strict=True))) for s in load_statements()]
    possible = _possible(everything, "\n".join(s.text for s in read if s.text.isascii()).lower())
    for sentence in read:
        for statement, groups in _said_in(sentence.text, possible if sentence.text.isascii() else everything):
            signal = found.get(statement.signal)
            if signal is not None and len(signal.evidence) >= MAX_EVIDENCE:
                continue
            evidence = quote_line(artefact, sentence.line_number, sentence.line, statement.signal)
            if signal is None:
                facts = {name: _value(value) for name, value in groups.items() if value is not None}
                ranks = [value for name, value in facts.items() if name == "rank" and isinstance(value, int)]
                found[statement.signal] = Signal(
                    name=statement.signal, scope=Scope(ranks=ranks), facts=facts, evidence=[evidence]
                )
            elif evidence not in signal.evidence:
                signal.evidence.append(evidence)
    return list(found.values())


def _possible(known: Sequence[tuple[Statement, Ways]], lowered: str) -> list[tuple[Statement, Ways]]:
    """Of all statements the ways that need no word, or one that occurs, with the words that do.

    Nearly all fall out here, once per text, so that few are looked for in each of its sentences.
    """
    found: list[tuple[Statement, Ways]] = []
    for statement, ways in known:
        occurring = [(regex, needed, tuple(word for word in needed if word in lowered)) for regex, needed in ways]
        if kept := [(regex, words) for regex, needed, words in occurring if words or not needed]:
            found.append((statement, kept))
    return found


def _said_in(
    sentence: str, known: Sequence[tuple[Statement, Ways]]
) -> Iterator[tuple[Statement, Mapping[str, str | None]]]:
    lowered = sentence.lower() if sentence.isascii() else None  # other letters have more than one small form
    for statement, ways in known:
        for regex, needed in ways:
            if needed and lowered is not None and not any(word in lowered for word in needed):
                continue
            match = regex.search(sentence)
            if match and not (statement.deniable and is_denied(sentence, match.start())):
                yield statement, match.groupdict()
                break


def is_denied(sentence: str, start: int) -> bool:
    """Whether a negation stands shortly before a place of a sentence, in the same clause."""
    return _DENIAL.search(sentence[max(0, start - _DENIED_WITHIN_CHARS) : start]) is not None


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@functools.cache
def load_statements(root: Path | None = None) -> tuple[Statement, ...]:
    """The phrases of skill/statements.yaml.

    Raises:
        KnowledgeError: one names no registered signal, or its expression cannot be used.
    """
    path = (root or data_root()) / "skill" / "statements.yaml"
    found: list[Statement] = []
    for raw in load_yaml(path, _with_needed_words, "needed1")["statements"]:
        if raw["signal"] not in SIGNALS:
            raise KnowledgeError(f"{path}: no signal is called {raw['signal']!r}")
        found.append(
            Statement(
                signal=raw["signal"],
                regexes=tuple(lazy_re(regex, re.IGNORECASE) for regex in raw["regexes"]),
                needed=tuple(tuple(words) for words in raw["needed"]),
                deniable=raw.get("deniable", True),
                matches=tuple(raw.get("matches", ())),
                rejects=tuple(raw.get("rejects", ())),
            )
        )
    return tuple(found)


def _with_needed_words(content: Any) -> Any:
    """The phrases, each expression with the words that it needs, so that few of them are ever compiled."""
    from torchtriage.knowledge.needed_words import needed_words

    for raw in content["statements"]:
        try:
            raw["needed"] = [needed_words(regex) for regex in raw["regexes"]]
        except re.error as error:
            raise KnowledgeError(f"{raw['signal']}: {error}") from error
    return content
