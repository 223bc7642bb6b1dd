"""When all is well, or nothing has waited long yet: the signals that say so, and what has to be seen for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.age import oldest_wait_ms
from torchtriage.flight.align import n_compared
from torchtriage.flight.doubts import doubts_of
from torchtriage.flight.quotes import quote_call, quote_status
from torchtriage.flight.tables import as_int
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from torchtriage.flight.job import Job
    from torchtriage.flight.model import Group
    from torchtriage.report import Evidence

IN_STEP = "flight.in_step"
YOUNG = "flight.waits_young"


def in_step_signal(job: Job, moving: set[int]) -> Signal | None:
    """The signal that all is well; only when enough was seen to say so.

    What is unfinished is no trouble where a member of the group was seen to go on at the moment of its dump.
    """
    shared = [group for group in job.groups if len(group.ranks) > 1]
    counted = [group for group in shared if _counted_alike(group)]
    doubts = doubts_of(shared, moving)
    job.gaps += doubts
    enough = (
        not doubts
        and len(job.dumps) >= 2
        and not any(group.missing for group in job.groups)
        and all(member.rank in job.dumps for group in job.groups for member in group.members.values())
        and (sum(map(n_compared, shared)) > 0 or len(counted) > 0)
        and all(track.calls.all_known for group in job.groups for track in group.tracks)
        and all(not moving.isdisjoint(group.ranks) for group in job.groups if group.has_unfinished)
        and not any(dump.summary["damaged"] or dump.summary["partial"] for dump in job.dumps.values())
        and not any(group.disputed for group in job.groups)
        and all(_counted_alike(group) for group in shared if not (group.tracks or group.has_p2p))
    )
    if not enough:
        return None
    running = any(group.has_unfinished for group in job.groups)
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


def young_signal(job: Job) -> Signal | None:
    """The signal that no unfinished call had waited long when the dumps were written, if that is known of all."""
    shared = [group for group in job.groups if len(group.ranks) > 1]
    wait_ms = oldest_wait_ms(shared)
    if wait_ms is None:
        return None
    evidence = [
        quote
        for group in shared
        for track in group.tracks
        if track.first_unfinished is not None
        for quote in quote_call(track, track.first_unfinished, YOUNG, ("profiling_name",), site=False)
    ]
    facts: dict[str, Any] = {"oldest_wait_s": wait_ms / 1000}
    return Signal(name=YOUNG, scope=Scope(ranks=sorted(job.dumps)), facts=facts, evidence=evidence[:2])


def _counted_alike(group: Group) -> bool:
    """Whether by their counters all members enqueued and finished the same calls; all that an idle active dump says."""
    counts = {(as_int(m.status[1]), as_int(m.status[3])) for m in group.members.values() if m.status is not None}
    if len(counts) != 1 or any(m.status is None for m in group.members.values()):
        return False
    ((enqueued, completed),) = counts
    return enqueued is not None and enqueued == completed
