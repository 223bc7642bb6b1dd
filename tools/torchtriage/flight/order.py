"""Ranks that wait for each other: in several groups one after the other, or in point-to-point calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torchtriage.flight.circles import blamed, untying
from torchtriage.flight.history import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from torchtriage.flight.model import Group, Track, Vocabulary
    from torchtriage.flight.waits import Lag

MAX_HISTORY_CALLS = 512
MAX_GROUPS = 256
MAX_STUCK_RANKS = 64
MAX_BYSTANDERS = 256


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
    by_majority: bool = False
    """Whether most ranks wait in one and the same call, which those that deviate have yet to come to."""


GroupsOfRank = dict[int, list[tuple[int, "Group"]]]
"""The groups that each rank is in, with their numbers."""


def groups_of_ranks(groups: Sequence[Group]) -> GroupsOfRank:
    """The groups of which each rank's dump tells; numbers are positions in ``groups``."""
    found: GroupsOfRank = {}
    for number, group in enumerate(groups):
        for rank in group.members:
            found.setdefault(rank, []).append((number, group))
    return found


def deadlock_of(
    cycle: Sequence[int], of_rank: GroupsOfRank, waits: Mapping[int, set[int]], late: AbstractSet[int] = frozenset()
) -> OrderDeadlock | None:
    """Describe a cycle of waits: where each of its ranks waits first.

    ``late``: ranks that have not made a call which others wait in; where orders tell nothing, they are who is odd.
    """
    stuck = [s for s in (_stuck(rank, of_rank) for rank in cycle) if s is not None]
    if len(stuck) < 2 or len({_place(s) for s in stuck}) < 2:
        return None
    deadlock = _judged(list(cycle), stuck, of_rank)
    alone = untying(cycle, waits)
    if len(alone) == 1:
        return replace(deadlock, deviating=alone, sure=True)
    # Of several of which each would untie it, those whose order differs from before or from most.
    both = [rank for rank in deadlock.deviating if rank in alone]
    if deadlock.sure and both:
        return replace(deadlock, deviating=both)
    absent = [rank for rank in deadlock.deviating if rank in late]
    return replace(deadlock, deviating=absent) if not deadlock.sure and absent else deadlock


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
        calls = member.track.calls.before(seq) if rank == stuck.rank else member.track.calls.soft
        if any(vocabulary.calls[number].site == site for number in set(calls)):
            return True
    return False


def has_gone_past(rank: int, lag: Lag, of_rank: GroupsOfRank) -> bool:
    """Whether a late rank issued, in another group, a call that a peer issued only after the one that it lacks."""
    peer = lag.group.members[lag.peer]
    missed_at = peer.track.index_at(lag.seq) if peer.track is not None else None
    if missed_at is None:
        return False
    elsewhere = [group for _, group in of_rank.get(rank, ())[:MAX_GROUPS] if group is not lag.group]
    return went_past(rank, peer.rank, missed_at, elsewhere)


def went_past(rank: int, peer: int, index: int, groups: Sequence[Group]) -> bool:
    """Whether ``rank`` made a collective of its ``groups`` that ``peer`` made only after the entry ``index``."""
    for group in groups:
        here, there = group.members[rank].track, group.members[peer].track if peer in group.members else None
        if here is not None and there is not None:
            shared = there.index_at(min(here.last, there.last))
            if shared is not None and shared > index:
                return True
    return False


def _place(stuck: Stuck) -> tuple[Any, ...]:
    direction = tuple(stuck.p2p[1:4]) if stuck.p2p else ()
    return (id(stuck.group), *direction)


def _judged(cycle: list[int], stuck: list[Stuck], of_rank: GroupsOfRank) -> OrderDeadlock:
    votes = Counter(_place(s) for s in (*stuck, *_bystanders(stuck, of_rank)))
    (place, most), *rest = votes.most_common()
    if votes.total() > 2 and all(n < most for _, n in rest):
        return OrderDeadlock(cycle, [s.rank for s in stuck if _place(s) != place], True, stuck, by_majority=True)
    places = {s.rank: _order_fits(s, of_rank) for s in stuck}
    least = min(places.values())
    worst = [rank for rank, fits in places.items() if fits == least]
    if len(worst) < len(stuck):
        return OrderDeadlock(cycle, worst, True, stuck)
    return OrderDeadlock(cycle, cycle, False, stuck)


def _bystanders(stuck: list[Stuck], of_rank: GroupsOfRank) -> list[Stuck]:
    """Ranks outside the circle that are stuck in one of its calls, and are in all groups whose order is in question."""
    places = {_place(s) for s in stuck}
    groups = list({id(s.group): s.group for s in stuck}.values())
    inside = {s.rank for s in stuck}
    ranks = sorted(r for r in groups[0].members if r not in inside and all(r in g.members for g in groups[1:]))
    return [
        s for s in (_stuck(rank, of_rank) for rank in ranks[:MAX_BYSTANDERS]) if s is not None and _place(s) in places
    ]


def _order_fits(stuck: Stuck, of_rank: GroupsOfRank) -> int:
    """How the group of the stuck call fits the order in which the rank used its groups before."""
    used: list[tuple[int, int]] = []
    here = -1
    for number, group in of_rank.get(stuck.rank, ()):
        if group is stuck.group:
            here = number
        track = group.members[stuck.rank].track
        if track is None:
            continue
        rows = track.calls.index
        used.extend((rows[i], number) for i in range(max(0, len(rows) - MAX_HISTORY_CALLS), len(rows)))
    history = [number for index, number in sorted(used) if index < stuck.index]
    return place_of(here, history)


def _stuck(rank: int, of_rank: GroupsOfRank) -> Stuck | None:
    """The first unfinished call of a rank over all groups, in the order in which it was issued."""
    best: Stuck | None = None
    for _, group in of_rank.get(rank, ()):
        member = group.members[rank]
        track = member.track
        if track is not None and track.first_unfinished is not None:
            seq = track.first_unfinished
            index = track.index_at(seq)
            if index is not None and (best is None or index < best.index):
                best = Stuck(rank, group, track, seq, None, index, track.time_ms(seq))
        for entry in member.p2p:
            if best is None or entry[0] < best.index:
                best = Stuck(rank, group, None, None, entry, entry[0], entry[6] or None)
    return best


def not_held_up(of_rank: GroupsOfRank) -> set[int]:
    """Groups, by number, whose first unfinished calls no other group's hold up.

    A rank's calls run in the order in which it issued them, so its first unfinished call of one group waits for the one
    of another group that it issued before.
    """
    after: dict[int, set[int]] = {}
    for rank, numbered in of_rank.items():
        opens = ((group.members[rank].first_open, number) for number, group in numbered)
        calls = sorted((index, number) for index, number in opens if index is not None)
        for _, number in calls:
            after.setdefault(number, set())
        for (_, before), (_, number) in pairwise(calls):
            after[number].add(before)
    return blamed(after)[0]
