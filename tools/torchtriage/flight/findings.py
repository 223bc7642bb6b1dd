"""One finding about a group, from which both the divergence of the report and the signal are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.align import is_barrier_call
from torchtriage.flight.naming import named_site
from torchtriage.flight.ops import op_of
from torchtriage.flight.order import entered_alone
from torchtriage.flight.quotes import quote_call, quote_p2p, quote_ranks, quote_status
from torchtriage.flight.tables import as_int
from torchtriage.report import Scope, Signal
from torchtriage.tool_reports import Divergence
from torchtriage.wording import utc_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchtriage.flight.align import Departure
    from torchtriage.flight.model import Call, Group, Member, Vocabulary
    from torchtriage.flight.order import OrderDeadlock, Stuck
    from torchtriage.flight.p2p import Pair, Unanswered
    from torchtriage.flight.waits import Lag, Standing
    from torchtriage.report import Evidence
    from torchtriage.tool_reports import DivergenceKind

_QUOTED_FIELDS: dict[str, tuple[str, ...]] = {
    "size_mismatch": ("profiling_name", "input_sizes", "output_sizes"),
    "dtype_mismatch": ("profiling_name", "input_dtypes", "output_dtypes"),
}
MAX_QUOTED_RANKS = 4
MAX_WAITING_SHOWN = 1024
MAX_CIRCLE_GROUPS = 8
MAX_HISTORY_CALLS = 1024


@dataclass
class Finding:
    """What is wrong in one group, and whose doing it looks like."""

    kind: DivergenceKind
    group: Group
    ranks: list[int]
    seq: int | None = None
    call: Call | None = None
    expected: str | None = None
    found: str | None = None
    site: str | None = None
    time_ms: int | None = None
    root: bool = True
    names_culprits: bool = True
    either_of: list[int] = field(default_factory=list[int])
    """Ranks of which one is the culprit, where nothing tells which."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    evidence: list[Evidence] = field(default_factory=list["Evidence"])
    waits_in: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Of a circle: the ranks that wait first in each call, by its words."""

    def order(self) -> tuple[int, int, str, int]:
        """Sort key: the earliest first; then by rank, so that the order of files does not matter."""
        return (
            self.time_ms if self.time_ms is not None else 1 << 62,
            min(self.ranks, default=0),
            self.kind,
            self.seq or 0,
        )

    @property
    def where(self) -> str | None:
        """The call site of the call that is named; of the one found instead when that has none."""
        site = (self.call.site if self.call else "") or self.site
        return named_site(site) if site else None

    def divergence(self) -> Divergence:
        """The report's form."""
        return Divergence(
            kind=self.kind,
            group=self.group.label(),
            ranks=sorted(self.ranks),
            seq=self.seq,
            collective=self.call.op if self.call else None,
            where=self.where,
            expected=self.expected,
            found=self.found,
            since=None if self.time_ms is None else utc_words(self.time_ms / 1000),
        )

    def signal(self) -> Signal:
        """The verdict's form."""
        facts = {
            "seq": self.seq,
            "collective": self.call.op if self.call else None,
            "where": self.where,
            "behind_by": 0,
            "left_loop": False,
            "sure": True,
            "n_ranks": len(self.group.ranks),
            "unfinished": True,
            "root": self.root,
            "issuer": self.call.issuer if self.call else "",
            **self.facts,
        }
        return Signal(
            name=f"flight.{self.kind}",
            scope=Scope(ranks=sorted(self.ranks), groups=[clean_text(self.group.name, 120)]),
            facts=facts,
            evidence=self.evidence,
            time_s=self.time_ms / 1000 if self.time_ms is not None else None,
        )


def from_departure(departure: Departure, group: Group, vocabulary: Vocabulary) -> Finding:
    """Calls that do not fit together."""
    seq, witness, deviator = departure.seq, departure.witness, departure.deviator
    expected, found = vocabulary.calls[witness.soft_at(seq)], vocabulary.calls[deviator.soft_at(seq)]
    signal = f"flight.{departure.kind}"
    fields = _QUOTED_FIELDS.get(departure.kind, ("profiling_name",))
    evidence = quote_call(deviator, seq, signal, fields) + quote_call(witness, seq, signal, fields)
    if departure.shift:
        # What the ranks agree on again: the peers' later call is the one that the deviating rank made early.
        again = witness if departure.kind == "collective_missing" else deviator
        evidence += quote_call(again, seq + departure.shift, signal, ("profiling_name",), site=False)
    times = [t for t in (witness.time_ms(seq), deviator.time_ms(seq)) if t is not None]
    extra = departure.kind == "collective_extra"
    either = not departure.sure and not departure.shift and len(group.ranks) == 2
    facts: dict[str, Any] = {
        "left_loop": departure.left_loop,
        "peers_left_loop": departure.peers_left_loop,
        "sure": departure.sure,
        "barrier": is_barrier_call(deviator, seq, vocabulary),
        "n_calls": max(1, departure.shift),
        "unfinished": any(t.first_unfinished is not None for t in group.tracks),
    }
    if departure.left_loop:
        facts["left_to"] = named_site(found.site) or found.op
    if departure.kind == "collective_missing":
        facts["behind_by"] = departure.shift
    return Finding(
        departure.kind,  # pyright: ignore[reportArgumentType]  # Departure kinds are a subset of the divergence kinds
        group,
        list(departure.ranks),
        seq,
        found if extra else expected,
        expected.describe(),
        found.describe(),
        found.site,
        min(times, default=None),
        names_culprits=departure.sure or departure.shift > 0 or either,
        either_of=list(group.ranks) if either else [],
        facts=facts,
        evidence=evidence,
    )


def from_p2p(pair: Pair, group: Group) -> Finding:
    """A send that meets a receive of another size or dtype; which side is wrong cannot be read off."""
    signal = "flight.p2p_mismatch"
    return Finding(
        "p2p_mismatch",
        group,
        [pair.sender.rank, pair.receiver.rank],
        pair.send[4] or None,
        None,
        clean_text(pair.expected),
        clean_text(pair.found),
        None,
        pair.send[6] or None,
        facts={"sure": False, "unfinished": True},
        evidence=quote_p2p(pair.sender, pair.send, signal) + quote_p2p(pair.receiver, pair.receive, signal),
    )


def from_unanswered(one: Unanswered) -> Finding:
    """A send or receive that the peer went past: a call too many on one side or one too few on the other."""
    name = one.waiter.tables.signatures[one.row[5]][0]
    return Finding(
        "p2p_mismatch",
        one.group,
        one.ranks,
        one.row[4] or None,
        None,
        clean_text(f"{op_of(name)} of rank {one.waiter.rank}"),
        f"no {'send' if one.row[1] else 'recv'} of rank {one.other}",
        None,
        one.row[6] or None,
        facts={"sure": False, "unfinished": True, "unanswered": True},
        evidence=quote_p2p(one.waiter, one.row, "flight.p2p_mismatch"),
    )


def from_not_posted(group: Group, waiter: Member, other: int, row: list[Any]) -> Finding:
    """A rank that has not come to its side of a send or receive."""
    side = "send" if row[1] else "recv"
    return Finding(
        "behind_on_enqueue",
        group,
        [other],
        row[4] or None,
        None,
        clean_text(f"{op_of(waiter.tables.signatures[row[5]][0])} of rank {waiter.rank}"),
        f"no {side} to meet it",
        None,
        row[6] or None,
        facts={"sure": not group.missing and not group.has_cut, "behind_by": 1},
        evidence=quote_p2p(waiter, row, "flight.behind_on_enqueue"),
    )


def from_met(group: Group, rank: int, other: int, row: list[Any]) -> Finding:
    """Two ranks in the same send and receive, which neither finished."""
    member = group.members[rank]
    return Finding(
        "all_joined_none_finished",
        group,
        sorted((rank, other)),
        row[4] or None,
        None,
        clean_text(op_of(member.tables.signatures[row[5]][0])),
        None,
        None,
        row[6] or None,
        names_culprits=False,
        evidence=quote_p2p(member, row, "flight.all_joined_none_finished"),
    )


def from_lag(lag: Lag, vocabulary: Vocabulary, *, root: bool) -> Finding:
    """Ranks that peers wait for, or whose device is behind."""
    signal = f"flight.{lag.kind}"
    group = lag.group
    on_enqueue = lag.kind == "behind_on_enqueue"
    counter = "last_enqueued_collective" if on_enqueue else "last_completed_collective"
    if lag.on_start:
        counter = "last_started_collective"
    evidence: list[Evidence] = []
    peer = group.members[lag.peer]
    for rank in [*lag.ranks[:MAX_QUOTED_RANKS], lag.peer]:
        if not group.has_p2p and _tells(group.members[rank], lag, rank):
            evidence += quote_status(group.members[rank], counter, signal)
    late = group.members[lag.ranks[0]]
    source = peer if on_enqueue else late
    call: Call | None = None
    time_ms: int | None = None
    if source.track is not None and source.track.soft_at(lag.seq):
        call = vocabulary.calls[source.track.soft_at(lag.seq)]
        time_ms = source.track.time_ms(lag.seq)
        evidence += quote_call(source.track, lag.seq, signal, ("profiling_name",))
    found = "not started on its device" if lag.on_start else None
    if on_enqueue and late.track is not None:
        last = late.track.last
        found = f"last enqueued: {vocabulary.calls[late.track.soft_at(last)].describe()} (seq {last})"
        evidence += quote_call(late.track, last, signal, ("profiling_name",), site=False)
    facts: dict[str, Any] = {"behind_by": lag.behind_by, "sure": not group.missing and not group.has_cut}
    if lag.went_past:
        facts["went_past"] = True
    if lag.explained:
        facts["also_behind"] = lag.explained
    return Finding(
        lag.kind,  # pyright: ignore[reportArgumentType]  # Lag kinds are a subset of the divergence kinds
        group,
        lag.ranks,
        lag.seq,
        call,
        call.describe() if call else None,
        found,
        None,
        time_ms,
        root=root,
        facts=facts,
        evidence=evidence,
    )


def _tells(member: Member, lag: Lag, rank: int) -> bool:
    """Whether the rank's counters say the same as its entries do; those of completion may lag behind."""
    if member.status is None or lag.kind == "behind_on_enqueue" or lag.on_start:
        return True
    completed = as_int(member.status[3])
    return completed is not None and (completed < lag.seq) == (rank in lag.ranks)


def from_deadlock(deadlock: OrderDeadlock, vocabulary: Vocabulary) -> Finding:
    """Ranks that wait for each other."""
    signal = "flight.order_deadlock"
    evidence: list[Evidence] = []
    for stuck in deadlock.stuck[:MAX_QUOTED_RANKS]:
        if stuck.track is not None and stuck.seq is not None:
            evidence += quote_call(stuck.track, stuck.seq, signal, ("profiling_name",))
        elif stuck.p2p is not None:
            evidence += quote_p2p(stuck.group.members[stuck.rank], stuck.p2p, signal)
    alone = entered_alone(deadlock, vocabulary)
    if deadlock.sure and set(alone) & set(deadlock.deviating):
        alone = [rank for rank in alone if rank in deadlock.deviating]
    deviating = alone or deadlock.deviating
    culprit = next(s for s in deadlock.stuck if s.rank in deviating)
    other = next((s for s in deadlock.stuck if s.group is not culprit.group), deadlock.stuck[-1])
    call = vocabulary.calls[culprit.track.soft_at(culprit.seq)] if culprit.track and culprit.seq is not None else None
    waits_in: dict[str, list[int]] = {}
    for stuck in deadlock.stuck[:MAX_WAITING_SHOWN]:
        waits_in.setdefault(stuck.describe(vocabulary), []).append(stuck.rank)
    return Finding(
        "order_deadlock",
        culprit.group,
        deviating,
        culprit.seq,
        call,
        f"rank {other.rank} waits first in {other.describe(vocabulary)}",
        f"rank {culprit.rank} waits first in {culprit.describe(vocabulary)}",
        None,
        min((s.time_ms for s in deadlock.stuck if s.time_ms is not None), default=None),
        facts={
            "sure": deadlock.sure or bool(alone),
            "cycle": deadlock.cycle[:64],
            "entered_alone": bool(alone),
            "by_rank_zero": alone == [0],
            "all_joined": all(_all_joined(stuck) for stuck in deadlock.stuck),
            "turn": _turn(culprit, deadlock),
        },
        evidence=evidence,
        waits_in=waits_in,
    )


def _all_joined(stuck: Stuck) -> bool:
    """Whether every member of the group has made the call, so that the order of each is to be seen."""
    group, seq = stuck.group, stuck.seq
    if seq is None or group.missing:
        return False
    return all(member.track is not None and member.track.soft_at(seq) for member in group.members.values())


def _turn(culprit: Stuck, deadlock: OrderDeadlock) -> Literal["next", "elsewhere", "unknown"]:
    """Whether the call that a rank waits in came, before, right after the one that its peers wait in now.

    "next": then it is one call ahead of them, by a call that it left out or has yet to make. "elsewhere": it never
    followed on that call, so the rank is in another part of the program.
    """
    groups = list({id(stuck.group): stuck.group for stuck in deadlock.stuck}.values())[:MAX_CIRCLE_GROUPS]
    made: list[tuple[int, int, int]] = []
    for number, group in enumerate(groups):
        member = group.members.get(culprit.rank)
        if member is None or member.track is None:
            continue
        track = member.track
        for seq in range(max(track.first, track.last - MAX_HISTORY_CALLS), track.last + 1):
            index = track.index_at(seq)
            if index is not None and track.soft_at(seq):
                made.append((index, number, track.soft_at(seq)))
    made.sort()
    numbers = {id(group): number for number, group in enumerate(groups)}
    calls = {
        stuck.rank: (numbers[id(stuck.group)], stuck.track.soft_at(stuck.seq))
        for stuck in deadlock.stuck
        if stuck.track is not None and stuck.seq is not None and id(stuck.group) in numbers
    }
    own = calls.pop(culprit.rank, None)
    awaited = {call for call in calls.values() if call != own}
    before = [
        (previous[1], previous[2])
        for previous, current in pairwise(made)
        if current[1:] == own and current[0] < culprit.index
    ]
    if not before or not awaited:
        return "unknown"
    return "next" if awaited & set(before) else "elsewhere"


def from_joined(group: Group, seq: int, vocabulary: Vocabulary) -> Finding:
    """All members wait in the same call."""
    signal = "flight.all_joined_none_finished"
    tracks = [track for track in group.tracks if track.soft_at(seq)]
    evidence: list[Evidence] = []
    for track in tracks[:2]:
        evidence += quote_call(track, seq, signal, ("profiling_name",))
    if not evidence:
        for _, member in sorted(group.members.items())[:2]:
            evidence += quote_status(member, "last_completed_collective", signal)
    call = vocabulary.calls[tracks[0].soft_at(seq)] if tracks else None
    times = [t for t in (track.time_ms(seq) for track in tracks) if t is not None]
    return Finding(
        "all_joined_none_finished",
        group,
        list(group.ranks),
        seq,
        call,
        None,
        None,
        None,
        min(times, default=None),
        names_culprits=False,
        evidence=evidence,
    )


def from_missing(group: Group, ranks: list[int], at: Mapping[int, Standing], vocabulary: Vocabulary) -> Finding:
    """Members without a dump; the call is the one that a member with a dump waits in, if one does."""
    signal = "flight.dump_missing"
    waiting = sorted((s.unfinished, rank) for rank, s in at.items() if s.unfinished is not None)
    evidence = quote_ranks(group, signal)
    seq, call = None, None
    if waiting:
        seq, rank = waiting[0]
        track = group.members[rank].track
        if track is not None and track.soft_at(seq):
            call = vocabulary.calls[track.soft_at(seq)]
            evidence += quote_call(track, seq, signal, ("profiling_name",))
    return Finding(
        "dump_missing",
        group,
        ranks,
        seq,
        call,
        root=False,
        names_culprits=False,
        facts={"sure": False, "unfinished": bool(waiting)},
        evidence=evidence,
    )
