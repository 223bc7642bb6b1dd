"""Whose doing it is: differences of calls, waits over all groups, and what is left when nobody can be named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.flight.age import oldest_wait_ms, waited_long
from torchtriage.flight.align import find_departures
from torchtriage.flight.circles import blamed, untying
from torchtriage.flight.compare import TooMuchWorkError
from torchtriage.flight.findings import (
    Finding,
    from_deadlock,
    from_departure,
    from_joined,
    from_lag,
    from_met,
    from_missing,
    from_not_posted,
    from_p2p,
    from_unanswered,
)
from torchtriage.flight.lags import ranks_that_went_past, roots_and_followers
from torchtriage.flight.motion import Motion, ranks_in_motion
from torchtriage.flight.order import deadlock_of, groups_of_ranks, not_held_up
from torchtriage.flight.p2p import left_out_calls, mismatched_pairs, unanswered_calls
from torchtriage.flight.wait_graph import heads_of, wait_graph
from torchtriage.flight.waits import behind_on_enqueue, joined_by_all, not_started, standings
from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.flight.align import Comparison
    from torchtriage.flight.job import Job
    from torchtriage.flight.model import Group, Vocabulary
    from torchtriage.flight.order import GroupsOfRank, OrderDeadlock
    from torchtriage.flight.p2p import Unanswered
    from torchtriage.flight.wait_graph import Heads, Waits
    from torchtriage.flight.waits import Standing

FEW_SHARE = 4
"""Of a job of which more than this part left no dump, not all were collected: nobody is blamed for that."""
_CONSERVED_FROM = (2, 4)  # all_to_all sizes are recorded rightly from schema 2.4 on (fr_trace, torch 2.13)


@dataclass
class Judged:
    """What diverges, first mover first; how many differences cannot be what a job hangs in; ranks seen to go on."""

    findings: list[Finding] = field(default_factory=list[Finding])
    n_settled: int = 0
    moving: set[int] = field(default_factory=set[int])
    stands: bool = False
    """Whether the job is known to hang, whoever it is that it waits for."""


@dataclass
class _Board:
    """The groups that can diverge and where their ranks stand."""

    job: Job
    groups: list[Group]
    at: list[dict[int, Standing]]
    of_rank: GroupsOfRank
    heads: Heads
    diverged: set[int] = field(default_factory=set[int])
    """Positions in ``groups`` of those whose calls do not fit, so that their counts say nothing more."""


def judge_job(job: Job) -> Judged:
    """Judge all groups of a job together; what could not be judged goes to its gaps."""
    shared = [group for group in job.groups if len(group.ranks) > 1]
    board = _Board(job, shared, [standings(group) for group in shared], groups_of_ranks(shared), heads_of(shared))
    vocabulary = job.vocabulary
    departures, n_settled = _departures(board)
    motion = _motion(board)
    moving = motion.ranks
    open_ended = {rank for group_at in board.at for rank, standing in group_at.items() if standing.open_ended}
    uncertain = open_ended | moving
    waits = _waits(board, in_order=not departures and not uncertain)
    ends, cycles = blamed(waits)
    unanswered, deadlocks = _circles(board, [c for c in cycles if uncertain.isdisjoint(c)], waits)
    departures += map(from_unanswered, unanswered)
    tied = {rank for deadlock in deadlocks for rank in deadlock.cycle}
    # A circle of which a part is lost tells of nobody in it.
    tied.update(rank for cycle in cycles if not open_ended.isdisjoint(cycle) for rank in cycle)
    tied.update(rank for one in unanswered for rank in one.ranks)
    tied |= _may_wait_elsewhere(shared)
    board.diverged.update(n for n, group in enumerate(shared) if not moving.isdisjoint(group.ranks))
    roots, followers = roots_and_followers(
        shared, board.at, board.of_rank, board.diverged, set(waits) - ends, tied, vocabulary
    )
    job.gaps.extend(text for g, group_at in zip(shared, board.at, strict=True) for text in _counted_behind(g, group_at))
    lags = [from_lag(lag, vocabulary, root=True) for lag in roots]
    explained = [from_lag(lag, vocabulary, root=False) for lag in followers]
    circles = [from_deadlock(deadlock, vocabulary) for deadlock in deadlocks]
    joined: list[Finding] = []
    if not (departures or lags or circles or uncertain):
        departures.extend(map(from_unanswered, left_out_calls(shared, board.of_rank)))
    if not (departures or lags or circles or open_ended):
        late, joined = _joined(board)
        lags += late
    if not (departures or lags or circles or joined or uncertain):
        lags += _not_posted(board, ends - set(waits))
    if not (departures or lags or circles or joined or uncertain):
        joined += _met(board)
    live = [d for d in departures if d.facts["unfinished"]]
    done = [d for d in departures if not d.facts["unfinished"]]
    missing = _missing(board)
    # Where nobody who left a dump is to blame, what the others wait for comes before what follows from it.
    awaited = [] if live or circles or lags or done else [one for one in missing if one.facts["unfinished"]]
    parts = [[*live, *circles], lags, done, joined, awaited, explained, [one for one in missing if one not in awaited]]
    findings = [f for part in parts for f in sorted(part, key=Finding.order)]
    known = any(one.names_culprits for one in awaited)
    stands = not moving and (known or (len(job.dumps) > 1 and waited_long(shared, plausibly=False)))
    return Judged(findings, n_settled, motion.seen, stands)


def _departures(board: _Board) -> tuple[list[Finding], int]:
    """(calls that do not fit together, how many differences cannot be what a job hangs in)."""
    job, n_settled = board.job, 0
    found: list[Finding] = []
    for number, group in enumerate(board.groups):
        try:
            compared = find_departures(group, job.vocabulary, _sizes_are_right(group))
        except TooMuchWorkError:
            job.gaps.append(f"group {group.label()}: its calls are too irregular to be compared")
            board.diverged.add(number)
            continue
        found.extend(from_departure(d, group, job.vocabulary) for d in compared.departures)
        n_settled += len(compared.settled)
        job.gaps.extend(_gaps_of(compared, group, job.vocabulary))
        if compared.departures or compared.undecided:
            board.diverged.add(number)
    found.extend(from_p2p(pair, group) for group in board.groups for pair in mismatched_pairs(group))
    return found, n_settled


def _motion(board: _Board) -> Motion:
    """Ranks that went on when they were dumped; what such ranks had not finished yet is no sign of a fault."""
    job, shared = board.job, board.groups
    if waited_long(shared, plausibly=True):
        return Motion(set(), set())
    everybody = set(job.dumps)
    wait_ms = oldest_wait_ms(shared)
    if wait_ms is not None:
        job.gaps.append(
            f"the oldest unfinished call was {wait_ms / 1000:.1f} s old when it was dumped, which is no hang: dumps "
            "taken later would tell whether it still waits"
        )
        return Motion(everybody, everybody)
    motion = ranks_in_motion(shared, board.at, job.vocabulary)
    if motion.ranks and any(group.has_unfinished for group in shared):
        who = rank_words(sorted(motion.ranks))
        job.gaps.append(f"{who} still went on when dumped; leads in such groups were not judged")
    if len(motion.ranks) * 2 > len(everybody):  # what hangs brings all to a halt
        return Motion(everybody, everybody if len(motion.seen) * 2 > len(everybody) else motion.seen)
    return motion


def _waits(board: _Board, *, in_order: bool) -> Waits:
    """Who waits for whom; with ``in_order`` also in calls that peers have made behind others."""
    if not in_order:
        return wait_graph(board.groups, board.at)
    # To a peer, a rank that left a call out looks like one that is about to make it: what it waits in proves nothing.
    past = ranks_that_went_past(board.groups, board.at, board.of_rank)
    heads = {rank: head for rank, head in board.heads.items() if rank not in past}
    return wait_graph(board.groups, board.at, heads)


def _circles(
    board: _Board, cycles: Sequence[Sequence[int]], waits: Waits
) -> tuple[list[Unanswered], list[OrderDeadlock]]:
    """(sends and receives that the peer left out, ranks that wait for each other by the order of their calls)."""
    unanswered: list[Unanswered] = []
    deadlocks: list[OrderDeadlock] = []
    late = {rank for group_at in board.at for rank in behind_on_enqueue(group_at)}
    has_p2p = any(group.has_p2p for group in board.groups)
    _, certain = blamed(wait_graph(board.groups, board.at)) if cycles and has_p2p else (set[int](), [])
    for cycle in cycles:
        if has_p2p and not any(set(inner) <= set(cycle) for inner in certain):
            alone = untying(cycle, waits)
            left_out = unanswered_calls(cycle, board.of_rank)
            if len(alone) == 1:
                left_out = [one for one in left_out if one.other == alone[0]]
            unanswered += left_out
            if left_out:
                continue
        deadlock = deadlock_of(cycle, board.of_rank, waits, late)
        if deadlock is not None:
            deadlocks.append(deadlock)
    return unanswered, deadlocks


def _joined(board: _Board) -> tuple[list[Finding], list[Finding]]:
    """(devices that did not start a call which all made, calls that all made and none finished)."""
    vocabulary = board.job.vocabulary
    firsts = not_held_up(board.of_rank)
    late: list[Finding] = []
    joined: list[Finding] = []
    for number, group in enumerate(board.groups):
        seq = joined_by_all(board.at[number], len(group.ranks)) if number not in board.diverged else None
        by_counters = all(member.track is None for member in group.members.values())
        if seq is None or not (number in firsts or by_counters):
            continue
        if number in firsts and (lag := not_started(group, seq)) is not None:
            late.append(from_lag(lag, vocabulary, root=True))
        else:
            joined.append(from_joined(group, seq, vocabulary))
    common = set[int].intersection(*(set(one.ranks) for one in joined)) if len(joined) > 1 else set[int]()
    if len(common) == 1:  # of several calls that hang, it alone takes part in all
        for one in joined:
            one.either_of = sorted(common)
            one.names_culprits = True
            one.facts["common_rank"] = one.either_of[0]
    return late, joined


def _counted_behind(group: Group, at: Mapping[int, Standing]) -> list[str]:
    """What counters say of ranks whose calls are lost; ranks whose calls did not fit may have such counters as well."""
    awaited = max((s.unfinished for s in at.values() if s.unfinished is not None), default=None)
    if awaited is None or group.has_p2p:
        return []
    late = [
        (rank, s.enqueued)
        for rank, s in sorted(at.items())
        if s.open_ended and group.members[rank].status is not None and s.enqueued < awaited
    ]
    return [
        f"rank {rank}'s counters say that it enqueued {enqueued} calls of group {group.label()}, and peers wait in "
        f"call {awaited}; what it called is lost, so it is not known whether it is behind or called something else"
        for rank, enqueued in late[:4]
    ]


def _may_wait_elsewhere(groups: Sequence[Group]) -> set[int]:
    """Ranks that are in several groups and lost the end of their dump, or groups: what they wait for may be there."""
    n_groups = Counter(
        rank for g in groups for rank, m in g.members.items() if m.dump.summary["cut"] or m.dump.summary["partial"]
    )
    return {rank for rank, n in n_groups.items() if n > 1}


def _gaps_of(compared: Comparison, group: Group, vocabulary: Vocabulary) -> list[str]:
    """What was seen to differ and is no finding."""
    texts: list[str] = []
    for found, why in (
        (compared.settled, "all of them finished it and went on, so it was not judged"),
        (compared.undecided, "what came after it is lost on one side, so nobody can tell who departed"),
    ):
        if found:
            one = found[0]
            calls = [vocabulary.calls[t.soft_at(one.seq)].describe() for t in (one.witness, one.deviator)]
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            texts.append(
                f"group {group.label()}, seq {one.seq}: rank {one.witness.rank} issued {calls[0]}, "
                f"rank {one.deviator.rank} {calls[1]}{more}; {why}"
            )
    return texts


def _sizes_are_right(group: Group) -> bool:
    for member in group.members.values():
        major, _, minor = str(member.dump.summary["version"]).partition(".")
        if major.isdecimal() and minor.isdecimal() and (int(major[:6]), int(minor[:6])) < _CONSERVED_FROM:
            return False
    return True


def _not_posted(board: _Board, ends: set[int]) -> list[Finding]:
    """Ranks that wait for nobody and did not post their side of a send or receive in which a peer is stuck."""
    found: dict[int, Finding] = {}
    for rank, head in sorted(board.heads.items()):
        group = board.groups[head.group]
        member = group.members[rank]
        for row in member.p2p if head.batch >= 0 else ():
            other = group.other_side(row)
            if row[4] == head.batch and other in ends and other in group.members and other not in found:
                found[other] = from_not_posted(group, member, other, row)
    return [found[rank] for rank in sorted(found)]


def _met(board: _Board) -> list[Finding]:
    """Pairs of which both sides came to the same send and receive, and neither finished it."""
    found: dict[frozenset[int], Finding] = {}
    for rank, head in sorted(board.heads.items()):
        group = board.groups[head.group]
        for row in group.members[rank].p2p if head.batch >= 0 else ():
            other = group.other_side(row)
            theirs = board.heads.get(other)
            if row[4] != head.batch or theirs is None or theirs.group != head.group:
                continue
            mirrored = [1 - row[1], row[2], row[3]]
            if any(one[1:4] == mirrored and one[4] == theirs.batch for one in group.members[other].p2p):
                found.setdefault(frozenset((rank, other)), from_met(group, rank, other, row))
    return list(found.values())


def _missing(board: _Board) -> list[Finding]:
    """One finding per set of absent ranks, in the largest group where others wait for them, else in the largest."""
    groups, at = board.groups, board.at

    def is_awaited(number: int) -> bool:
        return groups[number].has_unfinished and not behind_on_enqueue(at[number])

    seen: set[int] = set()
    findings: list[Finding] = []
    n_ranks = len({rank for group in groups for rank in group.ranks})
    every = {rank for group in groups for rank in group.missing}
    few = len(every) <= max(1, n_ranks // FEW_SHARE)
    for number in sorted(range(len(groups)), key=lambda i: (not is_awaited(i), -len(groups[i].ranks), i)):
        absent = {rank for rank in groups[number].missing if rank not in seen}
        if not absent:
            continue
        awaited = is_awaited(number)
        if awaited:  # said once, though other groups may wait for others of them
            absent |= {rank for i, group in enumerate(groups) if is_awaited(i) for rank in group.missing} - seen
        seen |= absent
        finding = from_missing(groups[number], sorted(absent), at[number], board.job.vocabulary)
        finding.names_culprits = awaited and few
        finding.facts["unfinished"] = awaited
        findings.append(finding)
    return findings
