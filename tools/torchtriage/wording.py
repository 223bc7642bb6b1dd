"""How ranks, sizes, lists and next commands are written, the same everywhere."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torchtriage.report import NextCheck

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


def next_lines(checks: Sequence[NextCheck]) -> list[str]:
    """What to do next, each as a command that can be pasted and why."""
    return [line for check in checks for line in (f"Next: {command_line(check)}", f"      {clean_text(check.why)}")]


def command_line(check: NextCheck) -> str:
    """A check as a command line that can be typed."""
    words = ["torchtriage", check.tool.replace("_", "-")]
    for name, value in check.arguments.items():
        values = [pasteable(str(v)) for v in (value if isinstance(value, list) else [value])]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        flag = f"--{_SINGULAR.get(name, name).replace('_', '-')}"
        if name in _POSITIONAL:
            words += values
        elif value is True:
            words.append(flag)
        else:
            words += [word for v in values for word in (flag, v)]
    return " ".join(words)


_POSITIONAL = frozenset({"paths", "query"})
_SINGULAR = {"pids": "pid"}  # flags that are given once for each value


def pasteable(path: Path | str) -> str:
    """A path that the caller named, as a word of a shell's command line: whole, and printable whatever it holds."""
    text = str(path)
    if text.isprintable():
        return text if _NEEDS_NO_QUOTES.fullmatch(text) else shlex.quote(text)
    escaped = "".join(c if c.isprintable() and c not in "'\\" else _escape(c) for c in text)
    return f"$'{escaped}'"


def _escape(character: str) -> str:
    if character in "'\\":
        return "\\" + character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors="surrogateescape"))


_NEEDS_NO_QUOTES = lazy_re(r"[\w@%+=:,./\-]{1,4096}")
