"""The segments of a snapshot: what one device held when the snapshot was taken. Stdlib only: isolated worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from torchtriage.memory.columns import pool_of, whole

MAX_BYTES = 1 << 50
STATES = {"active_allocated": 0, "active_pending_free": 1, "active_awaiting_free": 1, "inactive": 2}


@dataclass(frozen=True)
class Block:
    """A block that the snapshot itself lists; ``where`` is its JSON Pointer."""

    address: int
    size: int
    requested: int
    state: int
    """0 allocated, 1 freed and still in use by a stream, 2 free."""
    frames: Any
    segment: int
    where: str


@dataclass(frozen=True)
class Segment:
    """A segment of the snapshot."""

    address: int
    total: int
    stream: int
    pool: tuple[int, int]
    large: bool
    expandable: bool
    has_frames: bool


@dataclass
class Now:
    """What the segments say: the state when the snapshot was taken."""

    segments: list[Segment] = field(default_factory=list[Segment])
    blocks: list[Block] = field(default_factory=list[Block])
    reserved: int = 0
    allocated: int = 0
    active: int = 0
    requested: int = 0
    n_odd: int = 0


def device_of(segment: dict[Any, Any]) -> int:
    """The device of a segment: 0 where it is not named, -1 where what is named is none."""
    named = segment.get("device")
    number = whole(named, 1 << 20)
    return (0 if named is None else -1) if number is None else number


def read_segments(segments: Any, device: int) -> Now:
    """Read the segments of one device; those that are no segment are counted."""
    now = Now()
    for number, entry in enumerate(cast("list[Any]", segments) if isinstance(segments, list) else []):
        if not isinstance(entry, dict):
            now.n_odd += 1
            continue
        record = cast("dict[Any, Any]", entry)
        if device_of(record) != device:
            continue
        total, address = whole(record.get("total_size"), MAX_BYTES), whole(record.get("address"), 1 << 62)
        if total is None:
            now.n_odd += 1
            continue
        segment = Segment(
            address or 0, total, whole(record.get("stream"), 1 << 62) or 0, pool_of(record.get("segment_pool_id")),
            record.get("segment_type") != "small", record.get("is_expandable") is True, bool(record.get("frames")),
        )  # fmt: skip
        now.segments.append(segment)
        now.reserved += total
        _read_blocks(record, segment, number, now)
    return now


def _read_blocks(record: dict[Any, Any], segment: Segment, number: int, now: Now) -> None:
    allocated = active = requested = 0
    blocks = record.get("blocks")
    # Files of before torch 2.1 have no address per block: blocks lie one after the other.
    here = segment.address
    for position, entry in enumerate(cast("list[Any]", blocks) if isinstance(blocks, list) else []):
        block = cast("dict[Any, Any]", entry) if isinstance(entry, dict) else {}
        size = whole(block.get("size"), MAX_BYTES)
        state = STATES.get(cast("str", block.get("state"))) if isinstance(block.get("state"), str) else None
        if size is None or state is None:
            now.n_odd += 1
            continue
        address = whole(block.get("address"), 1 << 62)
        address = here if address is None else address
        here = address + size
        frames, history = block.get("frames"), block.get("history")
        asked = whole(block.get("requested_size"), MAX_BYTES)
        if isinstance(history, list) and history and isinstance(history[0], dict):
            first = cast("dict[Any, Any]", history[0])
            frames = first.get("frames") if frames is None else frames
            asked = whole(first.get("real_size"), MAX_BYTES) if asked is None else asked
        asked = size if asked is None else asked
        allocated += size if state == 0 else 0
        active += size if state < 2 else 0
        requested += asked if state == 0 else 0
        now.blocks.append(Block(address, size, asked, state, frames, len(now.segments) - 1,
                                f"/segments/{number}/blocks/{position}"))  # fmt: skip
    given = [whole(record.get(f"{what}_size"), MAX_BYTES) for what in ("allocated", "active", "requested")]
    now.allocated += allocated if given[0] is None else given[0]
    now.active += active if given[1] is None else given[1]
    now.requested += requested if given[2] is None else given[2]
