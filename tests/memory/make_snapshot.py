"""A caching allocator in small that writes snapshots in torch's own form, with what is true known beside it.

It rounds, splits, merges and caches as torch's allocator does, keeps a ring of events, and counts for itself: what was
asked for and reserved at every event, which blocks live, where the gaps are.
"""

from __future__ import annotations

import pickle
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
EAGER = (0, 0)
Frames = list[dict[str, Any]]


class OutOfMemoryError(Exception):
    """The simulated GPU is full."""


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: Frames = field(default_factory=Frames)

    def __lt__(self, other: Block) -> bool:
        return self.address < other.address


@dataclass
class Segment:
    address: int
    total: int
    lane: tuple[int, tuple[int, int], bool]
    """Stream, pool, and whether it is for small requests."""
    frames: Frames
    blocks: list[Block]


@dataclass
class Truth:
    """What holds just after an event."""

    requested: int
    reserved: int
    n_live: int


@dataclass
class Allocator:
    """One device."""

    device: int = 0
    total_bytes: int = 80 * GIB
    max_entries: int = 1 << 40
    expandable: bool = False
    context: str = "all"
    """Whose stacks are kept: of ``all`` events, ``alloc`` (frees then show that of the allocation) or ``none``."""
    other_bytes: int = 0
    """What other processes hold."""
    recording: bool = True
    events: deque[dict[str, Any]] = field(default_factory=deque[dict[str, Any]])
    truths: deque[Truth] = field(default_factory=deque[Truth])
    segments: list[Segment] = field(default_factory=list[Segment])
    live: dict[int, Block] = field(default_factory=dict[int, Block])
    pending: list[tuple[Block, Frames]] = field(default_factory=list[tuple[Block, Frames]])
    requested: int = 0
    reserved: int = 0
    now_us: int = 1_700_000_000_000_000
    _top: int = 0x7F00_0000_0000
    _segment_of: dict[int, Segment] = field(default_factory=dict[int, Segment])

    def alloc(self, size: int, frames: Frames, stream: int = 0, pool: tuple[int, int] = EAGER) -> Block:
        """Hand out a block; raises OutOfMemoryError after noting it."""
        rounded = max(512, -(-size // 512) * 512)
        lane = (stream, pool, rounded <= MIB)
        block = self._fitting(lane, rounded)
        if block is None and not self._grow(lane, rounded, frames):
            self.empty_cache(frames)
            if not self._grow(lane, rounded, frames):
                self._note("oom", self.device_free, rounded, stream, pool, frames)
                raise OutOfMemoryError
        block = block or self._fitting(lane, rounded)
        assert block is not None
        segment = self._segment_of[block.address]
        rest = block.size - rounded
        if rest >= 512 if lane[2] else rest > MIB:
            block.size = rounded
            self._add(segment, Block(block.address + rounded, rest))
        block.state, block.requested = "active_allocated", size
        block.frames = frames if self.recording and self.context != "none" else []
        self.live[block.address] = block
        self.requested += size
        self._note("alloc", block.address, size, stream, pool, frames)
        return block

    def free(self, block: Block, frames: Frames, *, used_elsewhere: bool = False) -> None:
        """Give a block back; what another stream still uses stays pending until :meth:`finish_streams`."""
        segment = self._segment_of[block.address]
        frames = block.frames if self.context == "alloc" else frames
        del self.live[block.address]
        self.requested -= block.requested
        self._note("free_requested", block.address, block.requested, segment.lane[0], segment.lane[1], frames)
        block.state = "active_pending_free"
        if used_elsewhere:
            self.pending.append((block, frames))
        else:
            self._complete(block, frames)

    def finish_streams(self) -> None:
        """All streams are done with what was given back."""
        for block, frames in self.pending:
            self._complete(block, frames)
        self.pending.clear()

    def empty_cache(self, frames: Frames) -> None:
        """Give what is wholly free back to the driver."""
        self.finish_streams()
        for segment in list(self.segments):
            if self.expandable:
                self._unmap(segment, frames)
            elif len(segment.blocks) == 1 and segment.blocks[0].state == "inactive":
                self.segments.remove(segment)
                del self._segment_of[segment.address]
                self.reserved -= segment.total
                self._note("segment_free", segment.address, segment.total, segment.lane[0], segment.lane[1], frames)

    @property
    def device_free(self) -> int:
        """What the driver has left."""
        return self.total_bytes - self.reserved - self.other_bytes

    @property
    def allocated(self) -> int:
        """Bytes of blocks that are handed out, as torch counts them."""
        return sum(block.size for block in self.live.values())

    def gaps(self) -> dict[tuple[int, tuple[int, int], bool], list[int]]:
        """Sizes of free places by stream, pool and large or not."""
        found: dict[tuple[int, tuple[int, int], bool], list[int]] = {}
        for segment in self.segments:
            for block in segment.blocks:
                if block.state != "active_allocated":
                    stream, pool, small = segment.lane
                    found.setdefault((stream, pool, not small), []).append(block.size)
        return found

    def snapshot_segments(self) -> list[dict[str, Any]]:
        """As torch lists them."""
        return [
            {
                "device": self.device,
                "address": segment.address,
                "total_size": segment.total,
                "allocated_size": sum(b.size for b in segment.blocks if b.state == "active_allocated"),
                "active_size": sum(b.size for b in segment.blocks if b.state != "inactive"),
                "requested_size": sum(b.requested for b in segment.blocks if b.state == "active_allocated"),
                "stream": segment.lane[0],
                "segment_type": "small" if segment.lane[2] else "large",
                "segment_pool_id": segment.lane[1],
                "is_expandable": self.expandable,
                "frames": segment.frames,
                "blocks": [
                    {
                        "address": b.address,
                        "size": b.size,
                        "requested_size": b.requested,
                        "state": b.state,
                        "frames": b.frames,
                    }
                    for b in segment.blocks
                ],
            }
            for segment in sorted(self.segments, key=lambda s: s.address)
        ]

    def _fitting(self, lane: tuple[int, tuple[int, int], bool], size: int) -> Block | None:
        free = [
            block
            for segment in self.segments
            if segment.lane == lane
            for block in segment.blocks
            if block.state == "inactive" and block.size >= size
        ]
        return min(free, key=lambda b: (b.size, b.address), default=None)

    def _grow(self, lane: tuple[int, tuple[int, int], bool], size: int, frames: Frames) -> bool:
        page = 2 * MIB if lane[2] else 20 * MIB
        segment = next((s for s in reversed(self.segments) if s.lane == lane and self._is_last(s)), None)
        if not self.expandable:
            total = page if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        else:
            last = segment.blocks[-1] if segment is not None else None
            have = last.size if last is not None and last.state == "inactive" else 0
            total = -(-(size - have) // page) * page
        if total > self.device_free:
            return False
        self.reserved += total
        if self.expandable and segment is not None:
            address = segment.address + segment.total
            segment.total += total
            self._add(segment, Block(address, total))
            self._merge(segment, segment.blocks[-1])
        else:
            address = self._top
            self._top += (1 << 40) if self.expandable else total + 2 * MIB
            segment = Segment(address, total, lane, frames, [])
            self.segments.append(segment)
            self._add(segment, Block(address, total))
        self._note("segment_map" if self.expandable else "segment_alloc", address, total, lane[0], lane[1], frames)
        return True

    def _is_last(self, segment: Segment) -> bool:
        """Whether nothing is mapped behind it in its range of addresses."""
        start = segment.address >> 40
        return all(s.address <= segment.address for s in self.segments if s.address >> 40 == start)

    def _unmap(self, segment: Segment, frames: Frames) -> None:
        page = 2 * MIB if segment.lane[2] else 20 * MIB
        base = segment.address >> 40 << 40
        for block in list(segment.blocks):
            if block.state != "inactive":
                continue
            start = base + -(-(block.address - base) // page) * page
            end = base + (block.address + block.size - base) // page * page
            if end <= start:
                continue
            position = segment.blocks.index(block)
            before, after = segment.blocks[:position], segment.blocks[position + 1 :]
            before += [Block(block.address, start - block.address)] if start > block.address else []
            stop = block.address + block.size
            after = ([Block(end, stop - end)] if stop > end else []) + after
            del self._segment_of[block.address]
            self.segments.remove(segment)
            whole_end = segment.address + segment.total
            for first, stop, blocks in ((segment.address, start, before), (end, whole_end, after)):
                if blocks:
                    piece = Segment(first, stop - first, segment.lane, segment.frames, blocks)
                    self.segments.append(piece)
                    self._segment_of.update((b.address, piece) for b in blocks)
            self.reserved -= end - start
            self._note("segment_unmap", start, end - start, segment.lane[0], segment.lane[1], frames)
            if after:
                self._unmap(self._segment_of[after[0].address], frames)
            return

    def _complete(self, block: Block, frames: Frames) -> None:
        segment = self._segment_of[block.address]
        self._note("free_completed", block.address, block.requested, segment.lane[0], segment.lane[1], frames)
        block.state, block.frames = "inactive", []
        self._merge(segment, block)

    def _add(self, segment: Segment, block: Block) -> None:
        insort(segment.blocks, block)
        self._segment_of[block.address] = segment

    def _merge(self, segment: Segment, block: Block) -> None:
        position = segment.blocks.index(block)
        for left in (position, position - 1):
            if left < 0 or left + 1 >= len(segment.blocks):
                continue
            first, second = segment.blocks[left : left + 2]
            if first.state == second.state == "inactive":
                first.size += second.size
                del segment.blocks[left + 1]
                del self._segment_of[second.address]

    def _note(self, action: str, address: int, size: int, stream: int, pool: tuple[int, int], frames: Frames) -> None:
        self.now_us += 7
        if not self.recording:
            return
        event: dict[str, Any] = {"action": action, "device_free" if action == "oom" else "addr": address}
        event |= {"size": size, "stream": stream, "pool_id": pool, "time_us": self.now_us}
        event |= {"compile_context": "N/A", "user_metadata": "", "frames": frames if self.context != "none" else []}
        self.events.append(event)
        self.truths.append(Truth(self.requested, self.reserved, len(self.live)))
        if len(self.events) > self.max_entries:
            self.events.popleft()
            self.truths.popleft()


def snapshot(*devices: Allocator, annotations: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot()`` returns."""
    traces: list[list[dict[str, Any]]] = [[] for _ in range(1 + max(d.device for d in devices))]
    for device in devices:
        traces[device.device] = [dict(event) for event in device.events]
    return {
        "segments": [segment for device in devices for segment in device.snapshot_segments()],
        "device_traces": traces,
        "allocator_settings": {"expandable_segments": any(d.expandable for d in devices), "max_split_size": -1},
        "external_annotations": annotations or [],
    }


def write(path: Path, content: Any) -> Path:
    """As ``_dump_snapshot`` does."""
    path.write_bytes(pickle.dumps(content, protocol=4))
    return path


def user(name: str, line: int, file: str = "/job/train.py") -> dict[str, Any]:
    """A frame of the user's own code."""
    return {"name": name, "filename": file, "line": line}


def torch_frame(name: str, file: str, line: int = 100) -> dict[str, Any]:
    """A frame of torch's Python code; ``file`` is relative to the package."""
    return {"name": name, "filename": f"/opt/env/lib/python3.12/site-packages/torch/{file}", "line": line}


def library(name: str, file: str, line: int = 100) -> dict[str, Any]:
    """A frame of an installed package."""
    return {"name": name, "filename": f"/opt/env/lib/python3.12/site-packages/{file}", "line": line}


def native(name: str) -> dict[str, Any]:
    """A frame of C++ code."""
    return {"name": name, "filename": "??", "line": 0}
