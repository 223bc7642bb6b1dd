"""What known messages in the logs mean, for the verdict: each once, those that bring one nearer to the cause first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.knowledge.templates import ROLES
from torchtriage.report import Recognised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.knowledge.load import Playbook
    from torchtriage.report import Evidence
    from torchtriage.verdict.findings import Observation

MAX_RECOGNISED = 8
MAX_BESIDE_DIAGNOSIS = 3
# Worth telling of a pasted line; noise in whole logs, and beside another message in the same line.
_SAY_LITTLE = frozenset({"info", "boilerplate"})


def recognise(observations: Sequence[Observation], book: Playbook, *, pasted: bool) -> list[Recognised]:
    """The messages of a job that is not diagnosed; of a pasted text also those that say little."""
    found = _recognised(observations, book)
    return [r for r in found if pasted or r.role not in _SAY_LITTLE][:MAX_RECOGNISED]


def recognise_beside(
    observations: Sequence[Observation], book: Playbook, quoted: Sequence[Evidence]
) -> list[Recognised]:
    """The messages that a diagnosis does not quote yet."""
    places = {(e.artefact, e.where) for e in quoted}
    rest = [r for r in _recognised(observations, book) if _place(r) not in places]
    return [r for r in rest if r.role not in _SAY_LITTLE][:MAX_BESIDE_DIAGNOSIS]


def _recognised(observations: Sequence[Observation], book: Playbook) -> list[Recognised]:
    by_template: dict[str, list[Observation]] = {}
    for observation in observations:
        if observation.name == "log.template":
            by_template.setdefault(observation.facts["template"], []).append(observation)
    firsts: list[tuple[int, float, Recognised]] = []
    for name, group in by_template.items():
        template = book.templates[name]
        first = min(group, key=lambda o: o.order)
        # All observations of the same ranks tell the same count, whatever else they tell.
        counts = {o.ranks: o.facts["count"] for o in group}
        found = Recognised(
            template=name,
            means=template.means,
            role=template.role,
            count=sum(counts.values()),
            ranks=sorted(frozenset[int]().union(*(o.ranks for o in group))),
            evidence=first.evidence[0],
        )
        firsts.append((ROLES.index(template.role), first.order, found))
    telling = {_place(found) for *_, found in firsts if found.role not in _SAY_LITTLE}
    ordered = [found for *_, found in sorted(firsts, key=lambda item: item[:2])]
    return [found for found in ordered if found.role not in _SAY_LITTLE or _place(found) not in telling]


def _place(known: Recognised) -> tuple[str, str]:
    return known.evidence.artefact, known.evidence.where
