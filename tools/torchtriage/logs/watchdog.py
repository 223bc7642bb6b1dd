"""Collective time-outs as ProcessGroupNCCL's watchdog words them, torch 1.13 to 2.14 and the nccl2 backend.

A rank that prints such a line is normally a victim: these signals say what did not finish where, not who is to blame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.logs.quotes import quote
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from torchtriage.logs.records import Line, Timeline

_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(?P<seq>\d{1,19}), OpType=(?P<op>\w{1,60})"
    r"(?:, NumelIn=(?P<numel_in>\d{1,19}), NumelOut=(?P<numel_out>\d{1,19}))?, Timeout\(ms\)=(?P<timeout>\d{1,19})\)"
    r"(?: ran for (?P<ran>\d{1,19}) milliseconds)?"
)
_PROGRESS = re.compile(
    r"[lL]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,19}), "
    r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,19})"
)
_FAILED_AT = re.compile(r"(?:watchdog at work(?: sequence id)?|Timeout at NCCL work): (?P<seq>\d{1,19})")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>\w{1,20})(?: PG GUID (?P<guid>\w{1,40})(?:\((?P<desc>[^)]{0,100})\))?)?"
    r"[^\]]{0,40}? Rank (?P<rank>\d{1,7})\]"
)
_GROUP_RANK = re.compile(r"\[Rank (?P<rank>\d{1,7})\]")
_NCCL2 = re.compile(r"on rank (?P<rank>\d{1,7}) due to")
_RUNNING = r"is running (?:inconsistent )?collective: CollectiveFingerPrint"
_FINGERPRINT = re.compile(
    rf"Rank (?P<a>\d{{1,7}}) {_RUNNING}\((?P<first>.{{1,400}}?)\), but "
    rf"Rank (?P<b>\d{{1,7}}) {_RUNNING}\((?P<second>.{{1,400}}?)\)"
)
_DESYNC = re.compile(
    r"(?:\[[\d, ]{1,400}\]) (?:joined but didn't finish|finished) collective #\d{1,19}.{0,80}|"
    r"never joined any collectives"
)
# Operations of which all ranks must give the same number of elements; the others may be uneven by design.
_EVEN = frozenset(
    {"ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "ALLGATHER_BASE", "REDUCE_SCATTER",
     "_REDUCE_SCATTER_BASE", "REDUCE_SCATTER_BASE", "BARRIER"}
)  # fmt: skip
_SIDED = frozenset({"SEND", "RECV", "COALESCED", "GATHER", "SCATTER", "UNKNOWN"})
_UNTOLD: dict[str, Any] = dict.fromkeys(("seq", "operation", "numel_in", "numel_out", "timeout_ms", "ran_ms"))
MAX_SIGNALS = 128
_MAX_PROGRESS = 64


@dataclass
class _Timeout:
    """One collective that did not finish, as one rank reports it."""

    rank: int | None
    line: Line
    facts: dict[str, Any]
    group: str | None = None
    more: list[Line] = field(default_factory=list["Line"])


def watchdog_signals(timeline: Timeline) -> list[Signal]:
    """``log.watchdog_timeout`` per rank and group, and ``log.collectives_differ`` where ranks disagree."""
    timeouts = _timeouts(timeline)
    progress = _add_progress(timeline, timeouts)
    desync = _desync(timeline)
    signals = [_signal(timeout, progress, desync) for timeout in timeouts[:MAX_SIGNALS]]
    return signals + _differences(timeouts) + _fingerprints(timeline)


def first_hang_order(timeline: Timeline) -> int | None:
    """The place of the first line that says that a collective timed out."""
    kinds = ("watchdog", "watchdog_nccl2", "wait_timeout")
    return min((line.order for kind in kinds for line in timeline.records.get(kind, ())), default=None)


def _rank_of(line: Line) -> int | None:
    if line.rank is not None:
        return line.rank
    match = _GROUP.search(line.text) or _GROUP_RANK.search(line.text)
    return int(match["rank"]) if match else None


def _group_of(text: str) -> str | None:
    match = _GROUP.search(text)
    if match is None:
        return None
    return match["desc"] or match["guid"] or match["id"]


def _timeouts(timeline: Timeline) -> list[_Timeout]:
    found: dict[tuple[object, ...], _Timeout] = {}
    for line in sorted(timeline.records.get("watchdog", ()), key=lambda line: line.order):
        match = _WORK.search(line.text)
        if match is None:
            continue
        rank = _rank_of(line)
        numbers = {name: int(value) for name, value in match.groupdict().items() if name != "op" and value is not None}
        # The same event is printed again when the watchdog thread ends; count it once.
        key = (rank, numbers["seq"], match["op"], numbers.get("numel_in"), numbers["timeout"])
        group = _group_of(line.text)
        if key in found:
            found[key].group = found[key].group or group
            continue
        facts = {
            "seq": numbers["seq"],
            "operation": match["op"],
            "numel_in": numbers.get("numel_in"),
            "numel_out": numbers.get("numel_out"),
            "timeout_ms": numbers["timeout"],
            "ran_ms": numbers.get("ran"),
        }
        found[key] = _Timeout(rank, line, facts, group)
    timed_out = {timeout.rank for timeout in found.values()}
    for kind in ("watchdog_nccl2", "wait_timeout"):
        for line in timeline.records.get(kind, ()):
            match = _NCCL2.search(line.text)
            rank = int(match["rank"]) if match else _rank_of(line)
            if rank in timed_out:
                continue
            timed_out.add(rank)
            found[kind, rank] = _Timeout(rank, line, dict(_UNTOLD), _group_of(line.text))
    return list(found.values())


def _add_progress(timeline: Timeline, timeouts: list[_Timeout]) -> dict[str, list[int]]:
    """Give time-outs their group and progress; also return what every rank says of its own progress."""
    by_rank: dict[str, list[int]] = {}
    of_rank: dict[int | None, list[_Timeout]] = {}
    for timeout in timeouts:
        of_rank.setdefault(timeout.rank, []).append(timeout)
    for line in sorted(timeline.records.get("progress", ()), key=lambda line: line.order):
        match = _PROGRESS.search(line.text)
        if match is None:
            continue
        rank = _rank_of(line)
        enqueued, completed = int(match["enqueued"]), int(match["completed"])
        group = _group_of(line.text)
        if rank is not None and (str(rank) in by_rank or len(by_rank) < _MAX_PROGRESS):
            by_rank[str(rank)] = [enqueued, completed]
        at = _FAILED_AT.search(line.text)
        for timeout in of_rank.get(rank, ()):
            if timeout.group is not None and group is not None and timeout.group != group:
                continue
            if at is not None and timeout.facts["seq"] not in (None, int(at["seq"])):
                continue
            timeout.group = timeout.group or group
            if "last_enqueued" not in timeout.facts:
                timeout.facts |= {"last_enqueued": enqueued, "last_completed": completed}
                timeout.more.append(line)
            break
    return by_rank


def _desync(timeline: Timeline) -> list[str]:
    found: dict[str, None] = {}
    for line in timeline.records.get("desync", ()):
        if (match := _DESYNC.search(line.text)) and len(found) < 8:
            found[match[0].strip()] = None
    return list(found)


def _signal(timeout: _Timeout, progress: dict[str, list[int]], desync: list[str]) -> Signal:
    name = "log.watchdog_timeout"
    facts: dict[str, Any] = {"last_enqueued": None, "last_completed": None} | timeout.facts
    facts |= {"group": timeout.group, "from_this_rank": True}
    if progress:
        facts["progress_by_rank"] = progress
    if desync:
        facts["desync"] = desync
    return Signal(
        name=name,
        scope=Scope(
            ranks=[] if timeout.rank is None else [timeout.rank],
            groups=[timeout.group] if timeout.group else [],
        ),
        facts=facts,
        evidence=[quote(timeout.line, name, "WorkNCCL")] + [quote(line, name, "last enq") for line in timeout.more[:1]],
        time_s=timeout.line.time_s,
    )


def _differences(timeouts: list[_Timeout]) -> list[Signal]:
    """Ranks that report different operations or sizes at one sequence number of one group."""
    at: dict[tuple[str | None, int], dict[int, _Timeout]] = {}
    for timeout in timeouts:
        if timeout.rank is not None and timeout.facts["seq"] is not None:
            at.setdefault((timeout.group, timeout.facts["seq"]), {}).setdefault(timeout.rank, timeout)
    signals: list[Signal] = []
    for (group, seq), by_rank in at.items():
        if len(by_rank) < 2:
            continue
        operations = {timeout.facts["operation"] for timeout in by_rank.values()}
        sizes = {timeout.facts["numel_in"] for timeout in by_rank.values()}
        if not (len(operations) > 1 and not operations & _SIDED) and not (
            len(operations) == 1 and operations <= _EVEN and len(sizes) > 1
        ):
            continue
        name = "log.collectives_differ"
        ranks = sorted(by_rank)
        shown = _one_per_kind(by_rank)
        signals.append(
            Signal(
                name=name,
                scope=Scope(ranks=ranks, groups=[group] if group else []),
                facts={
                    "seq": seq,
                    "group": group,
                    "same_operation": len(operations) == 1,
                    "by_rank": {str(r): _words(by_rank[r]) for r in ranks[:_MAX_PROGRESS]},
                },
                evidence=[quote(timeout.line, name, "WorkNCCL") for timeout in shown],
                time_s=min((t.line.time_s for t in by_rank.values() if t.line.time_s is not None), default=None),
            )
        )
    return signals[:MAX_SIGNALS]


def _operation(fingerprint: str) -> str | None:
    found = re.search(r"OpType=(\w{1,40})", fingerprint)
    return found[1] if found else None


def _words(timeout: _Timeout) -> str:
    numel = timeout.facts["numel_in"]
    return timeout.facts["operation"] if numel is None else f"{timeout.facts['operation']} {numel}"


def _one_per_kind(by_rank: dict[int, _Timeout]) -> list[_Timeout]:
    kinds: dict[str, _Timeout] = {}
    for rank in sorted(by_rank):
        kinds.setdefault(_words(by_rank[rank]), by_rank[rank])
    return list(kinds.values())[:4]


def _fingerprints(timeline: Timeline) -> list[Signal]:
    """``TORCH_DISTRIBUTED_DEBUG=DETAIL`` shows both sides in one message."""
    name = "log.collectives_differ"
    signals: list[Signal] = []
    seen: set[tuple[int, int]] = set()
    for line in timeline.records.get("fingerprint", ()):
        match = _FINGERPRINT.search(line.text)
        if match is None or (pair := (int(match["a"]), int(match["b"]))) in seen or len(seen) >= MAX_SIGNALS:
            continue
        seen.add(pair)
        seq = re.search(r"SequenceNumber=(\d{1,19})", match["first"])
        signals.append(
            Signal(
                name=name,
                scope=Scope(ranks=sorted(set(pair))),
                facts={
                    "seq": int(seq[1]) if seq else None,
                    "group": None,
                    "same_operation": _operation(match["first"]) == _operation(match["second"]),
                    "by_rank": {str(pair[0]): match["first"][:200], str(pair[1]): match["second"][:200]},
                },
                evidence=[quote(line, name, "CollectiveFingerPrint")],
                time_s=line.time_s,
            )
        )
    return signals
