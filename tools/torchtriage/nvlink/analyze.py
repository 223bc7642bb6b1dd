"""From what is wrong with links and GPUs to signals. Pure.

Memory errors and lost GPUs that XML or CSV answers tell are told by the room of the GPUs already, and are left to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.nvlink.gpus import gpus_of
from torchtriage.nvlink.judge import judge
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.nvlink.findings import Finding
    from torchtriage.nvlink.gpus import Answer, Gpu
    from torchtriage.report import Evidence

MAX_SIGNALS = 64
MAX_QUOTES = 6
SIGNAL_OF = {
    "link_down": "nvlink.link_down",
    "link_slow": "nvlink.link_slow",
    "errors_grow": "nvlink.errors_grow",
    "errors_stand_out": "nvlink.errors_stand_out",
    "bit_errors_high": "nvlink.bit_errors_high",
    "fabric_not_ready": "nvlink.fabric_not_ready",
    "fabric_unhealthy": "nvlink.fabric_unhealthy",
    "recovery_wanted": "nvlink.recovery_wanted",
    "memory": "gpu.ecc_uncorrected",
    "lost": "gpu.fell_off",
}
_OF_THE_GPUS = frozenset({"memory", "lost"})


@dataclass
class LinkFindings:
    """What the answers show."""

    signals: list[Signal] = field(default_factory=list[Signal])
    read: set[str] = field(default_factory=set[str])
    """Artefacts that told something of links or GPUs."""


def analyze(answers: Sequence[Answer], ranks: Mapping[str, Sequence[int]] | None = None) -> LinkFindings:
    """Judge answers, given as (artefact name, what the reader returned).

    Args:
        answers: of one or several nodes.
        ranks: the ranks on a GPU, by ``node/bus id`` or bus id.
    """
    found = LinkFindings()
    found.read = {name for name, answer in answers if answer["gpus"] or answer["matrices"] or answer["failures"]}
    for finding in judge(gpus_of(answers)).faults:
        if finding.kind not in _OF_THE_GPUS:
            found.signals.append(_signal(finding, ranks or {}))
    del found.signals[MAX_SIGNALS:]
    return found


def signal_evidence(finding: Finding) -> list[Evidence]:
    """The quotations that stand for a finding."""
    name = SIGNAL_OF.get(finding.kind)
    return [line.evidence(name) for line in finding.lines[:MAX_QUOTES]] if name is not None else []


def _signal(finding: Finding, ranks: Mapping[str, Sequence[int]]) -> Signal:
    gpu = finding.gpu
    facts: dict[str, Any] = {key: value for key, value in finding.facts.items() if value is not None}
    scope = Scope()
    if gpu is not None:
        facts |= {"gpu": gpu.key}
        scope = Scope(
            ranks=_ranks(gpu, ranks),
            gpus=[gpu.key],
            links=[f"{gpu.key} link {number}" for number in finding.links],
            hosts=[gpu.host] if gpu.host else [],
        )
    if finding.links:
        facts["link"] = finding.links[0]
    return Signal(name=SIGNAL_OF[finding.kind], scope=scope, facts=facts, evidence=signal_evidence(finding))


def _ranks(gpu: Gpu, ranks: Mapping[str, Sequence[int]]) -> list[int]:
    node = gpu.node.rpartition("/")[2]
    return sorted(ranks.get(f"{node}/{gpu.bus}", ranks.get(gpu.bus or "", ())))
