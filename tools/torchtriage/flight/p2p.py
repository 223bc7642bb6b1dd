"""Sends and receives that are posted on both sides and do not fit together. Never speaks of other members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.flight.model import shapes, words
from torchtriage.flight.ops import Signature, numel, op_of

if TYPE_CHECKING:
    from torchtriage.flight.model import Group, Member


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


def _order(row: list[Any]) -> tuple[int, int]:
    return (row[4], row[0])


def _signature(member: Member, row: list[Any]) -> Signature:
    name, ins, outs, in_types, out_types = member.dump.summary["signatures"][row[5]]
    return Signature(op_of(name), shapes(ins), shapes(outs), words(in_types), words(out_types))
