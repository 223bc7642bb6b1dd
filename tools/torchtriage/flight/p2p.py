"""Sends and receives that do not fit together, or of which one side was left out. Never speaks of other members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.flight.model import shapes, words
from torchtriage.flight.ops import Signature, numel, op_of
from torchtriage.flight.order import went_past

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.flight.model import Group, Member


MAX_BATCH = 64


@dataclass(frozen=True)
class Pair:
    """An unfinished send and the receive it meets."""

    sender: Member
    receiver: Member
    send: list[Any]
    receive: list[Any]
    expected: str
    found: str


def mismatched_pairs(group: Group) -> list[Pair]:
    """Pairs whose first unfinished send and receive differ in elements or dtype.

    Only where both sides have as many unfinished calls of the pair: otherwise one of them may have finished on one side
    alone, and what is first here is not what is first there. A dump that lost its end has lost some, so it is left out.
    """
    posted: dict[tuple[int, int], tuple[list[list[Any]], list[list[Any]]]] = {}
    n = len(group.ranks)
    for rank, member in group.members.items():
        for row in member.p2p:
            receives, source, destination = row[1:4]
            if source < n and destination < n and group.ranks[destination if receives else source] == rank:
                sides = posted.setdefault((source, destination), ([], []))
                (sides[1] if receives else sides[0]).append(row)
    pairs: list[Pair] = []
    for (source, destination), (sends, receives) in sorted(posted.items()):
        if not sends or len(sends) != len(receives):
            continue
        sender, receiver = group.members[group.ranks[source]], group.members[group.ranks[destination]]
        if sender.dump.summary["cut"] or receiver.dump.summary["cut"]:
            continue
        send, receive = min(sends, key=_order), min(receives, key=_order)
        a, b = _signature(sender, send), _signature(receiver, receive)
        sizes = numel(a.in_sizes), numel(b.out_sizes)
        if (None not in sizes and sizes[0] != sizes[1]) or (
            a.in_dtypes and b.out_dtypes and a.in_dtypes != b.out_dtypes
        ):
            pairs.append(Pair(sender, receiver, send, receive, a.describe(), b.describe()))
    return pairs


@dataclass(frozen=True)
class Unanswered:
    """A send or receive in which a rank is stuck, and whose other side the peer went past without posting it."""

    group: Group
    waiter: Member
    other: int
    row: list[Any]

    @property
    def ranks(self) -> list[int]:
        """The two ranks, of which one made a call too many or one too few."""
        return sorted((self.waiter.rank, self.other))


def unanswered_calls(cycle: Sequence[int], of_rank: Mapping[int, Sequence[tuple[int, Group]]]) -> list[Unanswered]:
    """Calls in which ranks of a circle of waits are stuck though the peer, itself in the circle, waits elsewhere.

    A peer that is stuck in such a call too may be about to post its side: that is an order in which both wait.
    """
    found: dict[int, Unanswered] = {}
    for rank in cycle:
        group = _first_stuck_group(rank, of_rank.get(rank, ()))
        member = group.members[rank] if group is not None else None
        if group is None or member is None or not member.p2p or member.p2p[0][0] != member.first_open:
            continue
        for row in member.p2p:
            receives, batch = row[1], row[4]
            other = group.members.get(group.other_side(row))
            if batch != member.p2p[0][4] or other is None:
                break
            if _n_posted(other, 1 - receives, row) < _n_posted(member, receives, row):
                found[rank] = Unanswered(group, member, other.rank, row)
                break
    inside = set(cycle)
    return [one for _, one in sorted(found.items()) if one.other in inside and one.other not in found]


def left_out_calls(groups: Sequence[Group], of_rank: Mapping[int, Sequence[tuple[int, Group]]]) -> list[Unanswered]:
    """Calls in which ranks are stuck though the peer has posted fewer, and has made collectives that come after them.

    A batch with several peers is not judged: what the one has finished already looks as if it were left out.
    """
    found: dict[int, Unanswered] = {}
    for group in groups if any(group.has_p2p for group in groups) else ():
        for rank, member in group.members.items():
            if rank in found or not member.p2p or _first_stuck_group(rank, of_rank.get(rank, ())) is not group:
                continue
            batch = [row for row in member.p2p if row[4] == member.p2p[0][4]][:MAX_BATCH]
            peers = {group.other_side(row) for row in batch}
            other = group.members.get(min(peers))
            if len(peers) > 1 or other is None or member.p2p[0][0] != member.first_open:
                continue
            lacking = [row for row in batch if _n_posted(other, 1 - row[1], row) < _n_posted(member, row[1], row)]
            there = [group for _, group in of_rank.get(other.rank, ())]
            if lacking and went_past(other.rank, rank, lacking[0][0], there):
                found[rank] = Unanswered(group, member, other.rank, lacking[0])
    return [one for _, one in sorted(found.items()) if one.other not in found]


def _first_stuck_group(rank: int, numbered: Sequence[tuple[int, Group]]) -> Group | None:
    opens = [(index, number) for number, group in numbered if (index := group.members[rank].first_open) is not None]
    return dict(numbered)[min(opens)[1]] if opens else None


def _n_posted(member: Member, receives: int, like: list[Any]) -> int:
    return sum(row[1:4] == [receives, *like[2:4]] for row in member.p2p)


def _order(row: list[Any]) -> tuple[int, int]:
    return (row[4], row[0])


def _signature(member: Member, row: list[Any]) -> Signature:
    name, ins, outs, in_types, out_types = member.tables.signatures[row[5]]
    return Signature(op_of(name), shapes(ins), shapes(outs), words(in_types), words(out_types))
