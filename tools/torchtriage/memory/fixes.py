"""Which changes would free how much in a snapshot: changes are data (skill/memory_fixes.yaml), the bytes its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torchtriage.tool_reports import MemoryFix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.memory.analyze import Judged

MAX_FIXES = 8


def load_fixes() -> list[dict[str, Any]]:
    """The changes that are known.

    Raises:
        KnowledgeError: the file is missing or no YAML.
    """
    from torchtriage.knowledge.cached import load_yaml
    from torchtriage.knowledge.locate import data_root

    return cast("list[dict[str, Any]]", load_yaml(data_root() / "skill" / "memory_fixes.yaml")["fixes"])


def fixes_for(judged: Sequence[Judged], n_ranks: int) -> list[MemoryFix]:
    """The changes that help with the first finding, then those for the others, each group most bytes first."""
    known = load_fixes()
    chosen: dict[str, MemoryFix] = {}
    for one in judged:
        fitting = [fix for fix in known if one.finding.kind in fix["kinds"] and _applies(fix, one.finding.facts)]
        told = [
            MemoryFix(action=fix["action"], frees_bytes=_freed(fix, one, n_ranks), unless=fix.get("unless", ""))
            for fix in fitting
        ]
        told = [fix for fix in told if fix.frees_bytes is None or fix.frees_bytes > 0]
        for fix in sorted(told, key=lambda f: -(f.frees_bytes or 0)):
            chosen.setdefault(fix.action, fix)
    return list(chosen.values())[:MAX_FIXES]


def _applies(fix: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    return all(bool(facts.get(name, False)) == wanted for name, wanted in fix.get("when", {}).items())


def _freed(fix: Mapping[str, Any], judged: Judged, n_ranks: int) -> int | None:
    """Bytes that the change would free in this snapshot; None when they cannot be told."""
    shares: Mapping[str, Any] = fix.get("frees", {})
    if not shares:
        return None
    finding, total = judged.finding, 0.0
    amounts = {
        **judged.snapshot.device(finding.device)["by_category"],
        "found": finding.bytes,
        "requested": finding.facts.get("requested_bytes", 0),
        "expandable": finding.facts.get("expandable_would_free_bytes", 0),
        "stranded": finding.facts.get("stranded_bytes", 0),
    }
    for name, share in shares.items():
        # Over how many ranks it would be sharded is not known when only one is given: of two at least.
        total += amounts.get(name, 0) * ((1 - 1 / max(2, n_ranks)) if share == "per_rank" else float(share))
    return round(total)
