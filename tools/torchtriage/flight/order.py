"""Ranks that wait for each other: in two groups one after the other, or in point-to-point calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.flight.history import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.flight.model import Group, Track, Vocabulary
    from torchtriage.flight.waits import Lag, Standing

MAX_HISTORY_CALLS = 512
MAX_STUCK_GROUPS = 8
MAX_GROUPS = 256
MAX_STUCK_RANKS = 64


@dataclass(frozen=True)
class Stuck:
    """The first unfinished call of a rank: a collective (``seq`` in ``track``) or a row of a point-to-point entry."""

    rank: int
    group: Group
    track: Track | None
    seq: int | None
    p2p: list[Any] | None
    index: int
    time_ms: int | None

    def describe(self, vocabulary: Vocabulary) -> str:
        """Words for reports."""
        if self.track is not None and self.seq is not None:
            return vocabulary.calls[self.track.soft_at(self.seq)].describe() + f" in {self.group.label()}"
        row = self.p2p or [0, 0, 0, 0]
        ranks = self.group.ranks
        return (
            f"{'recv from' if row[1] else 'send to'} rank {ranks[row[2] if row[1] else row[3]]} in {self.group.label()}"
        )


@dataclass(frozen=True)
class OrderDeadlock:
    """Ranks that wait for each other; ``deviating`` are those whose order differs, all when that cannot be told."""

    cycle: list[int]
    deviating: list[int]
    sure: bool
    stuck: list[Stuck]


def deadlock_of(cycle: Sequence[int], groups: Sequence[Group]) -> OrderDeadlock | None:
    """Describe a cycle of waits: where each of its ranks waits first."""
    stuck = [s for s in (_stuck(rank, groups) for rank in cycle) if s is not None]
    if len(stuck) < 2 or len({_place(s) for s in stuck}) < 2:
        return None
    return _judged(list(cycle), stuck, groups)


def entered_alone(deadlock: OrderDeadlock, vocabulary: Vocabulary) -> list[int]:
    """Ranks that wait at a place of the program where no rank of the circle called before, while others repeat theirs.

    Their order of groups is not another one: they went into a part of the program that their peers did not enter.
    """
    stuck = deadlock.stuck[:MAX_STUCK_RANKS]
    new = [s.rank for s in stuck if s.track is not None and not _called_before(s, stuck, vocabulary)]
    return new if len(new) < len(stuck) else []


def _called_before(stuck: Stuck, others: Sequence[Stuck], vocabulary: Vocabulary) -> bool:
    track, seq = stuck.track, stuck.seq
    site = vocabulary.calls[track.soft_at(seq)].site if track is not None and seq is not None else ""
    if not site or track is None or seq is None:
        return True
    for rank in {stuck.rank, *(other.rank for other in others)}:
        member = stuck.group.members.get(rank)
        if member is None or member.track is None:
            continue
        calls = member.track.soft
        if rank == stuck.rank:
            calls = calls[: seq - track.first]
        if any(vocabulary.calls[number].site == site for number in set(calls)):
            return True
    return False


def went_past(lag: Lag, groups: Sequence[Group]) -> bool:
    """Whether the late ranks issued, in another group, a call that a peer issued only after the one that they lack."""
    late, peer = lag.group.members[lag.ranks[0]], lag.group.members[lag.peer]
    row = peer.track.row(lag.seq) if peer.track is not None else None
    if lag.kind != "behind_on_enqueue" or peer.track is None or row is None:
        return False
    missed_at = peer.track.index[row]
    for group in groups[:MAX_GROUPS]:
        here, there = group.members.get(late.rank), group.members.get(peer.rank)
        if group is lag.group or here is None or there is None or here.track is None or there.track is None:
            continue
        row = there.track.row(min(here.track.last, there.track.last))
        if row is not None and there.track.index[row] > missed_at:
            return True
    return False


def _place(stuck: Stuck) -> tuple[Any, ...]:
    direction = tuple(stuck.p2p[1:4]) if stuck.p2p else ()
    return (stuck.group.name, stuck.group.ranks, *direction)


def _judged(cycle: list[int], stuck: list[Stuck], groups: Sequence[Group]) -> OrderDeadlock:
    votes = Counter(_place(s) for s in stuck)
    (place, most), *rest = votes.most_common()
    if len(stuck) > 2 and all(n < most for _, n in rest):
        return OrderDeadlock(cycle, [s.rank for s in stuck if _place(s) != place], True, stuck)
    places = {s.rank: _order_fits(s, groups) for s in stuck}
    worst = [rank for rank, fits in places.items() if fits == min(places.values())]
    if len(worst) < len(stuck):
        return OrderDeadlock(cycle, worst, True, stuck)
    return OrderDeadlock(cycle, cycle, False, stuck)


def _order_fits(stuck: Stuck, groups: Sequence[Group]) -> int:
    """How the group of the stuck call fits the order in which the rank used its groups before."""
    used: list[tuple[int, int]] = []
    here = -1
    for number, group in enumerate(groups):
        if group is stuck.group:
            here = number
        member = group.members.get(stuck.rank)
        if member is None or member.track is None:
            continue
        rows = member.track.index
        used.extend((rows[i], number) for i in range(max(0, len(rows) - MAX_HISTORY_CALLS), len(rows)))
    history = [number for index, number in sorted(used) if index < stuck.index]
    return place_of(here, history)


def _stuck(rank: int, groups: Sequence[Group]) -> Stuck | None:
    """The first unfinished call of a rank over all groups, in the order in which it was issued."""
    best: Stuck | None = None
    for group in groups:
        member = group.members.get(rank)
        if member is None:
            continue
        track = member.track
        if track is not None and track.first_unfinished is not None:
            row = track.row(track.first_unfinished)
            if row is not None and (best is None or track.index[row] < best.index):
                seq = track.first_unfinished
                best = Stuck(rank, group, track, seq, None, track.index[row], track.time_ms(seq))
        for entry in member.p2p:
            if best is None or entry[0] < best.index:
                best = Stuck(rank, group, None, None, entry, entry[0], entry[6] or None)
    return best


def crossed_orders(
    groups: Sequence[Group], at: Mapping[int, Mapping[int, Standing]], joined: Mapping[int, int]
) -> OrderDeadlock | None:
    """Two groups whose stuck calls all members joined, but not all in the same order.

    Args:
        groups: all groups.
        at: standings by position in ``groups``.
        joined: for positions in ``groups``, the call that all members joined and none finished.
    """
    orders: dict[tuple[int, int], dict[bool, list[Stuck]]] = {}
    per_rank: dict[int, list[Stuck]] = {}
    number_of = {id(groups[number]): number for number in joined}
    for number, seq in joined.items():
        for rank in at[number]:
            member = groups[number].members[rank]
            track = member.track
            row = track.row(seq) if track is not None else None
            if track is not None and row is not None:
                here = Stuck(rank, groups[number], track, seq, None, track.index[row], track.time_ms(seq))
                per_rank.setdefault(rank, []).append(here)
    for calls in per_rank.values():
        calls.sort(key=lambda s: s.index)
        for i, first in enumerate(calls[:MAX_STUCK_GROUPS]):
            for second in calls[i + 1 : MAX_STUCK_GROUPS]:
                a, b = number_of[id(first.group)], number_of[id(second.group)]
                orders.setdefault((min(a, b), max(a, b)), {}).setdefault(a < b, []).append(first)
    for pair in sorted(orders):
        if len(orders[pair]) == 2:
            stuck = sorted((s for side in orders[pair].values() for s in side), key=lambda s: s.rank)
            return _judged([s.rank for s in stuck], stuck, groups)
    return None
