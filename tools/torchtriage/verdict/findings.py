"""What was observed, in the one form that decisions are made on, and what could not be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.signals import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchtriage.gpu.analyze import Process
    from torchtriage.report import Evidence, Signal


@dataclass(frozen=True)
class Observation:
    """A signal, or a line that holds a playbook text or is a known message: the form that decisions are made on."""

    name: str
    ranks: frozenset[int]
    facts: Mapping[str, Any]
    evidence: tuple[Evidence, ...]
    pattern: str | None = None
    """Key of the playbook text that matched, for ``log.pattern``; of the template, for ``log.template``."""
    order: float = 0.0
    """Position in the log's timeline; 0 where there is none."""
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Which kind of artefact it was read off: log, flight, stacks, ras, ..."""
        return self.name.partition(".")[0]

    @property
    def health(self) -> str:
        """What the registry says it means: trouble, neutral or good."""
        return SIGNALS[self.name].health


@dataclass
class Findings:
    """Everything that was observed, and what could not be."""

    observations: list[Observation] = field(default_factory=list[Observation])
    ranks: set[int] = field(default_factory=set[int])
    """All ranks that anything speaks of."""
    kinds_read: set[str] = field(default_factory=set[str])
    members: set[int] = field(default_factory=set[int])
    """The ranks of the job's process groups, where dumps tell them: there are no others."""
    unjudged: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    losses: list[str] = field(default_factory=list[str])
    """What was damaged, unreadable or missing: forbids the verdict healthy."""
    notes: list[str] = field(default_factory=list[str])
    """What was left out without loss."""
    processes: list[Process] = field(default_factory=list["Process"])
    """The job's processes by node, where their facts were given."""
    gpu_names: dict[str, str] = field(default_factory=dict[str, str])
    """Product names of GPUs, by node and bus id."""
    gpu_ranks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """The ranks on GPUs, by node and bus id."""
    hints: list[str] = field(default_factory=list[str])
    """What analyzers could not tell from their kind of evidence; of interest when nothing else tells it either."""


def add_signals(signals: Iterable[Signal], findings: Findings) -> None:
    """Add what an analyzer found."""
    findings.observations.extend(_of_signal(s) for s in signals)


def add_own_signals(signals: Iterable[Signal], findings: Findings) -> None:
    """Add what an analyzer found, but for what speaks of ranks that the job does not have, as another job's does."""
    add_signals((s for s in signals if not findings.members or findings.members.issuperset(s.scope.ranks)), findings)


def _of_signal(signal: Signal) -> Observation:
    order = signal.facts.get("order", 0)
    return Observation(
        name=signal.name,
        ranks=frozenset(signal.scope.ranks),
        facts=signal.facts,
        evidence=tuple(signal.evidence),
        order=float(order) if isinstance(order, (int, float)) else 0.0,
        hosts=tuple(signal.scope.hosts),
        gpus=tuple(signal.scope.gpus),
        links=tuple(signal.scope.links),
    )
