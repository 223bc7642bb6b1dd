"""How ranks, sizes and lists are written in sentences, the same everywhere."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_RANGES = 8


def rank_ranges(ranks: Iterable[int]) -> str:
    """Ranks as people write them: "0-3,7"."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    for index in range(1, len(ordered) + 1):
        if index == len(ordered) or ordered[index] != ordered[index - 1] + 1:
            first, last = ordered[start], ordered[index - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = index
    return ",".join(parts)


def rank_words(ranks: Iterable[int]) -> str:
    """Ranks in a sentence: "rank 1", "ranks 0-3, 7 and 12 more"."""
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    parts = rank_ranges(ordered).split(",")
    shown = parts[:MAX_RANGES]
    n_shown = sum(int(p.rpartition("-")[2]) - int(p.partition("-")[0]) + 1 for p in shown)
    more = f" and {len(ordered) - n_shown} more" if n_shown < len(ordered) else ""
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(shown)}{more}"


def bytes_words(size_bytes: float) -> str:
    """A number of bytes as people and PyTorch write it: "14.00 MiB"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes:.0f} bytes"


def some(names: Sequence[str], limit: int = 3) -> str:
    """The first few of a list: "a, b, c and 4 more"."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def quoted(text: str, limit: int) -> str:
    """What a job wrote, in a sentence of ours: cleaned, cut, and in quotation marks of its own."""
    inner = clean_text(text, limit).replace('"', "'")
    return f'"{inner}"'


def utc_words(time_s: float) -> str | None:
    """Seconds since the epoch as "2026-05-28T12:04:01Z"; None for what no clock shows."""
    try:
        return f"{datetime.fromtimestamp(time_s, timezone.utc):%Y-%m-%dT%H:%M:%SZ}" if time_s > 0 else None
    except (OverflowError, ValueError, OSError):
        return None
