"""What torch itself reports about ranks that disagree or did not come: the desync report, collective fingerprints,
monitored barriers, and the flight-recorder tool's own words in a log.

These name ranks, never a reason. Ranks inside a group are all that they know; the default group's are those of the job.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.quotes import quote
from torchtriage.logs.watchdog.lines import in_order
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from torchtriage.logs.records import Line, Timeline

MAX_SIGNALS = 128
_MAX_RANKS = 4096
_RANKS = r"\d{1,7}(?:, ?\d{1,7}){0,400}"
_NOT_JOINED = lazy_re(
    rf"\[(?P<ranks>{_RANKS})\] finished collective #(?P<finished>\d{{1,19}}), but didn't join collective #"
    rf"(?P<seq>\d{{1,19}})"
)
_NOT_FINISHED = lazy_re(rf"\[(?P<ranks>{_RANKS})\] joined but didn't finish collective #(?P<seq>\d{{1,19}})")
_NEVER = lazy_re(rf"\[(?P<ranks>{_RANKS})\] are the lagging ranks")
_MISSING = lazy_re(rf"missing ranks: \{{(?P<ranks>{_RANKS})\}}")
_ENTRY = lazy_re(r"sequence number: ?(?P<seq>\d{1,19})")
_CULPRIT = lazy_re(r"Culprit rank (?P<ranks>\d{1,7})\b.{0,200}?Error type: (?P<error>[A-Z_]{3,60})")
_BARRIER = lazy_re(rf"Ranks? (?P<ranks>{_RANKS}) failed to pass monitoredBarrier in (?P<timeout>\d{{1,19}}) ms")
_RUNNING = r"is running (?:inconsistent )?collective: CollectiveFingerPrint"
_BOTH_SIDES = lazy_re(
    rf"Rank (?P<a>\d{{1,7}}) {_RUNNING}\((?P<first>.{{1,800}}?)\), but "
    rf"Rank (?P<b>\d{{1,7}}) {_RUNNING}\((?P<second>.{{1,800}}?)\)"
)
# torch <= 1.11 shows the rank that differs from rank 0 alone.
_ONE_SIDE = lazy_re(rf"Rank (?P<a>\d{{1,7}}) {_RUNNING}\((?P<first>.{{1,800}}?)\)")
_ASPECTS = ("Sequence number", "Op type", "Tensor shapes", "Tensor dtypes", "Tensor devices")
_FINGERPRINT_CHARS = 200


def report_signals(timeline: Timeline) -> list[Signal]:
    """``log.desync_report``, ``log.barrier_late``, and ``log.collectives_differ`` from fingerprints."""
    return _desync(timeline) + _flight_tool(timeline) + _barriers(timeline) + _fingerprints(timeline)


def desync_words(timeline: Timeline) -> list[str]:
    """The telling part of each line of the desync report, in its own words."""
    found: dict[str, None] = {}
    for line in in_order(timeline.records.get("desync", ())):
        for pattern in (_NOT_JOINED, _NOT_FINISHED, _NEVER):
            if (match := pattern.search(line.text)) and len(found) < 8:
                found[clean_text(match[0])] = None
    return list(found)


def _desync(timeline: Timeline) -> list[Signal]:
    """Who did not join: those that joined and wait are named as well, and they are the victims."""
    signals: dict[tuple[object, ...], Signal] = {}
    waiting: set[int] = set()
    for line in in_order(timeline.records.get("desync", ())):
        if match := _NOT_FINISHED.search(line.text):
            waiting |= _ranks(match["ranks"])
        match = _NOT_JOINED.search(line.text) or _NEVER.search(line.text)
        if match is None or len(signals) >= MAX_SIGNALS:
            continue
        seq = match.groupdict().get("seq")
        facts: dict[str, Any] = {"never_joined": seq is None, "told_by": "desync report"}
        if seq is not None:
            facts |= {"seq": int(seq), "last_finished": int(match["finished"])}
        ranks = _ranks(match["ranks"])
        signals.setdefault((seq, *sorted(ranks)), _signal("log.desync_report", ranks, facts, line, match[0]))
    for signal in signals.values():
        if waiting:
            signal.facts["waiting_ranks"] = sorted(waiting)[:64]
    return list(signals.values())


def _flight_tool(timeline: Timeline) -> list[Signal]:
    """``torchfrtrace``: that a state differs alone is weak, since dumps are written at different moments."""
    signals: dict[tuple[object, ...], Signal] = {}
    seq: dict[str, int] = {}
    for line in in_order(timeline.records.get("flight_tool", ())):
        if (entry := _ENTRY.search(line.text)) and "Not all ranks joining" in line.text:
            seq[line.source] = int(entry["seq"])
        facts: dict[str, Any] = {"never_joined": False, "told_by": "torchfrtrace"}
        match = _CULPRIT.search(line.text)
        if match is not None:
            facts["error"] = match["error"]
        elif line.source in seq:
            match = _MISSING.search(line.text)
            facts["seq"] = seq[line.source]
        weak = facts.get("error") == "COLLECTIVE_STATE_MISMATCH"
        if match is not None and not weak and len(signals) < MAX_SIGNALS:
            ranks = _ranks(match["ranks"])
            signals.setdefault(tuple(sorted(ranks)), _signal("log.desync_report", ranks, facts, line, match[0]))
    return list(signals.values())


def _barriers(timeline: Timeline) -> list[Signal]:
    late: set[int] = set()
    first: tuple[Line, re.Match[str]] | None = None
    for line in in_order(timeline.records.get("barrier", ())):
        if match := _BARRIER.search(line.text):
            first = first or (line, match)
            late |= _ranks(match["ranks"])
    if first is None:
        return []
    line, match = first
    return [_signal("log.barrier_late", late, {"timeout_ms": int(match["timeout"])}, line, match[0])]


def _fingerprints(timeline: Timeline) -> list[Signal]:
    """``TORCH_DISTRIBUTED_DEBUG=DETAIL`` shows both sides in one message."""
    signals: list[Signal] = []
    seen: set[tuple[int, ...]] = set()
    for line in in_order(timeline.records.get("fingerprint", ())):
        match = _BOTH_SIDES.search(line.text) or _ONE_SIDE.search(line.text)
        if match is None or len(seen) >= MAX_SIGNALS:
            continue
        sides = {int(match["a"]): match["first"]}
        if "b" in match.re.groupindex:
            sides[int(match["b"])] = match["second"]
        ranks = tuple(sides)
        if ranks in seen:
            continue
        seen.add(ranks)
        seqs = {_field(side, "SequenceNumber") for side in sides.values()}
        operations = {_field(side, "OpType") for side in sides.values()}
        first_seq = _field(match["first"], "SequenceNumber")
        told = line.text.partition("differ in the following aspects")[2]
        facts: dict[str, Any] = {
            "seq": int(first_seq) if first_seq is not None and first_seq.isdigit() else None,
            "group": None,
            "same_operation": len(sides) > 1 and len(operations) == 1,
            "same_seq": len(sides) > 1 and len(seqs) == 1,
            "odd_ranks": [],
            "aspects": [aspect for aspect in _ASPECTS if aspect in told],
            "by_rank": {str(rank): clean_text(side, _FINGERPRINT_CHARS) for rank, side in sides.items()},
        }
        signals.append(_signal("log.collectives_differ", set(ranks), facts, line, "CollectiveFingerPrint"))
    return signals


def _field(fingerprint: str, name: str) -> str | None:
    found = re.search(rf"\b{name}=(\w{{1,40}})", fingerprint)
    return found[1] if found else None


def _ranks(text: str) -> set[int]:
    return {int(rank) for rank in text.split(",")[:_MAX_RANKS]}


def _signal(name: str, ranks: set[int], facts: dict[str, Any], line: Line, needle: str) -> Signal:
    return Signal(
        name=name,
        scope=Scope(ranks=sorted(ranks)),
        facts=facts,
        evidence=[quote(line, name, needle[:60])],
        time_s=line.time_s,
    )
