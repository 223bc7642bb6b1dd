"""torchtriage: from what a failed distributed PyTorch job left behind to one verdict.

The tools are functions of this package (``torchtriage.triage(paths)``, ...) and load what they need when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtriage.artefacts.clean import clean_text
    from torchtriage.artefacts.evidence import check_evidence
    from torchtriage.bundle.tool import collect
    from torchtriage.flight.tool import analyze_flight_recorder
    from torchtriage.knowledge.tool import playbook
    from torchtriage.memory.tool import memory_snapshot
    from torchtriage.nvlink.tool import nvlink_health
    from torchtriage.stacks.live import record_flamegraph
    from torchtriage.stacks.tool import dump_stacks
    from torchtriage.verdict.tool import explain_symptom, triage

__version__ = "0.1.0"

_HOMES = {
    "analyze_flight_recorder": "torchtriage.flight.tool",
    "check_evidence": "torchtriage.artefacts.evidence",
    "clean_text": "torchtriage.artefacts.clean",
    "collect": "torchtriage.bundle.tool",
    "dump_stacks": "torchtriage.stacks.tool",
    "explain_symptom": "torchtriage.verdict.tool",
    "memory_snapshot": "torchtriage.memory.tool",
    "nvlink_health": "torchtriage.nvlink.tool",
    "playbook": "torchtriage.knowledge.tool",
    "record_flamegraph": "torchtriage.stacks.live",
    "triage": "torchtriage.verdict.tool",
}

__all__ = [
    "analyze_flight_recorder",
    "check_evidence",
    "clean_text",
    "collect",
    "dump_stacks",
    "explain_symptom",
    "memory_snapshot",
    "nvlink_health",
    "playbook",
    "record_flamegraph",
    "triage",
]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchtriage' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
