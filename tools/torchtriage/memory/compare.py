"""Several snapshots against each other: two moments of one rank, and the ranks of one job.

Pure: knows the summaries of :mod:`torchtriage.memory.read`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.memory.analyze import Snapshot

# A rank whose peak is so much above the typical one; recorded ranks of even jobs lay within two percent.
HEAVIER_FROM = 0.15
HEAVIER_FROM_BYTES = 64 << 20
MAX_CHANGES = 20
MIN_STAGES = 3
"""Ranks from which on the last one may be the last stage of a pipeline."""
MAX_PAIRS = 16


@dataclass(frozen=True)
class Change:
    """One call site before and after; bytes and blocks."""

    site: str
    category: str
    before: tuple[int, int]
    after: tuple[int, int]


@dataclass
class Difference:
    """What makes the difference between two snapshots."""

    of: str
    """``moments`` of one rank, or ``ranks`` at their peaks."""
    rank: int | None
    device: int
    before: str
    after: str
    more_bytes: int
    changes: list[Change] = field(default_factory=list[Change])
    typical_bytes: int = 0
    last_rank: bool = False
    n_ranks: int = 0


def compare_moments(snapshots: Sequence[Snapshot]) -> list[Difference]:
    """Snapshots of one rank (or all of unknown ranks, when there are two) in the order of their times."""
    by_rank: dict[int | None, list[Snapshot]] = {}
    for snapshot in snapshots:
        by_rank.setdefault(snapshot.rank, []).append(snapshot)
    found: list[Difference] = []
    for rank, ones in by_rank.items():
        if len(ones) < 2 or (rank is None and len(ones) > 2):
            continue
        ordered = sorted(ones, key=_time_of)
        for before, after in pairwise(ordered):
            found.extend(_moment(rank, before, after))
    return found[:MAX_PAIRS]


def _time_of(snapshot: Snapshot) -> int:
    return max((d["last_time_us"] or 0 for d in snapshot.summary["devices"]), default=0)


def _moment(rank: int | None, before: Snapshot, after: Snapshot) -> list[Difference]:
    earlier = {d["device"]: d for d in before.summary["devices"]}
    found: list[Difference] = []
    for device in after.summary["devices"]:
        was = earlier.get(device["device"])
        if was is not None and (was["reserved"] or device["reserved"]):
            more = device["allocated"] - was["allocated"]
            changes = _changes(was["ending"], device["ending"])
            found.append(Difference("moments", rank, device["device"], before.artefact, after.artefact, more, changes))
    return found


def compare_ranks(snapshots: Sequence[Snapshot]) -> list[Difference]:
    """The ranks whose peak is far above the typical one, and by what; heaviest first."""
    latest: dict[int, Snapshot] = {}
    for snapshot in sorted(snapshots, key=_time_of):
        if snapshot.rank is not None:
            latest[snapshot.rank] = snapshot
    busiest = {rank: device for rank, s in latest.items() if (device := _busiest(s)) is not None}
    if len(busiest) < 2:
        return []
    peaks = sorted(device["peak_allocated"] for device in busiest.values())
    # Of two ranks the lighter one is what the heavier one is measured by.
    typical = peaks[(len(peaks) - 1) // 2]
    peer_rank, peer = min(busiest.items(), key=lambda item: (abs(item[1]["peak_allocated"] - typical), item[0]))
    found: list[Difference] = []
    for rank, device in busiest.items():
        more = device["peak_allocated"] - typical
        if more >= max(HEAVIER_FROM_BYTES, HEAVIER_FROM * typical):
            found.append(
                Difference(
                    "ranks", rank, device["device"], latest[peer_rank].artefact, latest[rank].artefact, more,
                    _changes(peer["holders"], device["holders"]), typical,
                    len(busiest) >= MIN_STAGES and rank == max(busiest), len(busiest),
                )
            )  # fmt: skip
    return sorted(found, key=lambda d: -d.more_bytes)[:MAX_PAIRS]


def _busiest(snapshot: Snapshot) -> Mapping[str, Any] | None:
    """A rank's own device: the one on which it held most."""
    return max(snapshot.summary["devices"], key=lambda d: d["peak_allocated"], default=None)


def _changes(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Change]:
    """Call sites that hold another number of bytes, largest increase first."""
    was = {(h["site"], h["category"]): (h["bytes"], h["blocks"]) for h in before}
    now = {(h["site"], h["category"]): (h["bytes"], h["blocks"]) for h in after}
    changes = [
        Change(site, category, was.get((site, category), (0, 0)), now.get((site, category), (0, 0)))
        for site, category in {**was, **now}
    ]
    moved = [c for c in changes if c.after[0] != c.before[0]]
    moved.sort(key=lambda c: (c.before[0] - c.after[0], c.site))
    return moved[:MAX_CHANGES]
