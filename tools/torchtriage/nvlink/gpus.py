"""Puts what several answers and files say of one GPU together. Pure; it judges nothing.

GPUs are the same where their UUIDs are; where one answer shows none (or the same for several GPUs, as scrubbed files
do), their place on the node tells. The node is told by the folder of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.evidence import quote_line
from torchtriage.gpu.analyze import node_of, short_bus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.report import Evidence

Answer = tuple[str, "Mapping[str, Any]"]
MAX_READINGS = 64


@dataclass(frozen=True)
class Line:
    """Where something stands."""

    artefact: str
    number: int
    text: str

    def evidence(self, signal: str) -> Evidence:
        """As a quotation."""
        return quote_line(self.artefact, self.number, self.text, signal)


@dataclass(frozen=True)
class LinkReading:
    """A value of a counter at one moment."""

    value: float
    line: Line


@dataclass
class Link:
    """One NVLink of one GPU."""

    number: int
    state: str | None = None
    """active, sleep, inactive, off, down, disabled, ...; None where it was not told."""
    bw_gb_s: float | None = None
    line: Line | None = None
    readings: dict[str, list[LinkReading]] = field(default_factory=dict[str, "list[LinkReading]"])
    """By words, in the order of time."""
    before: dict[str, list[LinkReading]] = field(default_factory=dict[str, "list[LinkReading]"])
    """Those of the baseline."""

    @property
    def up(self) -> bool:
        """Whether it carries traffic, as far as its state tells."""
        return self.state in ("active", "sleep", "up")


@dataclass
class Gpu:
    """One GPU of one node."""

    node: str
    artefact: str
    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    bus: str | None = None
    mig: bool = False
    lost: Line | None = None
    inactive: Line | None = None
    links: dict[int, Link] = field(default_factory=dict[int, Link])
    facts: dict[str, tuple[str, Line]] = field(default_factory=dict[str, "tuple[str, Line]"])
    shown_node: str = ""
    """The end of the node's name, where there are several."""
    last_listed: bool = False
    """Whether it is the last GPU of the listing that its links' states are from."""

    @property
    def label(self) -> str:
        """How it is called in a sentence."""
        known = f"GPU {self.index}" if self.index is not None else f"GPU {self.bus}" if self.bus else "a GPU"
        return clean_text(f"{known} ({self.shown_node})" if self.shown_node else known, 120)

    @property
    def host(self) -> str:
        """The host whose folder of a bundle it is from."""
        parts = self.artefact.split("/")
        return clean_text(parts[-3], 64) if len(parts) > 2 and parts[-2] == "gpu" else ""

    @property
    def key(self) -> str:
        """How it is called in scopes."""
        return clean_text(self.bus or (f"GPU {self.index}" if self.index is not None else self.uuid or "GPU ?"), 64)


@dataclass
class Matrix:
    """What connects pairs of GPUs of a node: ``paths`` (topo -m) or ``peers`` (topo -p2p n)."""

    node: str
    kind: str
    cells: dict[int, list[str]]
    lines: dict[int, Line]


@dataclass
class Seen:
    """All answers together."""

    gpus: list[Gpu] = field(default_factory=list[Gpu])
    matrices: list[Matrix] = field(default_factory=list[Matrix])
    lost: list[tuple[str, str, Line]] = field(default_factory=list[tuple[str, str, Line]])
    """Node, bus id or "", line."""
    forms: set[str] = field(default_factory=set[str])
    notes: list[str] = field(default_factory=list[str])


def gpus_of(answers: Sequence[Answer], baseline: Sequence[Answer] = ()) -> Seen:
    """Merge answers, given as (artefact name, what the reader returned); those of a baseline only lend counters."""
    seen = Seen()
    scrubbed = _shared_uuids([*answers, *baseline])
    for name, answer in answers:
        seen.forms |= set(answer["forms"])
        seen.notes += [f"{clean_text(name)}: {clean_text(str(note))}" for note in answer["notes"][:4]]
        for raw in answer["gpus"]:
            gpu = _home(seen.gpus, _named(name, raw, scrubbed), raw)
            _add(gpu, name, raw)
        _mark_last(seen.gpus, name, answer)
        seen.matrices += [_matrix(name, raw) for raw in answer["matrices"]]
        seen.lost += [(node_of(name), bus, Line(name, number, text)) for bus, number, text in answer["failures"]]
    if len({gpu.node for gpu in seen.gpus}) > 1:
        for gpu in seen.gpus:
            gpu.shown_node = gpu.node.rpartition("/")[2]
    for name, answer in baseline:
        for raw in answer["gpus"]:
            _add_before(seen.gpus, name, _named(name, raw, scrubbed), raw)
    return seen


def _shared_uuids(answers: Sequence[Answer]) -> frozenset[str]:
    """UUIDs that different GPUs of one answer have: they tell nothing."""
    shared: set[str] = set()
    for _, answer in answers:
        owner: dict[tuple[str, str], int] = {}
        for raw in answer["gpus"]:
            if raw["uuid"] and owner.setdefault((raw["form"], raw["uuid"]), raw["ordinal"]) != raw["ordinal"]:
                shared.add(raw["uuid"])
    return frozenset(shared)


def _named(artefact: str, raw: Mapping[str, Any], scrubbed: frozenset[str]) -> Gpu:
    """A GPU with the names that one answer gives it."""
    uuid = raw["uuid"] if raw["uuid"] and raw["uuid"] not in scrubbed and "-" in raw["uuid"] else None
    if uuid is not None and not uuid[4:].strip("0-"):
        uuid = None
    bus = short_bus(raw["bus"]) if raw["bus"] else None
    index = raw["index"] if raw["index"] is not None else raw["ordinal"] if bus else None
    return Gpu(node_of(artefact), artefact, index, raw["name"], uuid, bus, raw["mig"])


def _home(gpus: list[Gpu], named: Gpu, raw: Mapping[str, Any]) -> Gpu:
    """The known GPU that it is, or itself as a new one."""
    del raw
    known = _find(gpus, named)
    if known is None:
        gpus.append(named)
        return named
    known.index = known.index if known.index is not None else named.index
    known.name = known.name or named.name
    known.uuid = known.uuid or named.uuid
    known.bus = known.bus or named.bus
    known.mig = known.mig or named.mig
    return known


def _find(gpus: Sequence[Gpu], named: Gpu) -> Gpu | None:
    if named.uuid is None and named.bus is None and named.index is None:
        return None
    of_node = [gpu for gpu in gpus if gpu.node == named.node]
    same = next((gpu for gpu in of_node if named.uuid is not None and gpu.uuid == named.uuid), None)
    return same or next((gpu for gpu in of_node if _may_be(gpu, named)), None)


def _may_be(gpu: Gpu, named: Gpu) -> bool:
    """Whether its place is the same and nothing speaks against it."""
    if gpu.uuid is not None and named.uuid is not None and gpu.uuid != named.uuid:
        return False
    if gpu.name is not None and named.name is not None and gpu.name != named.name:
        return False
    if gpu.bus is not None and named.bus is not None:
        return gpu.bus == named.bus
    return gpu.index is not None and gpu.index == named.index


def _add(gpu: Gpu, artefact: str, raw: Mapping[str, Any]) -> None:
    for number, (state, bw_gb_s, line, text) in raw["states"].items():
        link = gpu.links.setdefault(int(number), Link(int(number)))
        link.state, link.bw_gb_s, link.line = state, bw_gb_s, Line(artefact, line, text)
    for number, counters in raw["counters"].items():
        link = gpu.links.setdefault(int(number), Link(int(number)))
        _read(link.readings, artefact, counters, same_gpu=gpu.uuid is not None)
    for path, (value, line, text) in raw["facts"].items():
        gpu.facts[path] = (value, Line(artefact, line, text))
    for name in ("lost", "inactive"):
        if raw[name] is not None:
            setattr(gpu, name, Line(artefact, *raw[name]))


def _read(
    into: dict[str, list[LinkReading]], artefact: str, counters: Mapping[str, Any], *, same_gpu: bool = True
) -> None:
    """Add readings. Files of a GPU without a name of its own may be of two hosts: of these the higher count is kept."""
    for label, readings in counters.items():
        known = into.setdefault(label, [])
        told = [LinkReading(value, Line(artefact, line, text)) for value, line, text in readings]
        if known and not same_gpu and known[-1].line.artefact != artefact:
            if told[-1].value > known[-1].value:
                known[:] = told
            continue
        known += told
        del known[MAX_READINGS:]


def _add_before(gpus: Sequence[Gpu], artefact: str, named: Gpu, raw: Mapping[str, Any]) -> None:
    """Counters of a baseline, to the GPU that they are of: its folder is another one."""
    for node in sorted({gpu.node for gpu in gpus}):
        named.node = node
        known = _find(gpus, named)
        if known is None or (named.uuid is None and len({gpu.node for gpu in gpus}) > 1):
            continue
        for number, counters in raw["counters"].items():
            if int(number) in known.links:
                _read(known.links[int(number)].before, artefact, counters)


def _mark_last(gpus: Sequence[Gpu], artefact: str, answer: Mapping[str, Any]) -> None:
    listed = [raw for raw in answer["gpus"] if raw["states"]]
    if listed:
        lines = [max(state[2] for state in raw["states"].values()) for raw in listed]
        at = max(lines)
        for gpu in gpus:
            own = [link.line for link in gpu.links.values() if link.line is not None and link.line.artefact == artefact]
            if own:
                gpu.last_listed = any(line.number == at for line in own)


def _matrix(artefact: str, raw: Mapping[str, Any]) -> Matrix:
    rows = {int(index): row for index, row in raw["rows"].items()}
    return Matrix(
        node_of(artefact),
        raw["kind"],
        {index: list(cells) for index, (cells, _, _) in rows.items()},
        {index: Line(artefact, number, text) for index, (_, number, text) in rows.items()},
    )
