"""Who waits for whom over all groups of a job. Blame flows along these waits to the ranks that wait for nobody.

A rank waits in the first thing that it has not finished for members that have not made that call, and for members that
made it behind something else that they are stuck in, because a device runs the calls of a rank one after the other.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from torchtriage.flight.waits import behind_on_enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torchtriage.flight.model import Group
    from torchtriage.flight.waits import Standing

MAX_AWAITED = 8
"""Different calls of one group that ranks may be stuck in first; more than two are a sign of damaged counters."""


class Head(NamedTuple):
    """The first thing that a rank has not finished: its entry in the dump, the group's number, the p2p batch or -1."""

    row: int
    group: int
    batch: int


Heads = dict[int, Head]
Waits = dict[int, set[int]]
"""For each rank those that it waits for.

Negative numbers are helper nodes, so that the graph stays linear in the number of ranks: per group a chain over its
ranks in order of what they enqueued ("all that have enqueued less" is one edge), one node for "all that are held up
elsewhere", and one that leads nowhere for a call that all have come to and that nobody finishes.
"""


def heads_of(groups: Sequence[Group]) -> Heads:
    """The first unfinished thing of each rank that has any."""
    heads: Heads = {}
    for number, group in enumerate(groups):
        for rank, member in group.members.items():
            index = member.first_open
            if index is not None and (rank not in heads or index < heads[rank].row):
                batch = member.p2p[0][4] if member.p2p and member.p2p[0][0] == index else -1
                heads[rank] = Head(index, number, batch)
    return heads


def wait_graph(
    groups: Sequence[Group], at: Sequence[Mapping[int, Standing]], heads: Mapping[int, Head] | None = None
) -> Waits:
    """The waits of a job.

    Args:
        groups: all groups that have more than one rank.
        at: where the ranks stand in each.
        heads: of ranks whose calls are taken to run one after the other. Without, only those who have not made a call
            are waited for.
    """
    waits: Waits = {}
    helper = _helpers()
    met: set[int] = set()
    heads = heads or {}
    for number, (group, group_at) in enumerate(zip(groups, at, strict=True)):
        _add_late(waits, group, group_at, helper)
        _add_held(waits, number, group, group_at, heads, helper)
        met.update(_add_p2p(waits, number, group, heads))
    for rank in sorted(met - waits.keys()):  # of a batch, what is not met holds the rest up
        node = next(helper)
        waits[node] = set()
        waits[rank] = {node}
    return waits


def _helpers() -> Iterator[int]:
    number = 0
    while True:
        number -= 1
        yield number


def _add_late(waits: Waits, group: Group, at: Mapping[int, Standing], helper: Iterator[int]) -> None:
    """Waits for members that have not enqueued a call, or that left no dump."""
    waiting = [(rank, s.unfinished) for rank, s in at.items() if s.unfinished is not None]
    if not waiting:
        return
    late = behind_on_enqueue(at)
    chain: list[int] = []
    for rank in late:
        node = next(helper)
        waits[node] = {rank, chain[-1]} if chain else {rank}
        chain.append(node)
    enqueued = [at[rank].enqueued for rank in late]
    for rank, seq in waiting:
        if n := bisect_left(enqueued, seq):
            waits.setdefault(rank, set()).add(chain[n - 1])
    if not late and (absent := group.missing):  # then nobody but these can be who is waited for
        for rank, _ in waiting:
            waits.setdefault(rank, set()).add(absent[0])


def _add_held(
    waits: Waits, number: int, group: Group, at: Mapping[int, Standing], heads: Mapping[int, Head],
    helper: Iterator[int],
) -> None:  # fmt: skip
    """Waits for members that made the call, and are stuck in something that they have to finish before it."""
    stuck: dict[int, list[int]] = {}
    for rank, standing in at.items():
        head = heads.get(rank)
        if head is not None and head.group == number and head.batch < 0 and standing.unfinished is not None:
            stuck.setdefault(standing.unfinished, []).append(rank)
    for seq in sorted(stuck)[-MAX_AWAITED:]:
        here = set(stuck[seq])
        held = {
            rank
            for rank, s in at.items()
            if rank in heads and rank not in here and s.unfinished is not None and s.unfinished <= seq <= s.enqueued
        }
        everybody = len(here) == len(group.ranks)
        if not held and not everybody:
            continue
        node = next(helper)
        waits[node] = held
        for rank in here:
            waits.setdefault(rank, set()).add(node)


def _add_p2p(waits: Waits, number: int, group: Group, heads: Mapping[int, Head]) -> set[int]:
    """Waits in unfinished sends and receives whose other side has not been posted, or only after others; per pair.

    Returns the ranks that are stuck in one of which both sides have come to it.
    """
    stuck: set[int] = set()
    posted: dict[tuple[int, int, int], int] = {}
    at_once: set[tuple[int, int, int]] = set()
    n = len(group.ranks)
    for rank, member in group.members.items():
        for _, receives, source, destination, seq, *_ in member.p2p:
            if source < n and destination < n and group.ranks[destination if receives else source] == rank:
                posted[receives, source, destination] = posted.get((receives, source, destination), 0) + 1
                if rank in heads and heads[rank][1:] == (number, seq):  # the calls of a batch run together
                    at_once.add((receives, source, destination))
    answers = {key: posted.get((1 - key[0], *key[1:]), 0) for key in posted}
    # The calls of a batch finish together: one that is not answered keeps the peers of the others waiting too.
    lacking = {group.ranks[key[2] if key[0] else key[1]] for key in at_once if answers[key] < posted[key]}
    for key, count in posted.items():
        receives, source, destination = key
        here, there = (destination, source) if receives else (source, destination)
        other = group.ranks[there]
        if other not in group.members:  # it left no dump
            waits.setdefault(group.ranks[here], set()).add(other)
            continue
        if group.members[other].dump.summary["cut"]:
            continue
        met = answers[key] >= count and key in at_once
        if answers[key] < count or (met and ((1 - receives, source, destination) not in at_once or other in lacking)):
            waits.setdefault(group.ranks[here], set()).add(other)
        elif met:
            stuck.add(group.ranks[here])
    return stuck
