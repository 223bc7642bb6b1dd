"""Reads what nvidia-smi and dcgmi print of NVLinks and of a GPU's state; several answers may stand in one file.

``nvlink -s``, ``-e``, ``-ec``, ``-c``, ``-info``, ``topo -m``, ``topo -p2p n``, ``-q``, ``-q -x``, ``dcgmi nvlink``.
Every counter is kept under the words that stand there: which of them mean anything, the catalogue says, not this
module. Lines of other kinds are passed over. Stdlib only: runs in the isolated worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.text import read_file_lines
from torchtriage.gpu.read import LOST
from torchtriage.lazy_re import lazy_re
from torchtriage.nvlink.read_dcgmi import Dcgmi
from torchtriage.nvlink.read_query import QueryText, QueryXml
from torchtriage.nvlink.read_state import MAX_LINE_CHARS, Record, State
from torchtriage.nvlink.read_topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LINES = 400_000
_HEADER = lazy_re(
    r"GPU (?P<index>\d{1,3}): (?P<name>[A-Za-z][^()\n]{0,99}?)(?: \(UUID: (?P<uuid>[^()\n]{1,64})\))?\s{0,8}$"
)
_LINK = lazy_re(r"\s{0,32}Link (?P<link>\d{1,2})(?P<sep>[:,])(?: (?P<rest>.{1,160}?))?\s{0,8}$")
_LANE = lazy_re(r"\s{1,64}(?P<label>Lane \d{1,2} [A-Za-z][\w ]{2,40}): (?P<value>\d{1,20})\b")
_SPEED = lazy_re(r"(?P<speed>\d{1,4}(?:\.\d{1,6})?) GB/s(?P<more>.{0,40})$")
_STATE = lazy_re(r"<?(?P<state>in ?active|active|sleep|off|down|up|disabled|traffic disabled)>?$")
_COUNTER = lazy_re(
    r"(?P<label>[A-Za-z][A-Za-z0-9 _/().\-]{1,63}): (?P<value>\d{1,20}(?:\.\d{1,12})?(?:[eE][+-]?\d{1,4})?)$"
)
_ALL_INACTIVE = lazy_re(r"(?i)NVML: ?Unable to retrieve NVLink information as all links are in ?active")
_MIG = lazy_re(r"\s{0,16}MIG [\w.+]{1,24} {1,16}Device {1,8}\d{1,3}: \(UUID: MIG-")


def read_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: one file, as JSON.

    Returns:
        ``gpus``: see :class:`torchtriage.nvlink.read_state.Record`; ``matrices``: topologies as tables; ``failures``:
        sentences that say that a GPU is lost; ``forms``: the kinds of answers that were found; ``notes``.
    """
    del args
    lost: list[str] = []
    found = read_lines(read_file_lines(Path(path), compression, lost))
    found["notes"] += lost
    return found


def read_lines(lines: Iterable[str]) -> dict[str, Any]:
    """What the lines of one file say, in the form of :func:`read_task`."""
    state = State()
    xml, query, topology, dcgmi = QueryXml(state), QueryText(state), Topology(state), Dcgmi(state)
    links = _Links(state)
    for number, raw in enumerate(lines, 1):
        if number > MAX_LINES:
            state.notes.append(f"only its first {MAX_LINES} lines were read")
            break
        line = raw[:MAX_LINE_CHARS].rstrip("\r\n")
        if not line.strip():
            topology.end()
        elif xml.line(number, line):
            query.leave()
        elif (lost := _lost(line)) is not None:
            state.failure(number, line, lost)
        elif links.line(number, line):
            query.leave()
        elif not topology.line(number, line) and not dcgmi.line(number, line):
            query.line(number, line)
    xml.end()
    return state.answer()


def _lost(line: str) -> str | None:
    """The bus id in a sentence that says that a GPU is lost, "" where none is named."""
    if "the device handle" not in line and "GPU is lost" not in line:
        return None
    found = LOST.search(line)
    return None if found is None else (found["bus"] or found["bus2"] or "")


class _Links:
    """``nvidia-smi nvlink``: a line names the GPU, those below it its links."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._gpu: Record | None = None
        self._link: str | None = None
        self._fresh = False
        """Whether nothing of the GPU was told since its line."""

    def line(self, number: int, line: str) -> bool:
        """Take a line, or say that it is not of this kind."""
        state = self._state
        if line.startswith("GPU ") and (header := _HEADER.match(line)) is not None:
            self._gpu = state.gpu("nvlink", int(header["index"]))
            self._gpu.name = self._gpu.name or clean_text(header["name"].strip(), 100)
            self._gpu.uuid = self._gpu.uuid or header["uuid"]
            self._link, self._fresh = None, True
            return True
        if "nable to retrieve" in line and _ALL_INACTIVE.search(line) is not None:
            gpu = self._gpu if self._gpu is not None and self._fresh else state.anonymous("nvlink")
            gpu.inactive = [number, line]
            self._fresh = False
            state.forms.add("states")
            return True
        if self._gpu is None:
            return False
        if _MIG.match(line) is not None:
            self._gpu.mig = True
            return True
        if (found := _LINK.match(line)) is not None:
            self._fresh = False
            self._link = found["link"]
            if found["rest"] is not None:
                self._told(self._gpu, found["link"], found["sep"], found["rest"], number, line)
            return True
        if self._link is not None and (lane := _LANE.match(line)) is not None:
            self._gpu.count(self._link, lane["label"], int(lane["value"]), number, line)
            return True
        return False

    def _told(self, gpu: Record, link: str, sep: str, rest: str, number: int, line: str) -> None:
        if sep == ",":
            self._state.forms.add("capabilities")
        elif (speed := _SPEED.match(rest)) is not None:
            asleep = "sleep" in speed["more"].lower()
            gpu.link_state(link, "sleep" if asleep else "active", float(speed["speed"]), number, line)
            self._state.forms.add("states")
        elif (state := _STATE.match(rest.lower())) is not None:
            gpu.link_state(link, state["state"].replace("in active", "inactive"), None, number, line)
            self._state.forms.add("states")
        elif (counter := _COUNTER.match(rest)) is not None:
            value = counter["value"]
            gpu.count(link, counter["label"], int(value) if value.isdigit() else float(value), number, line)
            self._state.forms.add("counters")
