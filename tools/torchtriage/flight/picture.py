"""The first divergence as a small table: ranks by sequence number around the call, or who waits where in a circle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.naming import named
from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.flight.findings import Finding
    from torchtriage.flight.model import Group, Track, Vocabulary

CALLS_BEFORE = 3
CALLS_AFTER = 2
MAX_ROWS = 6
_SHORT = (
    ("reduce_scatter", "RS"), ("all_reduce_barrier", "BAR"), ("barrier", "BAR"), ("all_reduce", "AR"),
    ("allreduce", "AR"), ("all_gather", "AG"), ("allgather", "AG"), ("broadcast", "BC"), ("all_to_all", "A2A"),
    ("alltoall", "A2A"), ("gather", "GA"), ("scatter", "SC"), ("reduce", "RE"),
)  # fmt: skip
_NOT_MADE, _NOT_RECORDED = ".", "?"
_BY_SEQUENCE = frozenset(
    {
        "collective_missing", "collective_extra", "type_mismatch", "size_mismatch", "dtype_mismatch",
        "behind_on_enqueue", "behind_on_complete",
    }
)  # fmt: skip


def picture_of(finding: Finding, vocabulary: Vocabulary) -> list[str]:
    """Lines for a terminal; none where the calls cannot be shown or a table would say no more than the sentence."""
    if finding.waits_in:
        return _waiting(finding.waits_in)
    if finding.kind not in _BY_SEQUENCE or finding.seq is None:
        return []
    tracks = finding.group.tracks
    first = max(finding.seq - CALLS_BEFORE, min((track.first for track in tracks), default=0))
    last = min(finding.seq + CALLS_AFTER, max((track.last for track in tracks), default=0))
    if len(tracks) < 2 or last < first:
        return []
    columns = range(first, last + 1)
    usual = {seq: _most_common([track.calls.hard_at(seq) for track in tracks]) for seq in columns}
    rows: dict[tuple[str, ...], list[int]] = {}
    for track in tracks:
        cells = tuple(_cell(track, seq, usual[seq], vocabulary) for seq in columns)
        rows.setdefault(cells, []).append(track.rank)
    return _table(finding.group, columns, rows) if len(rows) > 1 else []


def _table(group: Group, columns: range, rows: Mapping[tuple[str, ...], Sequence[int]]) -> list[str]:
    shown = sorted(rows.items(), key=lambda row: row[1][0])[:MAX_ROWS]
    heads = [clean_text(f"group {group.label()}, seq", 60), *(clean_text(rank_words(ranks), 60) for _, ranks in shown)]
    width = max(map(len, heads))
    widths = [max(len(str(seq)), *(len(cells[i]) for cells, _ in shown)) for i, seq in enumerate(columns)]
    lines = [
        f"{head:<{width}}  {'  '.join(f'{cell:>{w}}' for cell, w in zip(cells, widths, strict=True))}"
        for head, cells in zip(heads, [tuple(map(str, columns)), *(cells for cells, _ in shown)], strict=True)
    ]
    if len(rows) > MAX_ROWS:
        lines.append(f"and {len(rows) - MAX_ROWS} more kinds of ranks")
    used = "".join(cell for cells, _ in shown for cell in cells)
    legend = [
        text
        for mark, text in (
            ("*", "* unfinished"),
            ("!", "! differs from most"),
            (".", ". not made"),
            ("?", "? not kept"),
        )
        if mark in used
    ]
    return [*lines, f"({', '.join(legend)})"] if legend else lines


def _cell(track: Track, seq: int, usual: int, vocabulary: Vocabulary) -> str:
    if seq > track.last:
        return _NOT_RECORDED if track.cut else _NOT_MADE
    number = track.soft_at(seq)
    if not number:
        return _NOT_RECORDED
    unfinished = track.first_unfinished is not None and seq >= track.first_unfinished
    return short(vocabulary.calls[number].op) + "!" * (track.calls.hard_at(seq) != usual) + "*" * unfinished


def short(op: str) -> str:
    """A few letters for an operation."""
    return next((letters for name, letters in _SHORT if name in op), named(op)[:6])


def _most_common(numbers: Sequence[int]) -> int:
    known = [number for number in numbers if number]
    return max(sorted(set(known)), key=known.count, default=0)


def _waiting(places: Mapping[str, Sequence[int]]) -> list[str]:
    shown = sorted(places.items(), key=lambda item: item[1][0])[:MAX_ROWS]
    heads = [rank_words(ranks) for _, ranks in shown]
    width = max(map(len, heads))
    lines = [f"{head:<{width}}  waits first in {place}" for head, (place, _) in zip(heads, shown, strict=True)]
    return [*lines, f"and {len(places) - MAX_ROWS} more places"] if len(places) > MAX_ROWS else lines
