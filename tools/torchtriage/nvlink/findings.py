"""What is wrong with a GPU or one of its links, as the judges of this room say it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.nvlink.gpus import Gpu, Line
    from torchtriage.nvlink.health_catalogue import Level
    from torchtriage.nvlink.xid_catalogue import Action

Kind = Literal[
    "link_down", "link_slow", "errors_grow", "errors_stand_out", "bit_errors_high", "fabric_not_ready",
    "fabric_unhealthy", "recovery_wanted", "memory", "lost", "smi_hangs",
]  # fmt: skip
GRADES: tuple[Level, ...] = ("ok", "degraded", "failed")


@dataclass(frozen=True)
class Finding:
    """One thing that was seen. ``level`` ok: worth a word, and no fault."""

    kind: Kind
    level: Level
    gpu: Gpu | None
    says: str
    action: Action = "none"
    links: tuple[int, ...] = ()
    lines: tuple[Line, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


def worst(levels: Sequence[Level]) -> Level:
    """The gravest of them."""
    return GRADES[max((GRADES.index(level) for level in levels), default=0)]


def numbers(links: Sequence[int]) -> str:
    """Links in a sentence: "link 3", "links 0, 4 and 5"."""
    if len(links) == 1:
        return f"link {links[0]}"
    shown = [str(link) for link in links[:18]]
    return f"links {', '.join(shown[:-1])} and {shown[-1]}" if shown else "no link"
