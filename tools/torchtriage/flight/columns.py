"""Columns of integers for the calls of one rank in one process group, and their compact form on the way to the parent.

A column that holds one value, or counts up by one, is that value or its start; any other is base64 of a compressed
typed array. Training repeats itself, so that is some hundred bytes, and ranks that made the same calls have the same
text: the parent keeps and decodes it once for all of them. Stdlib only: used by the worker (packing) and by the parent
(unpacking).
"""

from __future__ import annotations

import base64
import zlib
from array import array
from collections import Counter, deque
from itertools import accumulate, islice
from operator import sub
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

FINISHED, UNFINISHED, UNKNOWN = 1, 0, 2
MAX_P2P_ROWS = 2000
_TYPES: dict[str, Literal["B", "H", "I", "b", "h", "i", "q"]] = {c: c for c in ("B", "H", "I", "b", "h", "i", "q")}
# (type, least, most), narrowest first: what is narrow is quick to compress.
_RANGES: tuple[tuple[Literal["B", "b", "H", "h", "I", "i"], int, int], ...] = (
    ("B", 0, 0xFF),
    ("b", -0x80, 0x7F),
    ("H", 0, 0xFFFF),
    ("h", -0x8000, 0x7FFF),
    ("I", 0, 0xFFFFFFFF),
    ("i", -0x80000000, 0x7FFFFFFF),
)
_DIFFERENCES = "~"


class Columns:
    """What the worker collects for one group of one dump."""

    __slots__ = ("_batches", "desc", "leaps", "n_p2p", "name", "p2p", "rows", "uid")

    def __init__(self, name: str, desc: str, uid: int) -> None:
        """``uid`` is the process-local number of the group that pg_status uses, -1 when unknown."""
        self.name = name
        self.desc = desc
        self.uid = uid
        self.rows: list[tuple[int, int, int, int, int]] = []
        """One per call: index of the entry, sequence number, token, finished, creation time in ms (0: unknown)."""
        self.p2p: deque[list[Any]] = deque(maxlen=MAX_P2P_ROWS)
        """The newest unfinished sends and receives: index of the entry, route, p2p_seq_id, signature, time in ms."""
        self.n_p2p = 0
        self.leaps: list[list[int]] = []
        """Where the sequence numbers rise by more than they can, as ``leaps.py`` finds it."""
        self._batches: deque[int] = deque(maxlen=MAX_P2P_ROWS)

    def end_batch(self, seq: int) -> None:
        """Forget the sends and receives of a batch that is finished: only the entry that closes a batch has events."""
        while self.p2p and self.p2p[-1][4] == seq:
            self.p2p.pop()

    def open_batch(self, seq: int) -> None:
        """Note that the entry which closes a batch is there and unfinished."""
        self._batches.append(seq)

    def open_batches(self) -> set[int] | None:
        """Batches whose closing entry is there and unfinished; None where no batches are seen."""
        seqs = [row[4] for row in self.p2p]
        return set(self._batches) if self._batches or len(set(seqs)) < len(seqs) else None

    def leave_out_finished_batches(self) -> None:
        """Forget what is left of finished batches in a dump of active calls alone.

        Sends and receives of a batch have no events and so are never finished; the entry that closes their batch is
        finished and left out. Only where that is missing, and the program is seen to batch its calls.
        """
        if (unfinished := self.open_batches()) is not None:
            self.p2p = deque((row for row in self.p2p if row[4] in unfinished), MAX_P2P_ROWS)

    def leave_out_finished_parts(self, closing: set[int]) -> None:
        """The same for collectives made of several entries, of which the last has one of the ``closing`` tokens."""
        n_parts = Counter(row[1] for row in self.rows)
        if len(n_parts) == len(self.rows):
            return
        last = {row[1]: row[2] for row in self.rows}
        parts = {row[2] for row in self.rows if n_parts[row[1]] > 1} - closing
        # Of the oldest one the ring buffer may have kept the last part alone.
        self.rows = [
            row for row in self.rows if last[row[1]] in closing or (n_parts[row[1]] == 1 and row[2] not in parts)
        ]

    @property
    def has_parts(self) -> bool:
        """Whether calls of it are made of several entries."""
        return len({row[1] for row in self.rows}) < len(self.rows)

    def next_seq(self) -> int:
        """The sequence number after the last one, for dumps that record none."""
        return self.rows[-1][1] + 1 if self.rows else 1


def pack_columns(columns: Columns) -> dict[str, Any]:
    """JSON-able form of a group's columns.

    ``ms`` are milliseconds since ``base_ms`` plus one, 0 when unknown; ``last_ms`` is the latest creation time;
    ``open`` the first unfinished call that the dump holds, as [row, creation time in ms]; ``has_parts``: some calls are
    made of several entries.
    """
    by_field: list[tuple[int, ...]] = list(zip(*columns.rows, strict=True)) or [()] * 5
    index, seq, token, finished, ms = by_field
    base_ms = min(filter(None, ms), default=0)
    # 32 bits of milliseconds are 49 days, longer than any ring buffer looks back.
    since = tuple([min(t - base_ms + 1, 0xFFFFFFFF) if t else 0 for t in ms])
    unfinished = finished.index(UNFINISHED) if UNFINISHED in finished else None
    open_batches = columns.open_batches()
    return {
        "name": columns.name,
        "desc": columns.desc,
        "uid": columns.uid,
        "n": len(index),
        "index": _pack(index, rising=True),
        "seq": _pack(seq, rising=True),
        "token": _pack(token),
        "finished": _pack(finished),
        "base_ms": base_ms,
        "last_ms": max(ms, default=0),
        "ms": _pack(since, rising=True),
        "open": None if unfinished is None else [unfinished, ms[unfinished]],
        "has_parts": columns.has_parts,
        "leaps": columns.leaps,
        "open_batches": None if open_batches is None else sorted(open_batches),
        "p2p": list(columns.p2p),
        "n_p2p": columns.n_p2p,
    }


def _pack(column: Sequence[int], *, rising: bool = False) -> list[Any]:
    n = len(column)
    if not n:
        return ["=", 0]
    first, last = column[0], column[-1]
    if first == last and column.count(first) == n:
        return ["=", first]
    if rising:
        if last - first == n - 1 and column == tuple(range(first, first + n)):
            return ["+", first]
        column = [first, *map(sub, islice(column, 1, None), column)]
    least, most = min(column), max(column)
    code = next((code for code, low, high in _RANGES if low <= least and most <= high), "q")
    content = base64.b64encode(zlib.compress(array(code, column).tobytes(), 1)).decode("ascii")
    return [_DIFFERENCES * rising + code, content]


def unpack_column(packed: Any, n: int) -> Sequence[int]:
    """The inverse of packing; a column of another length than ``n`` is refused with ValueError."""
    how, content = packed
    if how == "=":
        return [content] * n
    if how == "+":
        return range(content, content + n)
    code = how.removeprefix(_DIFFERENCES)
    if code not in _TYPES:
        raise ValueError("unknown column type")
    column = array(_TYPES[code])
    try:
        column.frombytes(zlib.decompressobj().decompress(base64.b64decode(content), n * column.itemsize + 1))
    except zlib.error as error:
        raise ValueError("a column is damaged") from error
    if len(column) != n:
        raise ValueError("a column has the wrong length")
    return column if how == code else array("q", accumulate(column))
