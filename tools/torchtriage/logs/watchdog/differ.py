"""Who did not join which collective: compares what all ranks of a group report about one hang.

A rank that timed out waits; the rank that it waits for is one that never issued the call, or that is gone. Why that is
so no watchdog knows. Absence is believed only where the group's members are known and all lines were kept.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.logs.watchdog.call_sites import call_of, site_of
from torchtriage.logs.watchdog.lines import quote_record
from torchtriage.report import Scope, Signal
from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torchtriage.logs.records import Line
    from torchtriage.logs.watchdog.groups import GroupView, Job
    from torchtriage.logs.watchdog.lines import Progress, Timeout

# Operations of which all ranks must give the same number of elements; the others may be uneven by design.
EVEN = frozenset(
    {"ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "ALLGATHER_BASE", "REDUCE_SCATTER",
     "_REDUCE_SCATTER_BASE", "REDUCE_SCATTER_BASE", "BARRIER"}
)  # fmt: skip
_SIDED = frozenset({"SEND", "RECV", "COALESCED", "GATHER", "SCATTER", "UNKNOWN"})
# Operations that no rank can finish before all have joined; a broadcast's root and a sender can.
_JOINT = frozenset(
    {"ALLREDUCE", "ALLGATHER", "_ALLGATHER_BASE", "ALLGATHER_BASE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE",
     "REDUCE_SCATTER_BASE", "ALLTOALL", "ALLTOALL_BASE", "BARRIER"}
)  # fmt: skip
MAX_SIGNALS = 128
MAX_NAMED = 64
MAX_COMPARED = 16


def judge_groups(job: Job) -> list[Signal]:
    """What the groups show, each by itself."""
    views = [view for view in job.views.values() if view.timeouts and not view.mixed]
    signals: list[Signal] = []
    for judge in (_behind, _differences, _completed_on_some, _all_joined):
        for view in views:
            if len(signals) < MAX_SIGNALS:
                signals += judge(view, job)
    return signals


def call_facts(timeout: Timeout) -> dict[str, Any]:
    """The call that a rank waits in; names that are not known are left out, so that sentences can tell."""
    facts = {"seq": timeout.seq, "operation": timeout.operation, "call": call_of(timeout), "where": site_of(timeout)}
    return {name: value for name, value in facts.items() if value is not None}


def _differences(view: GroupView, job: Job) -> list[Signal]:
    """``log.collectives_differ``: other operations or sizes at one sequence number of one group."""
    del job
    at: dict[int, dict[int, Timeout]] = {}
    for rank, timeout in view.timeouts.items():
        if timeout.seq is not None:
            at.setdefault(timeout.seq, {})[rank] = timeout
    signals: list[Signal] = []
    for seq, by_rank in at.items():
        operations = {timeout.operation for timeout in by_rank.values()}
        sizes = {timeout.numel_in for timeout in by_rank.values()}
        same = len(operations) == 1
        if same and (len(sizes) == 1 or not operations <= EVEN):
            continue
        if not same and operations & _SIDED:
            continue
        kinds = _by_words(by_rank)
        odd = _odd(kinds)
        ranks = sorted(by_rank)
        facts: dict[str, Any] = {
            "seq": seq,
            "group": view.name,
            "same_operation": same,
            "same_seq": True,
            "n_ranks": len(ranks),
            "odd_ranks": odd[:MAX_NAMED],
            "by_rank": {str(r): by_rank[r].words for r in (odd + ranks)[:MAX_NAMED]},
        }
        sides = [f"{rank_words(side)} in {words}" for words, side in itertools.islice(kinds.items(), 3)]
        facts["sides"] = ", ".join(sides)
        if len(kinds) == 2:
            (usual, many), (other, few) = sorted(kinds.items(), key=lambda kind: (-len(kind[1]), min(kind[1])))
            facts |= {"found": other, "usual": usual}
            enqueued = [[view.progress[r].enqueued for r in side if r in view.progress] for side in (many, few)]
            if all(enqueued):
                facts["peers_enqueued"], facts["last_enqueued"] = max(enqueued[0]), max(enqueued[1])
            for name, side in (("usual_where", many), ("found_where", few)):
                if (site := next((s for r in side if (s := site_of(by_rank[r]))), None)) is not None:
                    facts[name] = site
        shown = [by_rank[min(side)] for side in kinds.values()][:4]
        signals.append(signal_of("log.collectives_differ", odd or ranks, view, facts, [t.line for t in shown]))
    return signals


def _by_words(by_rank: dict[int, Timeout]) -> dict[str, list[int]]:
    kinds: dict[str, list[int]] = {}
    for rank in sorted(by_rank):
        kinds.setdefault(by_rank[rank].words, []).append(rank)
    return kinds


def _odd(kinds: dict[str, list[int]]) -> list[int]:
    """The ranks that differ from the majority; nobody when there is none. Of two ranks either may be wrong."""
    n_ranks = sum(map(len, kinds.values()))
    usual = max(kinds.values(), key=len)
    if n_ranks < 3 or len(usual) * 2 <= n_ranks:
        return []
    return sorted(rank for side in kinds.values() if side is not usual for rank in side)


def _completed_on_some(view: GroupView, job: Job) -> list[Signal]:
    """A collective that some ranks finished and others wait in: the calls at that number do not fit together, or the
    last data did not arrive.
    """
    del job
    seq = _first_seq(view)
    if seq is None:
        return []
    waiting = {r: t for r, t in view.timeouts.items() if t.seq == seq and t.operation in _JOINT}
    done = {r: told for r, told in view.progress.items() if told.completed >= seq and r not in waiting}
    if not waiting or not done:
        return []
    first, other = waiting[min(waiting)], done[min(done)]
    facts = call_facts(first) | {
        "group": view.name,
        "waiting_ranks": sorted(waiting)[:MAX_NAMED],
        "done_ranks": sorted(done)[:MAX_NAMED],
        "waiting": waiting_words(waiting),
        "done": rank_words(done),
    }
    return [signal_of("log.completed_on_some", {*waiting, *done}, view, facts, [first.line, other.line])]


def _all_joined(view: GroupView, job: Job) -> list[Signal]:
    """All members wait in one and the same call: no host is missing. A rank that says nothing may be a member."""
    if job.silent or (job.absent and view.is_default):
        return []
    members = job.members(view)
    if len(members) < 2 or members != frozenset(view.timeouts):
        return []
    calls = {(t.seq, t.operation, t.numel_in if t.operation in EVEN else None) for t in view.timeouts.values()}
    first = view.timeouts[min(view.timeouts)]
    if len(calls) > 1 or first.seq is None:
        return []
    progress = {(told.enqueued, told.completed) for r in members if (told := view.progress.get(r)) is not None}
    facts = call_facts(first) | {
        "group": view.name,
        "n_ranks": len(members),
        "timeout_ms": first.timeout_ms,
        "numel_in": first.numel_in,
        "same_progress": len(progress) == 1,
    }
    shown = [view.timeouts[r].line for r in sorted(members)[:2]]
    return [signal_of("log.all_joined_none_finished", members, view, facts, shown)]


@dataclass(frozen=True)
class Lag:
    """Ranks of a group that never issued the call that others wait in."""

    first: Timeout
    behind: dict[int, Progress]


def lag_of(view: GroupView) -> Lag | None:
    """Who is known to lack the first call that the group waits in."""
    seq = _first_seq(view)
    if seq is None or view.mixed:
        return None
    behind = {r: told for r, told in view.progress.items() if told.enqueued < seq and r not in view.timeouts}
    first = next(view.timeouts[r] for r in sorted(view.timeouts) if view.timeouts[r].seq == seq)
    return Lag(first, behind) if behind else None


def _behind(view: GroupView, job: Job) -> list[Signal]:
    lag = lag_of(view)
    if lag is None:
        return []
    behind, first = lag.behind, lag.first
    n_ranks = len(behind) + len(view.timeouts)
    if n_ranks > 2 and len(behind) > len(view.timeouts):
        # Not many are late: few are early, in a call that nobody else makes.
        return [_entered_alone(view, lag)] if len(view.timeouts) == 1 else []
    signals: list[Signal] = []
    for past in (False, True):
        ranks = sorted(r for r in behind if (r in job.waits) is past)
        if not ranks:
            continue
        told = behind[ranks[0]]
        peers = [view.progress[r].enqueued for r in view.timeouts if r in view.progress]
        facts = call_facts(first) | {
            "group": view.name,
            "last_enqueued": told.enqueued,
            "last_completed": told.completed,
            "all_completed": all(behind[r].enqueued == behind[r].completed for r in ranks),
            "never_issued": all(behind[r].enqueued < 1 for r in ranks),
            "peers_enqueued": max(peers, default=first.seq),
            "behind_by": max([first.seq or 0, *peers]) - told.enqueued,
            "waiting": waiting_words(view.timeouts),
            "n_ranks": n_ranks,
            "went_past": past,
            "joined_elsewhere": past and all(_joined(job, r, set(view.timeouts)) for r in ranks[:MAX_COMPARED]),
        }
        signals.append(signal_of("log.behind_on_enqueue", ranks, view, facts, [told.line, first.line]))
    return signals


def _entered_alone(view: GroupView, lag: Lag) -> Signal:
    (rank,) = view.timeouts
    facts = call_facts(lag.first) | {
        "group": view.name,
        "n_ranks": 1 + len(lag.behind),
        "peers_finished": False,
        "by_rank_zero": rank == 0,
    }
    other = lag.behind[min(lag.behind)]
    return signal_of("log.waits_alone", [rank], view, facts, [lag.first.line, other.line])


def _joined(job: Job, rank: int, peers: set[int]) -> bool:
    """Whether a rank waits in another group together with all of ``peers``, in one and the same call."""
    for other in job.waits.get(rank, ()):
        own = other.timeouts[rank]
        if own.seq is not None and not other.mixed and peers <= other.timeouts.keys():
            calls = ((other.timeouts[p].seq, other.timeouts[p].words) for p in peers)
            if all(call == (own.seq, own.words) for call in calls):
                return True
    return False


def _first_seq(view: GroupView) -> int | None:
    return min((t.seq for t in view.timeouts.values() if t.seq is not None), default=None)


def waiting_words(ranks: Collection[int]) -> str:
    """Who waits, with the verb."""
    return f"{rank_words(ranks)} wait{'s' if len(ranks) == 1 else ''}"


def signal_of(name: str, ranks: Iterable[int], view: GroupView, facts: dict[str, Any], lines: list[Line]) -> Signal:
    """A signal about ranks of a group, with the lines that show it side by side."""
    facts = {key: clean_text(value) if isinstance(value, str) else value for key, value in facts.items()}
    return Signal(
        name=name,
        scope=Scope(ranks=sorted(ranks), groups=view.groups),
        facts=facts,
        evidence=[quote_record(line, name) for line in lines],
        time_s=min((line.time_s for line in lines if line.time_s is not None), default=None),
    )
