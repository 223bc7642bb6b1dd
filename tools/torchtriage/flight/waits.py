"""Who waits for whom: lags of ranks in each group, the wait-for graph over all groups, and who is at its end.

A rank waits in its first unfinished call of a group for the members that have not enqueued that call. Blame flows
along these waits to the ranks that wait for nobody; a cycle is a deadlock of the order of calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.flight.tables import as_int

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchtriage.flight.model import Group, Member


@dataclass(frozen=True)
class Standing:
    """Where one rank stands in one group; sequence numbers, None when unknown or nothing is unfinished."""

    enqueued: int
    unfinished: int | None
    reached: int
    """The last call that it is known to have finished."""
    open_ended: bool = False
    """Whether it may have enqueued more: the end of its dump is lost."""


@dataclass
class Lag:
    """Ranks of a group that are behind their peers; ``seq`` is the call that peers wait in or have finished."""

    kind: str
    group: Group
    ranks: list[int]
    seq: int
    behind_by: int
    peer: int
    explained: list[int] = field(default_factory=list[int])
    went_past: bool = False
    """Whether the ranks went on to calls of other groups that follow the one that they lack."""
    on_start: bool = False
    """Whether peers have only started the call, and the ranks not even that."""


def standings(group: Group) -> dict[int, Standing]:
    """Where each rank with a dump stands. Entries are trusted over pg_status, which lags behind them."""
    found: dict[int, Standing] = {}
    # A dump that holds calls would hold this group's unfinished ones too; so would one of active calls alone.
    by_counters = not any(member.dump.summary["n_entries"] for member in group.members.values())
    has_p2p = group.has_p2p
    for rank, member in group.members.items():
        standing = _standing(member, with_status=not has_p2p, by_counters=by_counters)
        if standing is not None:
            found[rank] = standing
    return found


def _standing(member: Member, *, with_status: bool, by_counters: bool) -> Standing | None:
    track = member.track
    cut = bool(member.dump.summary["cut"])
    # pg_status counts point-to-point calls as well, so it says nothing of a group that has some.
    status = member.status if with_status else None
    enqueued = as_int(status[1]) if status else None
    completed = as_int(status[3]) if status else None
    if track is not None:
        last = max(track.last, enqueued or 0)
        reached = track.last if cut else last
        if track.first_unfinished is not None:
            reached = track.first_unfinished - 1
        return Standing(last, track.first_unfinished, reached, cut)
    if enqueued is None:
        return None
    if cut:
        return Standing(enqueued, None, -1, cut)
    if completed is None or completed >= enqueued or completed < 0:
        return Standing(enqueued, None, enqueued)
    if by_counters:
        return Standing(enqueued, completed + 1, completed)
    return Standing(enqueued, None, enqueued if member.dump.summary["n_entries"] else completed)


def lags_of(group: Group, at: Mapping[int, Standing]) -> list[Lag]:
    """Who is behind in one group; empty when nothing is unfinished or all stand alike."""
    waiting = {rank: s.unfinished for rank, s in at.items() if s.unfinished is not None}
    if not waiting or len(at) < 2:
        return []
    lags: list[Lag] = []
    # A rank's own unfinished call is enqueued, so these comparisons never set a rank against itself.
    last_awaited = max(waiting.values())
    late = sorted(r for r, s in at.items() if s.enqueued < last_awaited and not s.open_ended)
    if late:
        least = min(at[r].enqueued for r in late)
        first = min(u for u in waiting.values() if u > least)
        peer = min(q for q, u in waiting.items() if u == first)
        top = max(s.enqueued for s in at.values())
        lags.append(Lag("behind_on_enqueue", group, late, first, top - least, peer))
    reached = {r: s.reached for r, s in at.items()}
    everyone = min(s.enqueued for s in at.values())
    furthest = max(reached.values())
    slow = sorted(r for r, u in waiting.items() if u <= everyone and u <= furthest)
    # Where counters alone speak, that one is behind is also how often its watchdog has looked.
    if slow and any(member.dump.summary["n_entries"] for member in group.members.values()):
        seq = min(waiting[r] for r in slow)
        peer = max((q for q in at if reached[q] >= seq), key=lambda q: (reached[q], -q))
        behind = furthest - min(reached[r] for r in slow)
        lags.append(Lag("behind_on_complete", group, slow, seq, behind, peer))
    return lags


def not_started(group: Group, seq: int) -> Lag | None:
    """Ranks whose device did not start a call that all enqueued and peers' devices did start; None when not recorded.

    Starts are counted only with TORCH_NCCL_ENABLE_TIMING (or TORCH_NCCL_DESYNC_DEBUG); else the counter stays at -1.
    """
    started = {rank: as_int(member.status[2]) for rank, member in group.members.items() if member.status is not None}
    known = {rank: count for rank, count in started.items() if count is not None and count >= 0}
    if group.has_p2p or len(known) < len(group.ranks):
        return None
    late = sorted(rank for rank, count in known.items() if count < seq)
    if not late or len(late) == len(known):
        return None
    peer = min(rank for rank in known if rank not in late)
    return Lag("behind_on_complete", group, late, seq, seq - min(known[r] for r in late), peer, on_start=True)


def joined_by_all(at: Mapping[int, Standing], n_ranks: int) -> int | None:
    """The call that all members enqueued and none finished, if that is where all of them stand."""
    firsts = {s.unfinished for s in at.values()}
    return firsts.pop() if len(at) == n_ranks and len(firsts) == 1 else None


def wait_graph(
    groups: Iterable[tuple[Group, Mapping[int, Standing]]], *, in_order: bool = False
) -> dict[int, set[int]]:
    """For each rank those that it waits for, in collectives and in point-to-point calls.

    ``in_order``: also those that did make the call, but are stuck in one that they issued before it: calls that a
    device runs one after the other. Without, only those that have not made the call.

    Negative numbers are helper nodes: per group a chain over its ranks in order of what they enqueued, so that "all
    that have enqueued less" is one edge and the graph stays linear in the number of ranks.
    """
    edges: dict[int, set[int]] = {}
    n_helpers = 0
    groups = list(groups)
    firsts = _first_steps([group for group, _ in groups]) if in_order else {}
    for number, (group, at) in enumerate(groups):
        awaited = max((s.unfinished for s in at.values() if s.unfinished is not None), default=None)
        if awaited is not None:
            late = sorted((r for r in at if at[r].enqueued < awaited), key=lambda r: at[r].enqueued)
            enqueued = [at[r].enqueued for r in late]
            for position, rank in enumerate(late):
                edges[-1 - n_helpers - position] = {rank} | ({-n_helpers - position} if position else set[int]())
            for rank, standing in at.items():
                if standing.unfinished is not None and (n := bisect_left(enqueued, standing.unfinished)):
                    edges.setdefault(rank, set()).add(-n_helpers - n)
            n_helpers += len(late)
            if not late and (absent := group.missing):  # then nobody but these can be who is waited for
                for rank, standing in at.items():
                    if standing.unfinished is not None:
                        edges.setdefault(rank, set()).add(absent[0])
            held = {r for r in at if at[r].unfinished == awaited and r in firsts and firsts[r][1] != number}
            if held:
                n_helpers += 1
                edges[-n_helpers] = held
                for rank, standing in at.items():
                    if standing.unfinished == awaited and firsts.get(rank, (0, -1))[1] == number:
                        edges.setdefault(rank, set()).add(-n_helpers)
        for rank, others in _p2p_waits(group, number, firsts).items():
            edges.setdefault(rank, set()).update(others)
    return edges


def _first_steps(groups: Sequence[Group]) -> dict[int, tuple[int, int, int]]:
    """Per rank (position in its dump, number of the group, p2p_seq_id or -1) of the first thing that is unfinished."""
    firsts: dict[int, tuple[int, int, int]] = {}
    for number, group in enumerate(groups):
        for rank, member in group.members.items():
            index = member.first_open
            if index is not None and (rank not in firsts or index < firsts[rank][0]):
                batch = member.p2p[0][4] if member.p2p and member.p2p[0][0] == index else -1
                firsts[rank] = (index, number, batch)
    return firsts


def _p2p_waits(group: Group, number: int, firsts: Mapping[int, tuple[int, int, int]]) -> dict[int, set[int]]:
    """Waits in unfinished sends and receives whose other side has not been posted, or only after others; per pair."""
    posted: dict[tuple[int, int, int], int] = {}
    at_once: set[tuple[int, int, int]] = set()
    n = len(group.ranks)
    for rank, member in group.members.items():
        for _, receives, source, destination, seq, *_ in member.p2p:
            if source < n and destination < n and group.ranks[destination if receives else source] == rank:
                posted[receives, source, destination] = posted.get((receives, source, destination), 0) + 1
                if rank in firsts and firsts[rank][1:] == (number, seq):  # the calls of a batch run together
                    at_once.add((receives, source, destination))
    waits: dict[int, set[int]] = {}
    for (receives, source, destination), count in posted.items():
        here, there = (destination, source) if receives else (source, destination)
        other = group.ranks[there]
        if other not in group.members or group.members[other].dump.summary["cut"]:
            continue
        answered = posted.get((1 - receives, source, destination), 0)
        held = answered == count and (receives, source, destination) in at_once
        if answered < count or (held and (1 - receives, source, destination) not in at_once):
            waits.setdefault(group.ranks[here], set()).add(other)
    return waits


def blamed(edges: Mapping[int, set[int]]) -> tuple[set[int], list[list[int]]]:
    """(ranks at the end of waits, cycles among them): ranks of strongly connected components that wait for no other."""
    ends: set[int] = set()
    cycles: list[list[int]] = []
    component = _components(edges)
    members: dict[int, list[int]] = {}
    for rank, number in component.items():
        members.setdefault(number, []).append(rank)
    for number, nodes in members.items():
        if all(component[q] == number for node in nodes for q in edges.get(node, ())):
            ranks = sorted(node for node in nodes if node >= 0)
            ends.update(ranks)
            if len(ranks) > 1:
                cycles.append(ranks)
    return ends, sorted(cycles)


def in_circles(edges: Mapping[int, set[int]], without: int) -> set[int]:
    """The ranks that wait for each other in circles in which ``without`` has no part."""
    component = _components({node: others - {without} for node, others in edges.items() if node != without})
    sizes = Counter(component.values())
    return {node for node, number in component.items() if node >= 0 and sizes[number] > 1}


def _components(edges: Mapping[int, set[int]]) -> dict[int, int]:
    """Strongly connected components (Tarjan), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    counter = 0
    n_components = 0
    nodes = sorted(set(edges) | {q for others in edges.values() for q in others})
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(sorted(edges.get(root, ()))))]
        index[root] = low[root] = counter
        counter += 1
        stack.append(root)
        while work:
            node, others = work[-1]
            pushed = False
            for other in others:
                if other not in index:
                    index[other] = low[other] = counter
                    counter += 1
                    stack.append(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    pushed = True
                    break
                if other not in component:
                    low[node] = min(low[node], index[other])
            if pushed:
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                while True:
                    member = stack.pop()
                    component[member] = n_components
                    if member == node:
                        break
                n_components += 1
    return component
