"""Lines of ProcessGroupNCCL's watchdog and heartbeat monitor as records, torch 1.13 to 2.14 and the nccl2 backend.

Knows the wordings and their numbers. The rank of a record is the one that the line's prefix tells; the rank inside the
group, which newer releases print as well, is kept apart and stands in for it only where nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torchtriage.artefacts.clean import QUOTE_CHARS, clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.quotes import quote
from torchtriage.report import Evidence

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable

    from torchtriage.logs.records import Line, Timeline

WORK = lazy_re(
    r"WorkNCCL\(SeqNum=(?P<seq>\d{1,19}), OpType=(?P<op>\w{1,60})"
    r"(?:, NumelIn=(?P<numel_in>\d{1,19}), NumelOut=(?P<numel_out>\d{1,19}))?, Timeout\(ms\)=(?P<timeout>\d{1,19})\)"
    r"(?: ran for (?P<ran>\d{1,19}) milliseconds)?"
)
_PROGRESS = lazy_re(
    r"[lL]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,19}), "
    r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,19})"
)
_FAILED_AT = lazy_re(r"(?:watchdog at work(?: sequence id)?|Timeout at NCCL work): (?P<seq>\d{1,19})")
# 2.3: [PG 1 Rank 3]; 2.4: [PG 1 (tp) Rank 3]; from 2.5 on: [PG ID 2 PG GUID 17(tp) Rank 3]
_GROUP = lazy_re(
    r"\[PG (?:ID )?(?P<id>[^\s\[\]()]{1,100})(?: PG GUID (?P<guid>[^\s\[\]()]{1,100}))?"
    r"(?: ?\((?P<desc>[^)\]]{0,100})\))? Rank (?P<rank>\d{1,7})\]"
)
_GROUP_RANK = lazy_re(r"\[Rank (?P<rank>\d{1,7})\]")
_NCCL2 = lazy_re(r"on rank (?P<rank>\d{1,7}) due to")
_SIGNALLED_BY = lazy_re(r"due to a collective timeout from {1,2}(?:this local rank|rank (?P<rank>\d{1,7}))")
# A rank waits in few groups at once; more records of one rank are repetitions, or nonsense.
_MAX_PER_RANK = 64
_SHOWN_CHARS = 130
DEFAULT_GROUPS = frozenset({"0", "default_pg"})
_NO_DESC = frozenset({"", "undefined"})


@dataclass(frozen=True)
class Group:
    """A process group as a line names it: ``key`` is the same on all its ranks and on no other group's."""

    key: str
    desc: str
    group_rank: int | None

    @property
    def is_default(self) -> bool:
        """The group of all ranks."""
        return self.key in DEFAULT_GROUPS or self.desc == "default_pg"


@dataclass
class Timeout:
    """One collective that did not finish in its time-out, as one rank reports it; what a release does not print is
    None.
    """

    rank: int | None
    line: Line
    group: Group | None
    seq: int | None = None
    operation: str | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    ran_ms: int | None = None
    progress: Progress | None = None
    frames: list[Line] = field(default_factory=list["Line"])
    """The stack of the call that timed out, innermost first, where the flight recorder had it."""

    @property
    def words(self) -> str:
        """Operation and size, the same on all ranks that issued the same call."""
        return f"{self.operation}" if self.numel_in is None else f"{self.operation} {self.numel_in}"


@dataclass(frozen=True)
class Progress:
    """How far a rank was in a group when it said so: -1 is none yet."""

    rank: int
    line: Line
    group: Group | None
    enqueued: int
    completed: int
    failed_at: int | None
    """The sequence number that the same line calls failed."""
    asked_by: int | Literal["self"] | None
    """Who made this rank write its dump, for lines that speak of one."""


def rank_of(line: Line) -> int | None:
    """The printing rank: the prefix's, else the one inside the group."""
    if line.rank is not None:
        return line.rank
    match = _GROUP.search(line.text) or _GROUP_RANK.search(line.text)
    return int(match["rank"]) if match else None


def group_of(text: str) -> Group | None:
    """The group that a line names, if it names one."""
    match = _GROUP.search(text)
    if match is None:
        return None
    desc = match["desc"] or ""
    return Group(match["guid"] or match["id"], "" if desc in _NO_DESC else desc, int(match["rank"]))


def read_progress(timeline: Timeline) -> list[Progress]:
    """All lines that say what was enqueued and completed last, in order."""
    found: list[Progress] = []
    for line in in_order(timeline.records.get("progress", ())):
        match, rank = _PROGRESS.search(line.text), rank_of(line)
        if match is None or rank is None:
            continue
        at, by = _FAILED_AT.search(line.text), _SIGNALLED_BY.search(line.text)
        found.append(
            Progress(
                rank,
                line,
                group_of(line.text),
                int(match["enqueued"]),
                int(match["completed"]),
                int(at["seq"]) if at else None,
                None if by is None else int(by["rank"]) if by["rank"] else "self",
            )
        )
    return found


def read_timeouts(timeline: Timeline, progress: list[Progress]) -> list[Timeout]:
    """Every time-out once, with its group and progress where the same rank prints them beside it."""
    of_rank: dict[int | None, list[Timeout]] = {}
    for line in in_order(timeline.records.get("watchdog", ())):
        match = WORK.search(line.text)
        if match is None:
            continue
        timeout = _timeout(line, match)
        known = of_rank.setdefault(timeout.rank, [])
        if (same := _same(known, timeout)) is not None:
            same.group = same.group or timeout.group
        elif len(known) < _MAX_PER_RANK:
            known.append(timeout)
    timeouts = sorted((t for known in of_rank.values() for t in known), key=lambda t: t.line.order)
    timed_out = {timeout.rank for timeout in timeouts}
    for kind in ("watchdog_nccl2", "wait_timeout"):
        for line in in_order(timeline.records.get(kind, ())):
            match = _NCCL2.search(line.text)
            rank = int(match["rank"]) if match else rank_of(line)
            if rank not in timed_out:
                timed_out.add(rank)
                timeouts.append(Timeout(rank, line, group_of(line.text)))
    _join(timeouts, progress)
    _name_the_only_group(timeouts, progress)
    return timeouts


def _timeout(line: Line, match: re.Match[str]) -> Timeout:
    def number(name: str) -> int | None:
        return None if match[name] is None else int(match[name])

    return Timeout(
        rank=rank_of(line),
        line=line,
        group=group_of(line.text),
        seq=int(match["seq"]),
        operation=match["op"],
        numel_in=number("numel_in"),
        numel_out=number("numel_out"),
        timeout_ms=number("timeout"),
        ran_ms=number("ran"),
    )


def _same(known: Iterable[Timeout], timeout: Timeout) -> Timeout | None:
    """The record of the same event: it is printed again when the watchdog thread ends. Two groups' are two events."""
    for other in known:
        same_call = (other.seq, other.words, other.timeout_ms) == (timeout.seq, timeout.words, timeout.timeout_ms)
        same_wait = other.ran_ms is None or timeout.ran_ms is None or other.ran_ms == timeout.ran_ms
        if (
            same_call
            and same_wait
            and (other.group is None or timeout.group is None or other.group.key == timeout.group.key)
        ):
            return other
    return None


def _join(timeouts: list[Timeout], progress: list[Progress]) -> None:
    """Newer releases print the group and the progress on the next line of the rank, with the number that failed."""
    of_rank: dict[int | None, list[Timeout]] = {}
    for timeout in timeouts:
        of_rank.setdefault(timeout.rank, []).append(timeout)
    for told in progress:
        for timeout in of_rank.get(told.rank, ()):
            if timeout.progress is not None or (
                timeout.group is not None and told.group is not None and timeout.group.key != told.group.key
            ):
                continue
            if told.failed_at is None and timeout.group is None and told.group is not None:
                continue  # a dump's line speaks of the default group, whichever group it was that timed out
            if told.failed_at is not None and timeout.seq not in (None, told.failed_at):
                continue
            timeout.group = timeout.group or told.group
            timeout.progress = told
            break


def _name_the_only_group(timeouts: list[Timeout], progress: list[Progress]) -> None:
    """Where all lines speak of one group, those that name none speak of it too."""
    groups = {told.group.key: told.group for told in progress if told.group}
    groups |= {timeout.group.key: timeout.group for timeout in timeouts if timeout.group}
    if len(groups) == 1:
        only = next(iter(groups.values()))
        for timeout in timeouts:
            timeout.group = timeout.group or Group(only.key, only.desc, None)


def quote_record(line: Line, signal: str) -> Evidence:
    """Quote a record's line so that its numbers are seen even where only the start of a quotation is shown."""
    if WORK.search(line.text):
        return quote(line, signal, "WorkNCCL")
    # Cut from the cleaned text, so that no secret is cut into something that no mask knows.
    cleaned = clean_text(line.text, limit=None)
    at = _PROGRESS.search(cleaned)
    if at is None or at.start() < _SHOWN_CHARS:
        return quote(line, signal)
    shown = cleaned[at.start() : at.start() + QUOTE_CHARS].strip()
    return Evidence(artefact=line.source, where=str(line.number), quote=shown, signal=signal)


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Lines in the order of the timeline."""
    return sorted(lines, key=lambda line: line.order)
