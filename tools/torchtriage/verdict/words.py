"""What the words of a text speak for: entries of the playbook, something normal, or another field altogether.

Words only order what the evidence leaves open. What a log line proves stands above them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.knowledge.search import ELSEWHERE, MAX_LINE_CHARS, NORMAL, scores, words
from torchtriage.prose.read import MAX_LINES
from torchtriage.prose.telling import NOTHING, PROSE, telling
from torchtriage.report import DIAGNOSED_FROM, SUSPECTED_FROM

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torchtriage.knowledge.load import Playbook
    from torchtriage.verdict.decide import Decision
    from torchtriage.verdict.findings import Findings

# What an observation that speaks for a mode is worth beside the words, as a share of the best score.
SUPPORTED, LIKELY, PROVEN = 0.2, 0.4, 1.0
_NEAREST = 5
_FACTS = "config:"  # how the last line begins when it holds facts about the job
MIN_TOLD_WORDS = 6  # fewer beside the lines that every failure of a kind prints, and those lines are all there is


@dataclass(frozen=True)
class NoFailure:
    """The thing of one kind that is no failure and fits best."""

    id: str
    score: float
    share: float
    """Its score as a share of the best entry's: above 1 the text fits it better than any failure."""


@dataclass(frozen=True)
class Weighed:
    """How a text weighs."""

    modes: tuple[tuple[str, float], ...]
    """Entries by words and evidence together, best first."""
    words_alone: tuple[tuple[str, float], ...]
    """The same by words alone."""
    normal: NoFailure
    elsewhere: NoFailure
    is_bare: bool = False
    """Whether next to nothing was told beside such lines as every failure of a kind prints."""
    outdated: tuple[str, ...] = ()
    """Of the entries that the words fit best, those that the versions of the text rule out."""

    @property
    def best_score(self) -> float:
        """Of the entry that the words fit best."""
        return self.words_alone[0][1] if self.words_alone else 0.0

    @property
    def lead(self) -> float:
        """How far the best entry's words stand before the second's: 0 (not at all) to 1."""
        return self.lead_beside(())

    def lead_beside(self, others: Collection[str]) -> float:
        """The same, where some entries are no rivals of the best one: what it refines shares its words."""
        rivals = [score for name, score in self.words_alone[1:] if name not in others]
        return 1 - rivals[0] / self.best_score if rivals else 0.0


def weigh(text: str, book: Playbook, decision: Decision, findings: Findings) -> Weighed:
    """Hold a text against everything that is known in words."""
    lines = text.split("\n", MAX_LINES)[:MAX_LINES]
    weights = telling(text)
    facts = max((n for n, line in enumerate(lines) if line.strip()), default=0)
    if lines[facts].startswith(_FACTS):
        weights[facts] = PROSE
    symptoms = _symptom_lines(findings)
    without = [NOTHING if n in symptoms else weight for n, weight in enumerate(weights, start=1)]
    told = _weighted(line for line in zip(lines, without, strict=True) if not line[0].startswith(_FACTS))
    is_bare = len(told) < MIN_TOLD_WORDS
    # Who writes all in one line writes the cause beside the symptom.
    found = scores(book, _weighted(zip(lines, weights if is_bare else without, strict=True)))
    everything = scores(book, _weighted(zip(lines, weights, strict=True)))
    versions = decision.by_version
    all_words = {name: score for name, score in found.items() if name in book.entries}
    words_alone = {name: score for name, score in all_words.items() if name not in versions.outdated}
    together = dict(words_alone)
    top = max(together.values(), default=1.0)
    for name in versions.supports.keys() & together.keys():
        together[name] += SUPPORTED * top
    for assessment in decision.assessments:
        worth = _worth(assessment.confidence) * top
        together[assessment.entry.id] = together.get(assessment.entry.id, 0.0) + worth
    return Weighed(
        modes=_ordered(together),
        words_alone=_ordered(words_alone),
        normal=_best(everything, NORMAL, book),
        elsewhere=_best(everything, ELSEWHERE, book),
        is_bare=is_bare,
        outdated=tuple(name for name, _ in _ordered(all_words)[:_NEAREST] if name in versions.outdated),
    )


def _worth(confidence: float) -> float:
    if confidence >= DIAGNOSED_FROM:
        return PROVEN
    return LIKELY if confidence >= SUSPECTED_FROM else SUPPORTED


def _ordered(found: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _best(found: Mapping[str, float], kind: str, book: Playbook) -> NoFailure:
    best_entry = max((score for name, score in found.items() if name in book.entries), default=0.0)
    named = [(score, name.removeprefix(kind)) for name, score in found.items() if name.startswith(kind)]
    score, name = max(named, default=(0.0, ""))
    return NoFailure(name, score, score / max(best_entry, 1.0))


def _weighted(lines: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The words of lines with what they count, those that count most first."""
    found: dict[str, float] = {}
    for line, weight in lines:
        if weight > NOTHING:
            for word in words(line[:MAX_LINE_CHARS]):
                found[word] = max(weight, found.get(word, NOTHING))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _symptom_lines(findings: Findings) -> set[int]:
    """The numbers of the lines that every failure of their kind prints: a time-out speaks for no cause."""
    return {
        int(evidence.where)
        for observation in findings.observations
        if observation.name == "log.template" and observation.facts["role"] not in ("cause", "ambiguous")
        for evidence in observation.evidence
        if evidence.where.isdecimal()
    }
