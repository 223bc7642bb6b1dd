"""``nvidia-smi topo -m`` and ``topo -p2p n``: what connects each pair of GPUs. Stdlib only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from torchtriage.nvlink.read_state import State

MAX_GPUS_OF_A_TABLE = 128
_ESCAPE = lazy_re(r"\x1b\[[0-9;]{0,12}m")
_NAME = lazy_re(r"GPU(\d{1,3})$")
_PATHS = lazy_re(r"(?:X|NV\d{1,2}|SYS|NODE|PHB|PXB|PIX)$")
_PEERS = lazy_re(r"(?:X|OK|NS|CNS|GNS|TNS|DR|U)$")


class Topology:
    """A line of column names begins a table, and lines of rows follow."""

    def __init__(self, state: State) -> None:
        """Fill in ``state``."""
        self._state = state
        self._table: dict[str, Any] | None = None

    def end(self) -> None:
        """An empty line ends the table."""
        self._table = None

    def line(self, number: int, line: str) -> bool:
        """Take a line, or say that it is none of a table."""
        if "GPU" not in line:
            return False
        words = _ESCAPE.sub("", line).split()
        if not words or (first := _NAME.match(words[0])) is None:
            return False
        columns = 0
        while columns < min(len(words), MAX_GPUS_OF_A_TABLE) and _NAME.match(words[columns]) is not None:
            columns += 1
        if columns > 1:
            self._table = self._state.matrix("", columns)
            return True
        if self._table is None:
            return False
        cells = words[1 : 1 + self._table["columns"]]
        kind = self._kind(cells)
        if kind is not None and len(self._table["rows"]) < MAX_GPUS_OF_A_TABLE:
            self._table["kind"] = self._table["kind"] or kind
            self._table["rows"][str(int(first[1]))] = [cells, number, line[:1000]]
            self._state.forms.add("topology" if kind == "paths" else "peers")
        return True

    def _kind(self, cells: list[str]) -> str | None:
        known = self._table["kind"] if self._table is not None else ""
        for kind, form in (("paths", _PATHS), ("peers", _PEERS)):
            if cells and known in ("", kind) and all(form.match(cell) is not None for cell in cells):
                # A row of X alone is of either.
                return kind if known or any(cell != "X" for cell in cells) else None
        return None
