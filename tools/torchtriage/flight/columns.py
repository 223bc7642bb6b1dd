"""Columns of integers for the calls of one rank in one process group, and their compact form on the way to the parent.

A column is base64 of a typed array; what counts up by one (the usual case for positions and sequence numbers) is
just its start. Stdlib only: used by the worker (packing) and by the parent (unpacking).
"""

from __future__ import annotations

import base64
from array import array
from typing import Any, Literal

FINISHED, UNFINISHED, UNKNOWN = 1, 0, 2
_TYPES: dict[str, Literal["B", "H", "I", "q"]] = {"B": "B", "H": "H", "I": "I", "q": "q"}


class Columns:
    """What the worker collects for one group of one dump."""

    __slots__ = ("desc", "finished", "index", "ms", "n_p2p", "name", "p2p", "seq", "token", "uid")

    def __init__(self, name: str, desc: str, uid: int) -> None:
        """``uid`` is the process-local number of the group that pg_status uses, -1 when unknown."""
        self.name = name
        self.desc = desc
        self.uid = uid
        self.index = array("I")
        self.seq = array("q")
        self.token = array("I")
        self.finished = array("B")
        self.ms = array("q")
        self.p2p: list[list[Any]] = []
        self.n_p2p = 0

    def add(self, index: int, seq: int, token: int, finished: int, ms: int) -> None:
        """Add one call; ``ms`` is its creation time in milliseconds since the epoch, 0 when unknown."""
        self.index.append(index)
        self.seq.append(seq)
        self.token.append(token)
        self.finished.append(finished)
        self.ms.append(ms)

    def next_seq(self) -> int:
        """The sequence number after the last one, for dumps that record none."""
        return self.seq[-1] + 1 if self.seq else 1


def pack_columns(columns: Columns) -> dict[str, Any]:
    """JSON-able form of a group's columns."""
    base_ms = min((ms for ms in columns.ms if ms), default=0)
    # 0 stays "unknown"; 32 bits of milliseconds are 49 days, longer than any ring buffer looks back.
    ms = array("I", [min(ms - base_ms + 1, 0xFFFFFFFF) if ms else 0 for ms in columns.ms])
    return {
        "name": columns.name,
        "desc": columns.desc,
        "uid": columns.uid,
        "n": len(columns.index),
        "index": _pack(columns.index),
        "seq": _pack(columns.seq),
        "token": _pack(columns.token),
        "finished": _pack(columns.finished),
        "base_ms": base_ms,
        "ms": _pack(ms),
        "p2p": columns.p2p,
        "n_p2p": columns.n_p2p,
    }


def _pack(column: array[int]) -> Any:
    n = len(column)
    if not n:
        return ["=", 0]
    first, last = column[0], column[-1]
    if first == last and column.count(first) == n:
        return ["=", first]
    if last - first == n - 1 and column == array(column.typecode, range(first, first + n)):
        return ["+", first]
    if column.typecode == "I" and max(column) < 1 << 16:
        column = array("H", column)
    return [column.typecode, base64.b64encode(column.tobytes()).decode("ascii")]


def unpack_column(packed: Any, n: int) -> list[int] | array[int] | range:
    """The inverse of packing; a column of another length than ``n`` is refused with ValueError."""
    how, content = packed
    if how == "=":
        return [content] * n
    if how == "+":
        return range(content, content + n)
    if how not in _TYPES:
        raise ValueError("unknown column type")
    column = array(_TYPES[how])
    column.frombytes(base64.b64decode(content))
    if len(column) != n:
        raise ValueError("a column has the wrong length")
    return column
