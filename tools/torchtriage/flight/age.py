"""How long the oldest unfinished call of a job had waited when its dumps were written.

A call that was enqueued a moment ago and is not finished is what every running job has; one that the watchdog or a
person waited for is a hang. The calls carry the time of their creation, and the file that of its writing. A copy may
have given the file a later time, so that a call looks old says little by itself; that nearly all are as old as their
time-out, when the watchdog writes dumps, is no accident of copying.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.flight.model import Group, Member, RankDump

YOUNG_MS = 5000
TIMEOUT_SHARE = 5
"""A call is young for this part of its time-out at most."""
LONG_MS = 30_000
"""A call that waits this long, or for nearly its time-out, hangs: steps are shorter."""
LEAST_WAITED = 0.9
DUMPED_WITHIN_MS = 180_000
"""A watchdog's dump is written this soon after the time-out: it looks every second and lets dumps take a minute."""
CLOCK_SLACK_MS = 2000
"""By how much a file's time may be before that of the newest call in it: archives keep even seconds, servers differ."""


def oldest_wait_ms(groups: Sequence[Group]) -> int | None:
    """How long the oldest unfinished call had waited, if all unfinished calls are known to be young; else None."""
    oldest = _oldest_calls(groups)
    waits = [wait for dump, since in oldest if since and (wait := _young_wait_ms(dump, since)) is not None]
    return max(waits) if waits and len(waits) == len(oldest) else None


def waited_long(groups: Sequence[Group], *, plausibly: bool) -> bool:
    """Whether in most dumps the oldest unfinished call had waited long when the file was written.

    Args:
        groups: all groups.
        plausibly: not much longer than its time-out, when the watchdog writes dumps. A copy of a file that is made
            later gives it a time that is not.
    """
    oldest = _oldest_calls(groups)
    n_waited = 0
    for dump, since_ms in oldest:
        timeout_ms = dump.summary["timeout_ms"]
        if since_ms and dump.written_ms is not None and (timeout_ms or not plausibly):
            waited_ms = dump.written_ms - since_ms
            least_ms = min(LONG_MS, LEAST_WAITED * timeout_ms) if timeout_ms else LONG_MS
            n_waited += waited_ms >= least_ms and (not plausibly or waited_ms <= timeout_ms + DUMPED_WITHIN_MS)
    return 2 * n_waited > len(oldest)


def _oldest_calls(groups: Sequence[Group]) -> list[tuple[RankDump, int | None]]:
    """For each dump with unfinished calls, when the oldest of them was made."""
    since: dict[int, int | None] = {}
    dumps: dict[int, RankDump] = {}
    for group in groups:
        for rank, member in group.members.items():
            if member.first_open is not None:
                created_ms, known_ms = _created_ms(member), since.get(rank, 1 << 62)
                since[rank] = None if created_ms is None or known_ms is None else min(created_ms, known_ms)
                dumps[rank] = member.dump
    return [(dump, since[rank]) for rank, dump in dumps.items()]


def _created_ms(member: Member) -> int | None:
    """When the oldest unfinished call of a rank in a group was made."""
    track = member.track
    times: list[int] = [row[6] for row in member.p2p]
    if track is not None and track.first_unfinished is not None:
        times.append(track.time_ms(track.first_unfinished) or 0)
    return min(times, default=0) or None


def _young_wait_ms(dump: RankDump, since_ms: int) -> int | None:
    if dump.written_ms is None or dump.written_ms < newest_ms(dump.summary["tracks"]) - CLOCK_SLACK_MS:
        return None
    timeout_ms = dump.summary["timeout_ms"]
    limit_ms = YOUNG_MS if timeout_ms is None else min(YOUNG_MS, timeout_ms // TIMEOUT_SHARE)
    wait_ms = max(0, dump.written_ms - since_ms)
    return wait_ms if wait_ms < limit_ms else None


def newest_ms(tracks: Sequence[dict[str, Any]]) -> int:
    """When the newest call of a dump was made; 0 when none says so."""
    p2p_ms: list[int] = [row[6] for track in tracks for row in track["p2p"]]
    return max([*p2p_ms, *(track["last_ms"] for track in tracks)], default=0)
