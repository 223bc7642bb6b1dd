"""Reads NVIDIA's messages off a kernel log: Xid, SXid, a GPU that is gone, and links that were not found. Never judges.

Everything else in the log is somebody else's, and costs one search for two words. What repeats is counted: of one
message of one GPU, process and channel the first and the last lines are kept. Stdlib only: runs in the isolated worker.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.text import decode_line, file_chunks, whole_lines
from torchtriage.lazy_re import lazy_re
from torchtriage.nvlink.kernel_times import when_and_where

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator, Mapping

MAX_KEYS = 2048
KEPT_FIRST = 4
KEPT_LAST = 4
MAX_LINE_CHARS = 1000
MAX_TEXT_CHARS = 300
MAX_RAW_CHARS = 500
_WORD_CODES = frozenset(range(144, 151))
_REGISTER_CODE = 74
_LOST = 79
_LOST_WITHIN_LINES = 4  # the driver prints one sentence over three lines, and others may come between

_BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}"
_XID = lazy_re(
    rf"(?<![A-Za-z])Xid \((?:PCI:)?(?P<bus>{_BUS})(?:\.[0-7])?"
    r"(?: GPU-I:(?P<gi>\d{1,3}))?(?: GPU-CI:(?P<ci>\d{1,3}))?\):"
    r" (?P<code>\d{1,4})\b"
    r"(?:, pid='?(?:<unknown>|(?P<pid>\d{1,10}))'?)?"
    r"(?:, name=(?:'?<unknown>'?|'(?P<quoted>[^'\n]{1,64})'|(?P<name>[^,\n]{1,64})))?"
    r"(?:,? (?P<text>.{0,600}))?"
)
_SXID = lazy_re(
    rf"(?P<switch>nvidia-nvswitch\d{{1,3}}): SXid \(PCI:(?:(?P<bus>{_BUS})(?:\.[0-7])?|[^)\n]{{1,24}})\): "
    r"(?P<code>\d{5}), "
    r"(?:(?P<severity>Fatal|Non-fatal), (?:Link (?P<link>\d{1,3}) )?|Severity (?P<level>\d) |Data \{)?"
    r"(?P<text>.{0,600})"
)
_LOST_LINE = lazy_re(
    rf"NVRM: (?:GPU (?:at )?(?:PCI:)?(?P<bus>{_BUS})(?:\.[0-7])?:? (?:GPU )?has fallen off the bus"
    r"|(?P<rest>fallen off the bus and is not responding))"
)
_LOST_BEGINS = lazy_re(rf"NVRM: The NVIDIA GPU (?:PCI:)?(?P<bus>{_BUS})")
_UNFOUND = lazy_re(
    r"NVRM: (?P<text>knvlink(?:DiscoverPostRxDetLinks_\w{1,24}: Getting peer\d{1,3}'s postRxDetLinkMask failed"
    r"|UpdatePostRxDetectLinkMask_\w{1,24}: Failed to update Rx Detect Link mask))"
)
_PREVIOUS = lazy_re(r"caused by previous Xid (\d{1,4})")
_CHANNEL = lazy_re(r"\b(?:Ch|ChId|Channel ID) (?:0x)?([0-9A-Fa-f]{1,8})\b")
_LINK = lazy_re(r"\b[Ll]ink (-1|\d{1,3})(?!\d)")
_UNIT = lazy_re(r"(?P<unit>[A-Z][A-Z0-9_]{1,40}(?:/[A-Z][A-Z0-9_]{1,40})?) {1,8}(?P<severity>Fatal|Non-?fatal)\b")
# A word that was cut has another value: of the event words all digits must be there, of registers what ends them.
_WORDS = lazy_re(r"\((0x[0-9A-Fa-f]{8}(?:,? {1,2}0x[0-9A-Fa-f]{8}){0,9})")
_REGISTERS = lazy_re(r"\((0x[0-9A-Fa-f]{1,8}(?:, ?0x[0-9A-Fa-f]{1,8}(?=[,)])){0,9})")
_RESET = lazy_re(r"\bRST: (Yes|No), D-RST: (Yes|No)")


@dataclass
class KernelEvent:
    """One message, or many alike: then ``count`` of them, and ``last_time_s`` and ``last_line`` are of the last."""

    kind: str
    """xid, sxid, lost (a GPU that is gone, told without a code) or links_not_found."""
    line: int
    """Line number in its artefact, from 1."""
    raw: str
    """The line itself, cut."""
    artefact: str = ""
    time_s: float | None = None
    clock: str | None = None
    host: str | None = None
    bus: str | None = None
    """As :func:`bus_id` gives it; of the switch, for an SXid."""
    switch: str | None = None
    code: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pid: int | None = None
    process: str | None = None
    channel: str | None = None
    text: str = ""
    unit: str | None = None
    fatal: bool | None = None
    link: int | None = None
    """-1 where the driver says that it is no link's."""
    words: tuple[int, ...] = ()
    reset: bool | None = None
    drain_reset: bool | None = None
    previous_xid: int | None = None
    count: int = 1
    last_time_s: float | None = None
    last_line: int = 0

    @property
    def gpu(self) -> tuple[str | None, str | None]:
        """The host and the bus id."""
        return self.host, self.bus


def bus_id(text: str) -> str:
    """A PCI address in the kernel's form: ``00000000:3B:00.0`` and ``0000:3b:00`` are both ``0000:3b:00``.

    Raises:
        ValueError: it is none.
    """
    domain, bus, device = text.split(".", maxsplit=1)[0].lower().split(":")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"


def read_task(path: str, compression: str | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """Read a kernel log.

    Returns:
        ``events`` (see :func:`events_of`), ``n_lines``, ``notes`` (what was lost).
    """
    del args
    lost: list[str] = []
    reader = _Reader()
    number = 0
    for block in whole_lines(file_chunks(Path(path), compression, lost)):
        if b"Xid (" not in block and b"NVRM: " not in block:
            number += block.count(b"\n") + 1
            continue
        for piece in block.split(b"\n"):
            number += 1
            if b"Xid (" in piece or b"NVRM: " in piece:
                reader.add(number, decode_line(piece))
    return {"events": [asdict(event) for event in reader.events()], "n_lines": number, "notes": lost + reader.notes()}


def read_events(lines: Iterable[str]) -> list[KernelEvent]:
    """The events of lines that are at hand already."""
    reader = _Reader()
    for number, line in enumerate(lines, start=1):
        if "Xid (" in line or "NVRM: " in line:
            reader.add(number, line)
    return list(reader.events())


def events_of(result: Mapping[str, Any], artefact: str = "") -> list[KernelEvent]:
    """The events that :func:`read_task` returned."""
    events = [KernelEvent(**raw) for raw in result["events"]]
    for event in events:
        event.words, event.artefact = tuple(event.words), artefact
    return events


@dataclass
class _Alike:
    """Messages that differ in time alone: the first and the last of them."""

    first: list[KernelEvent] = field(default_factory=list[KernelEvent])
    last: deque[KernelEvent] = field(default_factory=lambda: deque(maxlen=KEPT_LAST))
    n: int = 0

    def add(self, event: KernelEvent) -> None:
        self.n += 1
        if len(self.first) < KEPT_FIRST:
            self.first.append(event)
        else:
            self.last.append(event)

    def events(self) -> Iterator[KernelEvent]:
        left_out = self.n - len(self.first) - len(self.last)
        if left_out:
            # Nothing is known of their times but that they lie between those that are kept.
            self.first[-1].count += left_out
            self.first[-1].last_time_s, self.first[-1].last_line = self.last[0].time_s, self.last[0].line
        yield from self.first
        yield from self.last


class _Reader:
    def __init__(self) -> None:
        self._alike: dict[tuple[Any, ...], _Alike] = {}
        self._n_left_out = 0
        self._of_switch: dict[tuple[Any, ...], KernelEvent] = {}
        self._begun: tuple[int, str] | None = None

    def add(self, number: int, line: str) -> None:
        line = line[:MAX_LINE_CHARS]
        if (found := _XID.search(line)) is not None:
            self._keep(_xid(found, number, line))
        elif (found := _SXID.search(line)) is not None:
            self._sxid(found, number, line)
        elif (found := _LOST_LINE.search(line)) is not None:
            begun, self._begun = self._begun, None
            bus = found["bus"]
            if found["rest"] and begun is not None and number - begun[0] <= _LOST_WITHIN_LINES:
                bus = begun[1]
            self._keep(_event("lost", found, number, line, code=_LOST, bus=bus_id(bus) if bus else None))
        elif (found := _LOST_BEGINS.search(line)) is not None:
            self._begun = (number, found["bus"])
        elif (found := _UNFOUND.search(line)) is not None:
            self._keep(_event("links_not_found", found, number, line, text=found["text"]))

    def _sxid(self, found: re.Match[str], number: int, line: str) -> None:
        event = _event(
            "sxid", found, number, line,
            code=int(found["code"]),
            bus=bus_id(found["bus"]) if found["bus"] else None,
            switch=found["switch"],
            text=found["text"][:MAX_TEXT_CHARS],
            fatal={"Fatal": True, "Non-fatal": False, None: None}[found["severity"]],
            link=int(found["link"]) if found["link"] else None,
        )  # fmt: skip
        key = (event.host, event.switch, event.bus, event.code)
        before = self._of_switch.get(key)
        if found["severity"] is None and before is not None:
            return  # further lines of an event that is known
        if found["level"]:
            event.fatal = found["level"] != "0"
        if len(self._of_switch) < MAX_KEYS:
            self._of_switch[key] = event
        self._keep(event)

    def _keep(self, event: KernelEvent) -> None:
        e = event
        key = (
            e.kind, e.host, e.bus, e.switch, e.gpu_instance, e.code, e.unit, e.link, e.words[:2], e.pid, e.channel,
            e.fatal, e.previous_xid, e.text if e.kind == "links_not_found" or e.code == 154 else "",
        )  # fmt: skip
        alike = self._alike.get(key)
        if alike is None:
            if len(self._alike) >= MAX_KEYS:
                self._n_left_out += 1
                return
            alike = self._alike[key] = _Alike()
        alike.add(event)

    def events(self) -> list[KernelEvent]:
        return sorted((event for alike in self._alike.values() for event in alike.events()), key=lambda e: e.line)

    def notes(self) -> list[str]:
        if not self._n_left_out:
            return []
        return [f"more than {MAX_KEYS} different messages of GPUs: {self._n_left_out} lines were left out"]


def _event(kind: str, found: re.Match[str], number: int, line: str, **known: Any) -> KernelEvent:
    time_s, clock, host = when_and_where(line[: found.start()])
    return KernelEvent(kind, number, line[:MAX_RAW_CHARS], time_s=time_s, clock=clock, host=host, **known)


def _xid(found: re.Match[str], number: int, line: str) -> KernelEvent:
    code, text = int(found["code"]), (found["text"] or "").strip()
    event = _event(
        "xid", found, number, line,
        code=code,
        bus=bus_id(found["bus"]),
        gpu_instance=_int(found["gi"]),
        compute_instance=_int(found["ci"]),
        pid=_int(found["pid"]),
        process=found["quoted"] or found["name"],
        text=text[:MAX_TEXT_CHARS],
    )  # fmt: skip
    if (link := _LINK.search(text)) is not None:
        event.link = int(link[1])
    if (channel := _CHANNEL.search(text)) is not None:
        event.channel = channel[1].lower()
    if (previous := _PREVIOUS.search(text)) is not None:
        event.previous_xid = int(previous[1])
    if (reset := _RESET.search(text)) is not None:
        event.reset, event.drain_reset = reset[1] == "Yes", reset[2] == "Yes"
    if code in _WORD_CODES and (unit := _UNIT.match(text)) is not None:
        event.unit, event.fatal = unit["unit"], unit["severity"] == "Fatal"
    form = _WORDS if code in _WORD_CODES else _REGISTERS if code == _REGISTER_CODE else None
    if form is not None and (words := form.search(text)) is not None:
        event.words = tuple(int(word, 16) for word in words[1].replace(",", " ").split())
    return event


def _int(text: str | None) -> int | None:
    return int(text) if text else None
