"""What the words of a text speak for: entries of the playbook, something normal, or another field altogether.

Words only order what the evidence leaves open. What a log line proves stands above them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.knowledge.search import ELSEWHERE, NORMAL, scores
from torchtriage.report import DIAGNOSED_FROM, SUSPECTED_FROM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchtriage.knowledge.load import Playbook
    from torchtriage.verdict.decide import Decision
    from torchtriage.verdict.gather import Findings

# What an observation that speaks for a mode is worth beside the words, as a share of the best score.
SUPPORTED, LIKELY, PROVEN = 0.2, 0.4, 1.0


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

    @property
    def best_score(self) -> float:
        """Of the entry that the words fit best."""
        return self.words_alone[0][1] if self.words_alone else 0.0

    @property
    def lead(self) -> float:
        """How far the best entry's words stand before the second's: 0 (not at all) to 1."""
        if len(self.words_alone) < 2:
            return 0.0
        return 1 - self.words_alone[1][1] / self.words_alone[0][1]


def weigh(text: str, book: Playbook, decision: Decision, findings: Findings) -> Weighed:
    """Hold a text against everything that is known in words."""
    telling = without_symptoms(text, findings)
    found = scores(book, telling)
    everything = found if telling == text else scores(book, text)
    words_alone = {name: score for name, score in found.items() if name in book.entries}
    together = dict(words_alone)
    top = max(together.values(), default=1.0)
    for assessment in decision.assessments:
        worth = _worth(assessment.confidence) * top
        together[assessment.entry.id] = together.get(assessment.entry.id, 0.0) + worth
    return Weighed(
        modes=_ordered(together),
        words_alone=_ordered(words_alone),
        normal=_best(everything, NORMAL, book),
        elsewhere=_best(everything, ELSEWHERE, book),
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


def without_symptoms(text: str, findings: Findings) -> str:
    """The text without the lines that every failure of their kind prints: a time-out speaks for no cause."""
    symptoms = {
        evidence.where
        for observation in findings.observations
        if observation.name == "log.template" and observation.facts["role"] not in ("cause", "ambiguous")
        for evidence in observation.evidence
    }
    return "\n".join(line for n, line in enumerate(text.split("\n"), start=1) if str(n) not in symptoms)
