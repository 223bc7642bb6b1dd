"""Waits that end without a collective's watchdog: Gloo operations, the store, communicator set-up, and the watchdog
thread itself when nothing hears from it.

Says who waited and for how long; whoever was waited for is named only where the line names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.quotes import quote
from torchtriage.logs.watchdog.lines import in_order, rank_of
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    import re

    from torchtriage.logs.records import Line, Timeline

_GLOO = lazy_re(r"Timed out waiting (?P<timeout_ms>\d{1,19})ms for (?P<operation>recv|send) operation")
_STUCK = lazy_re(r"watchdog got stuck for (?P<stuck_s>\d{1,19}) seconds")
_PENDING = lazy_re(r"workMetaList_\.size\(\)=(?P<n_pending>\d{1,19})")
_CLIENTS = lazy_re(
    r"Timed out after (?P<timeout_s>\d{1,19}) seconds waiting for clients\. (?P<joined>\d{1,7})/(?P<expected>\d{1,7})"
    r" clients joined"
)
_SETTING_UP = lazy_re(
    r"\[(?P<rank>\d{1,7})\] is setting up NCCL communicators? and retr(?:ei|ie)ving ncclUniqueIds? from "
    r"(?:\[(?P<root>\d{1,7})\]|roots)"
)
_STORE_KEY = lazy_re(r"(?:Timeout waiting for key: |wait timeout after )(?P<key>[^\s,]{1,200})")
_FLAG = lazy_re(r"with error: (?P<error>.{1,120})")


def wait_signals(timeline: Timeline) -> list[Signal]:
    """One signal per kind of wait, for all ranks that report it; set-up one by one, since counts differ."""
    signals = [
        _merged(timeline, "heartbeat", "log.heartbeat_lost", (_STUCK, _PENDING)),
        _merged(timeline, "store_gone", "log.store_gone", (_FLAG,)),
        _merged(timeline, "gloo_wait", "log.gloo_timeout", (_GLOO,)),
        _merged(timeline, "store_wait", "log.store_timeout", (_STORE_KEY,)),
        _clients(timeline),
        _setting_up(timeline),
    ]
    return [signal for signal in signals if signal is not None]


def _merged(timeline: Timeline, kind: str, name: str, patterns: tuple[re.Pattern[str], ...]) -> Signal | None:
    lines = in_order(timeline.records.get(kind, ()))
    if not lines:
        return None
    facts: dict[str, Any] = {"n_lines": len(lines)}
    for pattern in patterns:
        match = next((m for line in lines[:64] if (m := pattern.search(line.text))), None)
        if match is not None:
            facts |= {key: int(v) if v.isdecimal() else clean_text(v, 200) for key, v in match.groupdict("").items()}
    ranks = {rank for line in lines if (rank := rank_of(line)) is not None}
    return _signal(name, ranks, facts, lines[0])


def _clients(timeline: Timeline) -> Signal | None:
    """The store's side of a start: how many came. Which ones no line tells."""
    for line in in_order(timeline.records.get("init_wait", ())):
        if match := _CLIENTS.search(line.text):
            joined, expected = int(match["joined"]), int(match["expected"])
            facts = {"joined": joined, "expected": expected, "n_missing": expected - joined}
            return _signal("log.init_wait", set(), {**facts, "timeout_s": int(match["timeout_s"])}, line)
    return None


def _setting_up(timeline: Timeline) -> Signal | None:
    """Ranks that wait for the id of a new communicator: the group's first rank has not come to it, or is dead."""
    waiting: set[int] = set()
    first: tuple[Line, str | None] | None = None
    for line in in_order(timeline.records.get("init_wait", ())):
        if match := _SETTING_UP.search(line.text):
            rank = line.rank if line.rank is not None else int(match["rank"])
            waiting.add(rank)
            first = first or (line, match["root"])
    if first is None:
        return None
    line, root = first
    facts: dict[str, Any] = {"n_waiting": len(waiting)}
    if root is not None:
        facts["missing_group_rank"] = int(root)
    return _signal("log.init_wait", waiting, facts, line)


def _signal(name: str, ranks: set[int], facts: dict[str, Any], line: Line) -> Signal:
    return Signal(name=name, scope=Scope(ranks=sorted(ranks)), facts=facts, evidence=[quote(line, name)],
                  time_s=line.time_s)  # fmt: skip
