"""``nvidia-smi -q`` as text and as XML: the parts that tell a sound GPU from one that needs a reset. Stdlib only.

Both forms come out as paths in the same spelling (``fabric/health/summary``); where the two name a thing differently
the catalogue knows both. Everything else that they print is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.gpu.xml_lines import XmlLines
from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from torchtriage.nvlink.read_state import Record, State

_WANTED = ("fabric", "ecc_errors", "ecc_mode", "remapped_rows", "retired_pages", "mig_mode", "gpu_recovery_action")
_NAMES = frozenset({"product_name", "gpu_uuid", "uuid"})
# Headings with which a cut-out of -q may begin, without the line that names the GPU.
_HEADINGS = frozenset({"Fabric", "Remapped Rows", "ECC Errors"})
_MAX_DEPTH = 12
_LOST = frozenset({"GPU is lost", "[GPU is lost]"})
_NOT_NAME = lazy_re(r"[^a-z0-9]{1,20}")
_GPU = lazy_re(r"GPU (?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s{0,8}$")
_PAIR = lazy_re(r"(?P<blank> {0,48})(?P<key>[A-Za-z][\w .#()/\-]{0,60}?) {0,60}: (?P<value>.{1,200})$")
_HEADING = lazy_re(r"(?P<blank> {0,48})(?P<key>[A-Za-z][\w .#()/\-]{0,60}?) {0,8}$")


def _note(state: State, gpu: Record, path: str, value: str, number: int, line: str) -> None:
    """Keep a value if it is one of those that matter; of a lost GPU the first field that says so."""
    if value in _LOST:
        gpu.lost = gpu.lost or [number, line[:200]]
    elif path in _NAMES:
        if path == "product_name":
            gpu.name = gpu.name or clean_text(value, 100)
        else:
            gpu.uuid = gpu.uuid or clean_text(value, 64)
    elif path.startswith(_WANTED):
        gpu.fact(path, value, number, line)
        state.forms.add("fabric" if path.startswith("fabric") else "state")


class QueryText:
    """The text form: places are told by indentation."""

    def __init__(self, state: State) -> None:
        """Fill in ``state``."""
        self._state = state
        self._gpu: Record | None = None
        self._path: list[tuple[int, str]] = []
        self._cut_out = False

    def leave(self) -> None:
        """Another answer begins."""
        self._gpu, self._path, self._cut_out = None, [], False

    def line(self, number: int, line: str) -> None:
        """Take a line that is of no other kind."""
        if (named := _GPU.match(line)) is not None:
            self._gpu, self._path, self._cut_out = self._state.gpu("q", named["bus"]), [], False
            return
        if (pair := _PAIR.match(line)) is not None:
            if self._gpu is not None:
                self._pair(pair["blank"], pair["key"], pair["value"].strip(), number, line)
            return
        heading = _HEADING.match(line)
        if heading is None:
            return
        key, blank = heading["key"], len(heading["blank"])
        self._up_to(blank)
        if key in _HEADINGS and (self._gpu is None or (self._cut_out and self._told(key))):
            self._gpu, self._path, self._cut_out = self._state.anonymous("q"), [], True
        if len(self._path) < _MAX_DEPTH:
            self._path.append((blank, _spelled(key)))

    def _told(self, key: str) -> bool:
        """Whether the GPU of a cut-out has that part already: then it is the next one's."""
        return self._gpu is not None and any(path.startswith(_spelled(key)) for path in self._gpu.facts)

    def _pair(self, blank: str, key: str, value: str, number: int, line: str) -> None:
        self._up_to(len(blank))
        path = "/".join([*(name for _, name in self._path), _spelled(key)])
        if self._gpu is not None:
            _note(self._state, self._gpu, path, value, number, line)

    def _up_to(self, blank: int) -> None:
        while self._path and self._path[-1][0] >= blank:
            del self._path[-1]


class QueryXml:
    """The XML form, of which nvidia-smi writes an element a line."""

    def __init__(self, state: State) -> None:
        """Fill in ``state``."""
        self._state = state
        self._inside = False
        self._gpu: Record | None = None
        self._lines = XmlLines(_MAX_DEPTH)

    def line(self, number: int, line: str) -> bool:
        """Take a line, or say that it is not inside an XML answer."""
        if "<nvidia_smi_log" in line:
            self._inside = True
            self._state.forms.add("xml")
        if not self._inside:
            return False
        if "</nvidia_smi_log>" in line:
            self._inside, self._gpu = False, None
        elif (step := self._lines.step(line)) is not None:
            kind, name, value = step
            if kind == "gpu":
                self._gpu = self._state.gpu("xml", name)
            elif kind == "leaf" and self._gpu is not None:
                _note(self._state, self._gpu, name.lower(), value, number, line)
            elif name == "gpu":
                self._gpu = None
        return True

    def end(self) -> None:
        """The file ends."""
        if self._inside:
            self._state.notes.append("the answer ends early; what came before was read")


def _spelled(key: str) -> str:
    """A name of the text form as the XML form spells it."""
    return _NOT_NAME.sub("_", key.strip().lower()).strip("_")
