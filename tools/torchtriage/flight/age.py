"""How long the oldest unfinished call of a job had waited when its dumps were written.

A call that was enqueued a moment ago and is not finished is what every running job has; one that the watchdog or a
person waited for is a hang. The calls carry the time of their creation, and the file that of its writing. A copy may
have given the file a later time, so a file can only tell that calls are young: nothing here shows that they are old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.flight.model import Group, Member, RankDump

YOUNG_MS = 5000
TIMEOUT_SHARE = 5
"""A call is young for this part of its time-out at most."""
CLOCK_SLACK_MS = 2000
"""By how much a file's time may be before that of the newest call in it: archives keep even seconds, servers differ."""


def oldest_wait_ms(groups: Sequence[Group]) -> int | None:
    """How long the oldest unfinished call had waited, if all unfinished calls are known to be young; else None."""
    since: dict[int, int] = {}
    dumps: dict[int, RankDump] = {}
    for group in groups:
        for rank, member in group.members.items():
            if member.first_open is None:
                continue
            created_ms = _created_ms(member)
            if created_ms is None:
                return None
            since[rank] = min(created_ms, since.get(rank, created_ms))
            dumps[rank] = member.dump
    waits = [wait for rank, dump in dumps.items() if (wait := _young_wait_ms(dump, since[rank])) is not None]
    return max(waits) if waits and len(waits) == len(dumps) else None


def _created_ms(member: Member) -> int | None:
    """When the oldest unfinished call of a rank in a group was made."""
    track = member.track
    times: list[int] = [row[6] for row in member.p2p]
    if track is not None and track.first_unfinished is not None:
        times.append(track.time_ms(track.first_unfinished) or 0)
    return min(times, default=0) or None


def _young_wait_ms(dump: RankDump, since_ms: int) -> int | None:
    if dump.written_ms is None or dump.written_ms < _newest_ms(dump.summary["tracks"]) - CLOCK_SLACK_MS:
        return None
    timeout_ms = dump.summary["timeout_ms"]
    limit_ms = YOUNG_MS if timeout_ms is None else min(YOUNG_MS, timeout_ms // TIMEOUT_SHARE)
    wait_ms = max(0, dump.written_ms - since_ms)
    return wait_ms if wait_ms < limit_ms else None


def _newest_ms(tracks: Sequence[dict[str, Any]]) -> int:
    p2p_ms: list[int] = [row[6] for track in tracks for row in track["p2p"]]
    return max([*p2p_ms, *(track["last_ms"] for track in tracks)], default=0)
