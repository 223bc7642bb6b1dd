"""The free places between live blocks at a moment: how large, in whose segments, and what they could serve.

Stdlib only: runs in the isolated worker.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.memory.columns import ALLOC, SEGMENT_ALLOC, SEGMENT_MAP, SEGMENT_UNMAP

if TYPE_CHECKING:
    from torchtriage.memory.columns import Columns
    from torchtriage.memory.replay import Replay
    from torchtriage.memory.segments import Now

SMALL_REQUEST_BYTES = 1 << 20
"""Requests up to this come from segments of their own (torch's kSmallSize)."""
_GRAIN = 512
_Range = tuple[int, int, int, tuple[int, int], bool]
# Address, bytes, stream, pool, and whether it is for large requests.


@dataclass
class Lane:
    """Free bytes of one stream and pool, small or large segments."""

    stream: int
    pool: tuple[int, int]
    large: bool
    free_bytes: int = 0
    largest_bytes: int = 0
    in_used_segments_bytes: int = 0
    """In segments that hold live blocks too, so that they cannot be given back to the driver."""
    n_gaps: int = 0
    pins: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Of the live blocks that keep those segments, by stack: bytes and blocks."""


@dataclass
class Gaps:
    """All lanes at one moment."""

    lanes: list[Lane] = field(default_factory=list[Lane])

    @property
    def free_bytes(self) -> int:
        """Reserved and free."""
        return sum(lane.free_bytes for lane in self.lanes)


def gaps_at(columns: Columns, now: Now, replay: Replay, moment: int) -> Gaps:
    """The gaps just after the event ``moment``."""
    ranges = _ranges_at(columns, now, moment)
    live = _live_blocks(columns, now, replay, moment)
    addresses = [address for address, _, _ in live]
    lanes: dict[tuple[int, tuple[int, int], bool], Lane] = {}
    here = 0
    for start, size, stream, pool, large in ranges:
        lane = lanes.setdefault((stream, pool, large), Lane(stream, pool, large))
        # Segments of a sound file do not overlap; of another one no place counts twice.
        here, end, used = max(here, start), start + size, False
        position = max(0, bisect_right(addresses, here) - 1)
        gaps: list[int] = []
        blocks: list[tuple[int, int]] = []
        while position < len(live) and live[position][0] < end:
            address, block, stack = live[position]
            position += 1
            if address + block <= here:
                continue
            used = True
            blocks.append((stack, block))
            if address > here:
                gaps.append(address - here)
            here = address + block
        if here < end:
            gaps.append(end - here)
            here = end
        if gaps:
            lane.free_bytes += sum(gaps)
            lane.largest_bytes = max(lane.largest_bytes, *gaps)
            lane.n_gaps += len(gaps)
            lane.in_used_segments_bytes += sum(gaps) if used else 0
            for stack, block in blocks:
                pin = lane.pins.setdefault(stack, [0, 0])
                pin[0] += block
                pin[1] += 1
    return Gaps(list(lanes.values()))


def _ranges_at(columns: Columns, now: Now, moment: int) -> list[_Range]:
    """The segments as they were, by address: those of the snapshot, with every later event undone."""
    ranges: list[_Range] = sorted((s.address, s.total, s.stream, s.pool, s.large) for s in now.segments if s.total)
    for index in range(len(columns) - 1, moment, -1):
        action = columns.action[index]
        if not SEGMENT_ALLOC <= action <= SEGMENT_UNMAP:
            continue
        address, size = columns.address[index], columns.size[index]
        if action in (SEGMENT_ALLOC, SEGMENT_MAP):
            _cut(ranges, address, address + size)
        else:
            stream, pool = columns.lanes[columns.lane[index]]
            insort(ranges, (address, size, stream, pool, size > 2 * SMALL_REQUEST_BYTES))
    expandable = SEGMENT_UNMAP in columns.action or any(segment.expandable for segment in now.segments)
    return _joined(ranges) if expandable else ranges


def _joined(ranges: list[_Range]) -> list[_Range]:
    """Pieces of an expandable segment that lie next to each other are one: a block may reach over both."""
    joined: list[_Range] = []
    for one in ranges:
        address, size, stream, pool, large = joined[-1] if joined else (0, 0, 0, (0, 0), False)
        if joined and (address + size, stream, pool) == (one[0], one[2], one[3]):
            joined[-1] = (address, size + one[1], stream, pool, large or one[4])
        else:
            joined.append(one)
    return joined


def _cut(ranges: list[_Range], start: int, end: int) -> None:
    """Take a piece of the address space out."""
    first = max(0, bisect_left(ranges, (start,)) - 1)
    last = first
    pieces: list[_Range] = []
    while last < len(ranges) and ranges[last][0] < end:
        address, size, stream, pool, large = ranges[last]
        last += 1
        if address < start:
            pieces.append((address, min(size, start - address), stream, pool, large))
        if address + size > end:
            pieces.append((end, address + size - end, stream, pool, large))
    ranges[first:last] = pieces


def _live_blocks(columns: Columns, now: Now, replay: Replay, moment: int) -> list[tuple[int, int, int]]:
    """Address, size rounded up to the allocator's grain, and stack of every block live then; sorted."""
    size_now = {block.address: block.size for block in now.blocks if block.state < 2}
    live: list[tuple[int, int, int]] = []
    for index in range(min(moment + 1, len(columns))):
        if columns.action[index] == ALLOC and not 0 <= replay.freed_at[index] <= moment:
            address, size = columns.address[index], columns.size[index]
            if replay.freed_at[index] < 0:
                size = max(size, size_now.get(address, 0))
            live.append((address, -(-size // _GRAIN) * _GRAIN, columns.stack[index]))
    for address, size in replay.before.items():
        if replay.before_freed_at.get(address, moment + 1) > moment:
            live.append((address, -(-size // _GRAIN) * _GRAIN, 0))
    live.sort()
    return live
