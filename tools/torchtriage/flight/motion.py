"""Ranks that were still going when their dumps were taken: what those had not finished yet is no sign of a fault.

Dumps that somebody asks for in the middle of a step are never of one moment, so one rank is always a few calls ahead.
Two things in the dumps themselves tell that; the times of files do not, because copies change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.flight.ops import ROOTED
from torchtriage.flight.tables import as_int

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.flight.model import Group, Member, Vocabulary
    from torchtriage.flight.waits import Standing

MAX_CALLS_LOOKED_AT = 64


@dataclass(frozen=True)
class Motion:
    """Ranks that went on when they were dumped; ``seen``: those of whom the dump itself holds calls that show it."""

    ranks: set[int]
    seen: set[int]


def ranks_in_motion(groups: Sequence[Group], at: Sequence[Mapping[int, Standing]], vocabulary: Vocabulary) -> Motion:
    """Ranks that had just finished a call, and ranks whose dump is older than a peer's."""
    seen: set[int] = set()
    inferred: set[int] = set()
    # A counter that never moved may be one that nobody keeps.
    counted = {
        rank
        for group in groups
        for rank, member in group.members.items()
        if member.status is not None and (as_int(member.status[3]) or 0) > 0
    }
    for group, group_at in zip(groups, at, strict=True):
        for rank in group.members.keys() & counted if not group.has_p2p else ():  # else sends are counted as well
            track = group.members[rank].track
            finished = _just_finished(group.members[rank])
            if finished and track is not None:
                (seen if finished >= track.first else inferred).add(rank)
        inferred |= _outrun(group, group_at, vocabulary)
    return Motion(seen | inferred, seen)


def _just_finished(member: Member) -> int:
    """The last call that it finished, if its own watchdog has not counted that; else 0.

    A dump asks the device what is finished; the watchdog does so ten times a second (ProcessGroupNCCL.cpp,
    kWatchdogThreadSleepMillis) and counts in pg_status. What hangs was counted long before anybody dumped it. A dump of
    active calls alone lacks the finished ones, so there the first active one tells it.
    """
    track = member.track
    completed = as_int(member.status[3]) if member.status is not None else None
    if track is None or track.cut or completed is None or (track.lost_before and track.first_unfinished == track.first):
        return 0
    finished = track.calls.last_finished
    return finished if completed < finished else 0


def _outrun(group: Group, at: Mapping[int, Standing], vocabulary: Vocabulary) -> set[int]:
    """Ranks that had not enqueued a call which a peer finished, though it needs all: they did so after their dump."""
    if len(at) < 2:
        return set()
    ahead = max(at, key=lambda rank: at[rank].reached)
    track = group.members[ahead].track
    if track is None:
        return set()
    reached = min(at[ahead].reached, track.last)
    return {
        rank
        for rank, standing in at.items()
        if not standing.open_ended
        and any(
            (number := track.soft_at(seq)) and not any(s.op in ROOTED for s in vocabulary.calls[number].signatures)
            for seq in range(standing.enqueued + 1, min(reached, standing.enqueued + MAX_CALLS_LOOKED_AT) + 1)
        )
    }
