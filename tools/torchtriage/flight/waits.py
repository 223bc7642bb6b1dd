"""Where the ranks of a group stand, and who is behind: did not make a call, did not finish or start it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.flight.tables import as_int

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Where each rank with a dump stands.

    Entries are trusted over pg_status, which lags behind them and counts sends as well, also those whose entries are
    lost: what it counts beyond a rank's last entry was never seen to be a call of the group.
    """
    found: dict[int, Standing] = {}
    # A dump that holds calls would hold this group's unfinished ones too; so would one of active calls alone.
    by_counters = not any(member.dump.summary["has_entries"] for member in group.members.values())
    has_p2p = group.has_p2p
    for rank, member in group.members.items():
        standing = _standing(member, with_status=not has_p2p, by_counters=by_counters)
        if standing is not None:
            found[rank] = standing
    lasts = [track.last for track in group.tracks]
    for rank in found.keys() - {track.rank for track in group.tracks} if lasts else ():
        if found[rank].reached > max(lasts):
            del found[rank]  # nobody can have finished calls that no peer has made: it counts something else
    return found


def _standing(member: Member, *, with_status: bool, by_counters: bool) -> Standing | None:
    track = member.track
    cut = bool(member.dump.summary["cut"])
    # pg_status counts point-to-point calls as well, so it says nothing of a group that has some.
    status = member.status if with_status else None
    enqueued = as_int(status[1]) if status else None
    completed = as_int(status[3]) if status else None
    if track is not None:
        # Of active calls alone the last may be finished and left out, and of a damaged dump lost.
        last = track.last if member.dump.summary["any_finished"] and not cut else max(track.last, enqueued or 0)
        unfinished = track.first_unfinished
        reached = track.calls.last_finished
        in_first = unfinished is not None and track.lost_before and unfinished == track.first
        if in_first and completed is not None and track.last >= completed:
            reached = min(max(completed, 0), reached)  # the ring buffer lost the call that it is stuck in
        return Standing(last, None if unfinished is None else reached + 1, reached, cut)
    if enqueued is None:
        return Standing(0, None, 0) if member.never_called else None
    if cut:
        return Standing(enqueued, None, -1, cut)
    if completed is None or completed >= enqueued or completed < 0:
        return Standing(enqueued, None, enqueued)
    if by_counters:
        return Standing(enqueued, completed + 1, completed)
    return Standing(enqueued, None, enqueued if member.dump.summary["n_entries"] else completed)


def behind_on_enqueue(at: Mapping[int, Standing]) -> list[int]:
    """Ranks of a group that have not made a call in which others wait, by how many calls they made."""
    # A rank's own unfinished call is enqueued, so this never sets a rank against itself.
    awaited = max((s.unfinished for s in at.values() if s.unfinished is not None), default=-1)
    return sorted((rank for rank, s in at.items() if s.enqueued < awaited), key=lambda rank: (at[rank].enqueued, rank))


def lags_of(group: Group, at: Mapping[int, Standing]) -> list[Lag]:
    """Who is behind in one group; empty when nothing is unfinished or all stand alike."""
    waiting = {rank: s.unfinished for rank, s in at.items() if s.unfinished is not None}
    if not waiting or len(at) < 2:
        return []
    lags: list[Lag] = []
    late = sorted(rank for rank in behind_on_enqueue(at) if not at[rank].open_ended)
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
