"""Judge the dumps of all ranks together: what diverges first, on which ranks, and what merely follows from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.age import oldest_wait_ms
from torchtriage.flight.align import find_departures, n_compared
from torchtriage.flight.compare import TooMuchWorkError
from torchtriage.flight.findings import (
    Finding,
    from_deadlock,
    from_departure,
    from_joined,
    from_lag,
    from_missing,
    from_p2p,
    from_unanswered,
)
from torchtriage.flight.job import Job, build_job
from torchtriage.flight.motion import ranks_in_motion
from torchtriage.flight.ops import ROOTED
from torchtriage.flight.order import crossed_orders, deadlock_of, groups_of_ranks, held_up, went_past
from torchtriage.flight.p2p import left_out_calls, mismatched_pairs, unanswered_calls
from torchtriage.flight.quotes import quote_call, quote_status
from torchtriage.flight.tables import as_int
from torchtriage.flight.waits import Lag, Standing, blamed, joined_by_all, lags_of, not_started, standings, wait_graph
from torchtriage.report import Divergence, FlightGroup, Scope, Signal
from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.flight.align import Comparison
    from torchtriage.flight.model import Group, RankDump, Vocabulary
    from torchtriage.flight.order import GroupsOfRank, OrderDeadlock
    from torchtriage.flight.p2p import Unanswered
    from torchtriage.report import Evidence

MAX_FINDINGS = 48
MAX_GROUPS_LISTED = 1024
IN_STEP = "flight.in_step"
_CONSERVED_FROM = (2, 4)  # all_to_all sizes are recorded rightly from schema 2.4 on (fr_trace, torch 2.13)


@dataclass
class FlightFindings:
    """What the dumps of one job show together."""

    groups: list[FlightGroup] = field(default_factory=list[FlightGroup])
    divergences: list[Divergence] = field(default_factory=list[Divergence])
    culprit_ranks: list[int] = field(default_factory=list[int])
    signals: list[Signal] = field(default_factory=list[Signal])
    gaps: list[str] = field(default_factory=list[str])


def analyze(dumps: Sequence[RankDump]) -> FlightFindings:
    """Compare dumps of the ranks of one job; the order in which they are given does not matter.

    Divergences come first mover first: content that does not fit together, then ranks that others wait for, then what
    follows from those, then what is merely missing.
    """
    job = build_job(sorted(dumps, key=lambda d: d.artefact))
    found = FlightFindings(gaps=job.gaps)
    found.groups = [
        FlightGroup(name=clean_text(g.name, 120), desc=clean_text(g.desc, 120), ranks=list(g.ranks))
        for g in job.groups[:MAX_GROUPS_LISTED]
    ]
    if len(job.groups) > MAX_GROUPS_LISTED:
        found.gaps.append(f"{len(job.groups)} process groups: only {MAX_GROUPS_LISTED} are listed, all were judged")
    if not job.dumps:
        return found
    findings, n_settled, moving = _findings(job)
    if len(findings) > MAX_FINDINGS:
        found.gaps.append(f"{len(findings)} divergences: only the first {MAX_FINDINGS} are listed")
        findings = findings[:MAX_FINDINGS]
    found.divergences = [finding.divergence() for finding in findings]
    found.signals = [finding.signal() for finding in findings]
    found.culprit_ranks = _culprits(findings)
    all_used = {dump.rank for dump in dumps} - {None} <= job.dumps.keys()
    if all_used and not findings and not n_settled and (signal := _in_step(job, moving)) is not None:
        found.signals.append(signal)
    return found


def _findings(job: Job) -> tuple[list[Finding], int, set[int]]:
    """(what diverges, how many differences were found that cannot be what a job hangs in, ranks still in motion).

    Gaps go to the job's.
    """
    shared = [group for group in job.groups if len(group.ranks) > 1]
    at = [standings(group) for group in shared]
    departures: list[Finding] = []
    diverged: set[int] = set()
    n_settled = 0
    for number, group in enumerate(shared):
        try:
            compared = find_departures(group, job.vocabulary, _sizes_are_right(group))
        except TooMuchWorkError:
            job.gaps.append(f"group {group.label()}: its calls are too irregular to be compared")
            diverged.add(number)
            continue
        departures.extend(from_departure(d, group, job.vocabulary) for d in compared.departures)
        n_settled += len(compared.settled)
        job.gaps.extend(_gaps_of(compared, group, job.vocabulary))
        if compared.departures or compared.undecided:
            diverged.add(number)
    departures.extend(from_p2p(pair, group) for group in shared for pair in mismatched_pairs(group))
    waits = wait_graph(zip(shared, at, strict=True))
    ends, cycles = blamed(waits)
    open_ended = {rank for group_at in at for rank, standing in group_at.items() if standing.open_ended}
    moving = ranks_in_motion(shared, at, job.vocabulary)
    wait_ms = oldest_wait_ms(shared)
    if len(moving) * 2 > len(job.dumps) or wait_ms is not None:  # what hangs brings all to a halt, and for long
        moving = set(job.dumps)
    if wait_ms is not None:
        job.gaps.append(
            f"the oldest unfinished call was {wait_ms / 1000:.1f} s old when it was dumped, which is no hang: dumps "
            "taken later would tell whether it still waits"
        )
    elif moving and any(map(_has_unfinished, shared)):
        job.gaps.append(f"{rank_words(sorted(moving))} still went on when dumped; leads in such groups were not judged")
    of_rank = groups_of_ranks(shared)
    told: set[int] = set()
    uncertain = open_ended | moving
    deadlocks = [
        d for d in (deadlock_of(c, of_rank, waits) for c in cycles if uncertain.isdisjoint(c)) if d is not None
    ]
    if not (departures or cycles or uncertain):
        unanswered, crossed = _in_order(shared, at, of_rank, waiting=not ends - set(waits))
        departures.extend(map(from_unanswered, unanswered))
        deadlocks.extend(crossed)
        told = {rank for one in unanswered for rank in one.ranks}
    tied = {rank for deadlock in deadlocks for rank in deadlock.cycle}
    # A circle of which a part is lost tells of nobody in it.
    tied.update(rank for cycle in cycles if not open_ended.isdisjoint(cycle) for rank in cycle)
    tied |= told
    tied |= _may_wait_elsewhere(shared)
    diverged.update(n for n, group in enumerate(shared) if not moving.isdisjoint(group.ranks))
    roots, followers = _lags(shared, at, diverged, set(waits) - ends, tied, job.vocabulary)
    lags = [from_lag(lag, job.vocabulary, root=True) for lag in roots]
    explained = [from_lag(lag, job.vocabulary, root=False) for lag in followers]
    job.gaps.extend(text for g, group_at in zip(shared, at, strict=True) for text in _counted_behind(g, group_at))
    cycles_found = [from_deadlock(deadlock, job.vocabulary) for deadlock in deadlocks]
    joined: list[Finding] = []
    if not (departures or lags or cycles_found or uncertain):
        departures.extend(map(from_unanswered, left_out_calls(shared, of_rank)))
    if not (departures or lags or cycles_found or open_ended):
        stuck = {
            i: seq
            for i, g in enumerate(shared)
            if i not in diverged and (seq := joined_by_all(at[i], len(g.ranks))) is not None
        }
        firsts, crossing = held_up(of_rank)
        crossed = [c for circle in crossing if (c := crossed_orders(shared, of_rank, circle, stuck)) is not None]
        cycles_found.extend(from_deadlock(c, job.vocabulary) for c in crossed)
        for i, seq in stuck.items():
            by_counters = all(member.track is None for member in shared[i].members.values())
            if i in firsts and (late := not_started(shared[i], seq)) is not None:
                lags.append(from_lag(late, job.vocabulary, root=True))
            elif i in firsts or by_counters:
                joined.append(from_joined(shared[i], seq, job.vocabulary))
    live = [d for d in departures if d.facts["unfinished"]]
    done = [d for d in departures if not d.facts["unfinished"]]
    parts = [[*live, *cycles_found], lags, done, explained, joined]
    findings = [f for part in parts for f in sorted(part, key=Finding.order)]
    return findings + _missing(shared, at, job.vocabulary), n_settled, moving


def _in_order(
    groups: Sequence[Group], at: Sequence[dict[int, Standing]], of_rank: GroupsOfRank, *, waiting: bool
) -> tuple[list[Unanswered], list[OrderDeadlock]]:
    """What shows only when calls of a rank run one after the other: (calls never answered, circles of waits).

    ``waiting``: nobody is waited for by what was called alone, so that any circle is news; else a circle counts only
    where most of its ranks wait in the same call, since a rank that went past a call looks the same to a single peer.
    """
    waits = wait_graph(zip(groups, at, strict=True), in_order=True)
    _, cycles = blamed(waits)
    unanswered = [one for cycle in cycles for one in unanswered_calls(cycle, of_rank)]
    told = {rank for one in unanswered for rank in one.ranks}
    found = [deadlock_of(cycle, of_rank, waits) for cycle in cycles if told.isdisjoint(cycle)]
    return unanswered, [d for d in found if d is not None and (waiting or d.by_majority)]


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
    """Ranks that are in several groups and lost the end of their dump: what they wait for may be lost with it."""
    n_groups = Counter(rank for g in groups for rank, m in g.members.items() if m.dump.summary["cut"])
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


def _lags(
    groups: Sequence[Group],
    at: Sequence[dict[int, Standing]],
    diverged: set[int],
    wait: set[int],
    told_elsewhere: set[int],
    vocabulary: Vocabulary,
) -> tuple[list[Lag], list[Lag]]:
    """(lags of ranks that wait for nobody, lags that those explain); those of ``told_elsewhere`` are in none.

    ``wait``: ranks that wait for others, so that their lag may be those others' doing.
    """
    roots: list[Lag] = []
    followers: list[Lag] = []
    for number, group in enumerate(groups):
        if number in diverged:
            continue
        for lag in lags_of(group, at[number]):
            own = [rank for rank in lag.ranks if rank not in told_elsewhere]
            blameless = [] if _proves_itself(lag, vocabulary) else [rank for rank in own if rank in wait]
            guilty = own if not blameless else [rank for rank in own if rank not in wait]
            if guilty:
                lag.ranks, lag.explained = guilty, blameless
                lag.went_past = went_past(lag, groups)
                roots.append(lag)
            elif own:
                lag.ranks = own
                followers.append(lag)
    return roots, followers


def _proves_itself(lag: Lag, vocabulary: Vocabulary) -> bool:
    """Whether the lag cannot come from the rank's waiting elsewhere.

    Peers can finish an all-reduce only with this rank's part done, so a rank that alone has not finished it waits for
    nobody. With a root that only sends, or only receives, they can.
    """
    if lag.kind != "behind_on_complete":
        return False
    track = lag.group.members[lag.ranks[0]].track
    return track is None or not any(s.op in ROOTED for s in vocabulary.calls[track.soft_at(lag.seq)].signatures)


def _sizes_are_right(group: Group) -> bool:
    for member in group.members.values():
        major, _, minor = str(member.dump.summary["version"]).partition(".")
        if major.isdecimal() and minor.isdecimal() and (int(major[:6]), int(minor[:6])) < _CONSERVED_FROM:
            return False
    return True


def _missing(groups: Sequence[Group], at: Sequence[dict[int, Standing]], vocabulary: Vocabulary) -> list[Finding]:
    """One finding per set of absent ranks, in the largest group that shows it."""
    seen: set[int] = set()
    findings: list[Finding] = []
    for number in sorted(range(len(groups)), key=lambda i: (-len(groups[i].ranks), i)):
        absent = [rank for rank in groups[number].missing if rank not in seen]
        if absent:
            seen.update(absent)
            findings.append(from_missing(groups[number], absent, at[number], vocabulary))
    return findings


def _culprits(findings: Sequence[Finding]) -> list[int]:
    """The ranks of the root divergence; of several root lags all, because their ranks wait for nobody."""
    if not findings or findings[0].kind in ("all_joined_none_finished", "dump_missing"):
        return []
    first = findings[0]
    if first.kind not in ("behind_on_enqueue", "behind_on_complete"):
        return sorted(first.either_of or first.ranks) if first.names_culprits else []
    return sorted(
        {rank for f in findings if f.kind in ("behind_on_enqueue", "behind_on_complete") and f.root for rank in f.ranks}
    )


def _in_step(job: Job, moving: set[int]) -> Signal | None:
    """The signal that all is well; only when enough was seen to say so.

    What is unfinished is no trouble where a member of the group was seen to go on at the moment of its dump.
    """
    shared = [group for group in job.groups if len(group.ranks) > 1]
    counted = [group for group in shared if _counted_alike(group)]
    enough = (
        len(job.dumps) >= 2
        and not any(group.missing for group in job.groups)
        and all(member.rank in job.dumps for group in job.groups for member in group.members.values())
        and (sum(map(n_compared, shared)) > 0 or len(counted) > 0)
        and all(track.calls.all_known for group in job.groups for track in group.tracks)
        and all(not moving.isdisjoint(group.ranks) for group in job.groups if _has_unfinished(group))
        and not any(dump.summary["damaged"] for dump in job.dumps.values())
        and all(_counted_alike(group) for group in shared if not (group.tracks or group.has_p2p))
    )
    if not enough:
        return None
    running = any(map(_has_unfinished, job.groups))
    facts: dict[str, Any] = {"n_ranks": len(job.dumps), "n_groups": len(job.groups), "running": running}
    if (wait_ms := oldest_wait_ms(shared)) is not None:
        facts["oldest_wait_ms"] = wait_ms
    evidence: list[Evidence] = []
    compared = max(shared, key=n_compared)
    if n_compared(compared):
        facts["seq"] = min(track.last for track in compared.tracks)
        for track in compared.tracks[:2]:
            evidence += quote_call(track, facts["seq"], IN_STEP, ("profiling_name",), site=False)
    else:
        for _, member in sorted(counted[0].members.items())[:2]:
            evidence += quote_status(member, "last_completed_collective", IN_STEP)
    names = list(dict.fromkeys(clean_text(g.name, 120) for g in job.groups))[:64]
    return Signal(name=IN_STEP, scope=Scope(ranks=sorted(job.dumps), groups=names), facts=facts, evidence=evidence)


def _has_unfinished(group: Group) -> bool:
    return any(member.first_open is not None for member in group.members.values())


def _counted_alike(group: Group) -> bool:
    """Whether by their counters all members enqueued and finished the same calls; all that an idle active dump says."""
    counts = {(as_int(m.status[1]), as_int(m.status[3])) for m in group.members.values() if m.status is not None}
    if len(counts) != 1 or any(m.status is None for m in group.members.values()):
        return False
    ((enqueued, completed),) = counts
    return enqueued is not None and enqueued == completed
