"""Why dumps without a divergence may still not be in step: a rank that says nothing, a stale dump, a rank gone quiet.

Never accuses: what is found here is a gap, and takes back only the claim that all is well.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.age import newest_ms, oldest_wait_ms
from torchtriage.flight.columns import unpack_column
from torchtriage.flight.tables import as_int
from torchtriage.flight.waits import behind_on_enqueue, standings
from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchtriage.flight.model import Group, Member, RankDump

CALLS_IN_FLIGHT = 4
"""By how many calls ranks may differ that had finished all of theirs: dumps are not of one moment."""
QUIET_SHARE = 10
"""A rank is quiet when it made no call for so many times its longest pause."""
LEAST_QUIET_MS = 500
"""Less than this may be the writing of the dump."""
LEAST_CALLS = 4
MAX_RANKS_LOOKED_AT = 64
MAX_DOUBTS = 8


def doubts_of(groups: Sequence[Group], moving: set[int]) -> list[str]:
    """What keeps the dumps of ``groups``, which have more than one rank each, from being in step; empty: nothing."""
    running = any(group.has_unfinished for group in groups)
    young = oldest_wait_ms(groups) is not None
    return list(islice((doubt for group in groups for doubt in _of(group, moving, running, young)), MAX_DOUBTS))


def _of(group: Group, moving: set[int], running: bool, young: bool) -> Iterator[str]:
    silent = sorted(rank for rank, m in group.members.items() if _says_nothing(m, moving))
    if silent and (group.tracks or group.has_p2p):
        yield f"{rank_words(silent)}: the dump holds neither calls nor counters of group {group.label()}"
    at = standings(group)
    enqueued = {rank: standing.enqueued for rank, standing in at.items()}
    most = max(enqueued.values(), default=0)
    old = sorted(rank for rank, n in enqueued.items() if n < most - CALLS_IN_FLIGHT and rank not in moving)
    if old and not running:
        yield (
            f"group {group.label()}: {rank_words(old)} enqueued {min(enqueued[r] for r in old)} calls and finished "
            f"them, others as many as {most}: those dumps are older than the others', or their calls are lost"
        )
    for rank in behind_on_enqueue(at)[:MAX_RANKS_LOOKED_AT] if young else ():
        dump = group.members[rank].dump
        quiet_ms, pause_ms = _quiet_ms(dump), _longest_pause_ms(dump)
        if pause_ms is not None and quiet_ms > max(LEAST_QUIET_MS, QUIET_SHARE * pause_ms):
            yield (
                f"{clean_text(dump.artefact)}: peers wait for rank {rank} in group {group.label()}; it had finished "
                f"its calls and made none for {quiet_ms / 1000:.1f} s, where its longest pause was {pause_ms} ms"
            )


def _says_nothing(member: Member, moving: set[int]) -> bool:
    if member.track is not None or member.n_p2p:
        return False
    counted = member.status is not None and as_int(member.status[1]) is not None
    # A rank that goes on may just not have come to the group's first call.
    return not counted and not (member.dump.summary["n_entries"] and member.rank in moving)


def _quiet_ms(dump: RankDump) -> int:
    """For how long it had made no call, if nothing of it is unfinished; else 0."""
    tracks = dump.summary["tracks"]
    if dump.written_ms is None or any(track["open"] or track["p2p"] for track in tracks):
        return 0
    newest = newest_ms(tracks)
    return dump.written_ms - newest if newest else 0


def _longest_pause_ms(dump: RankDump) -> int | None:
    """The longest time between two calls in a dump; None when there are too few to tell."""
    times: list[int] = []
    for track in dump.summary["tracks"]:
        times.extend(track["base_ms"] + ms for ms in unpack_column(track["ms"], track["n"]) if ms)
    if len(times) < LEAST_CALLS:
        return None
    return max(later - earlier for earlier, later in pairwise(sorted(times)))
