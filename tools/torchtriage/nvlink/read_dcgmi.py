"""``dcgmi nvlink -e`` and ``-s``: counters per link in a box, and a letter per link. Stdlib only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from torchtriage.nvlink.read_state import Record, State

_GPU = lazy_re(r"\| GPU (?P<index>\d{1,3}) {1,60}\|")
_LINK = lazy_re(r"\| Link (?P<link>\d{1,2}) {1,40}\|")
_COUNTER = lazy_re(
    r"\| -> (?P<label>[A-Za-z][A-Za-z0-9 _/\-]{1,40}?) {1,40}"
    r"\| (?P<value>\d{1,20}(?:\.\d{1,12})?(?:[eE][+-]?\d{1,4})?) {1,60}\|"
)
_GPU_ID = lazy_re(r"\s{0,16}gpuId (?P<index>\d{1,3}):\s{0,8}$")
_LETTERS = lazy_re(r"\s{0,16}(?:[UDX_] ){0,63}[UDX_]\s{0,8}$")
# As the key below the table explains them. A link that is not supported is none.
_STATES = {"U": "active", "D": "down", "X": "disabled"}


class Dcgmi:
    """Both tables."""

    def __init__(self, state: State) -> None:
        """Fill in ``state``."""
        self._state = state
        self._counted: Record | None = None
        self._link: str | None = None
        self._listed: Record | None = None

    def line(self, number: int, line: str) -> bool:
        """Take a line, or say that it is none of a table."""
        if line.startswith("|"):
            return self._box(number, line)
        if (named := _GPU_ID.match(line)) is not None:
            self._listed = self._state.gpu("dcgmi", int(named["index"]))
            return True
        if self._listed is not None and _LETTERS.match(line) is not None:
            for link, letter in enumerate(line.split()):
                if letter in _STATES:
                    self._listed.link_state(str(link), _STATES[letter], None, number, line)
            self._state.forms.add("states")
            self._listed = None
            return True
        return False

    def _box(self, number: int, line: str) -> bool:
        if (named := _GPU.match(line)) is not None:
            self._counted, self._link = self._state.gpu("dcgmi", int(named["index"])), None
        elif (link := _LINK.match(line)) is not None:
            self._link = link["link"]
        elif (counter := _COUNTER.match(line)) is not None and self._counted is not None and self._link is not None:
            value = counter["value"]
            number_of = int(value) if value.isdigit() else float(value)
            self._counted.count(self._link, counter["label"], number_of, number, line)
            self._state.forms.add("counters")
        else:
            return False
        return True
