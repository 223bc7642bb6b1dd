"""The events of one device of a memory snapshot as compact columns. Stdlib only: runs in the isolated worker.

An event of a snapshot is a dict of some 500 bytes with its parts; here it takes 35. The dicts are let go of as they are
read, so that a large file is never in memory twice.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torchtriage.memory.frames import Stacks

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM = range(8)
_ACTIONS = {
    "alloc": ALLOC, "free_requested": FREE_REQUESTED, "free_completed": FREE_COMPLETED, "free": FREE_COMPLETED,
    "segment_alloc": SEGMENT_ALLOC, "segment_free": SEGMENT_FREE, "segment_map": SEGMENT_MAP,
    "segment_unmap": SEGMENT_UNMAP, "oom": OOM,
}  # fmt: skip
_MAX_BYTES = 1 << 50
_MAX_ADDRESS = 1 << 62
MAX_LANES = 4096
_EAGER = (0, 0)


@dataclass
class Columns:
    """Events in their order. ``lane`` numbers the pairs of (stream, pool): blocks are only reused within one."""

    action: array[int] = field(default_factory=lambda: array("b"))
    address: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("i"))
    lane: array[int] = field(default_factory=lambda: array("h"))
    position: array[int] = field(default_factory=lambda: array("i"))
    """Where the event stands in the file's list."""
    time_us: array[int] = field(default_factory=lambda: array("q"))
    lanes: list[tuple[int, tuple[int, int]]] = field(default_factory=list[tuple[int, tuple[int, int]]])
    n_odd: int = 0
    """Entries that are no event."""
    unknown_actions: dict[str, int] = field(default_factory=dict[str, int])
    metadata: dict[str, int] = field(default_factory=dict[str, int])
    """What ``user_metadata`` said, counted."""
    compile_contexts: dict[str, int] = field(default_factory=dict[str, int])

    def __len__(self) -> int:
        return len(self.action)


def whole(value: Any, most: int) -> int | None:
    """A whole number from 0 to ``most``, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def pool_of(value: Any) -> tuple[int, int]:
    """A pool's id as a pair; (0, 0) is the pool that all eager work shares."""
    if isinstance(value, (tuple, list)):
        pair = list(cast("list[Any]", value)[:2])
        if len(pair) == 2 and all(whole(part, 1 << 62) is not None for part in pair):
            return (pair[0], pair[1])
    return _EAGER


def read_events(trace: list[Any], stacks: Stacks) -> Columns:
    """Read one device's trace and empty it on the way."""
    # One turn of this loop per event of files with millions: what almost all events have is asked for without calls.
    columns = Columns()
    lane_of: dict[tuple[Any, Any], int] = {}
    known, number_of_stack = _ACTIONS, stacks.number
    add_action, add_address, add_size = columns.action.append, columns.address.append, columns.size.append
    add_stack, add_lane, add_position = columns.stack.append, columns.lane.append, columns.position.append
    add_time = columns.time_us.append
    last_frames, last_stack = None, 0
    for position, event in enumerate(trace):
        trace[position] = None
        if not isinstance(event, dict):
            columns.n_odd += 1
            continue
        get = cast("dict[Any, Any]", event).get
        named = get("action")
        action = known.get(named) if isinstance(named, str) else None
        if action is None:
            if not isinstance(named, str):
                columns.n_odd += 1
            elif len(columns.unknown_actions) < 32:
                columns.unknown_actions[named[:40]] = columns.unknown_actions.get(named[:40], 0) + 1
            continue
        size = get("size")
        if type(size) is not int or not 0 <= size <= _MAX_BYTES:
            columns.n_odd += 1
            continue
        address = get("device_free" if action == OOM else "addr")
        if type(address) is not int or not 0 <= address <= _MAX_ADDRESS:
            if action != OOM:
                columns.n_odd += 1
                continue
            address = -1
        stream, pool = get("stream"), get("pool_id", get("segment_pool_id"))
        if pool is None:
            pool = _EAGER
        elif type(pool) is not tuple:
            pool = pool_of(pool)
        try:
            lane = lane_of.get(cast("tuple[Any, Any]", (stream, pool)))
        except TypeError:  # a stream that is a container
            columns.n_odd += 1
            continue
        if lane is None:
            key = (whole(stream, _MAX_ADDRESS) or 0, pool_of(pool))
            lane = lane_of.get(key)
            if lane is None:
                lane = min(len(columns.lanes), MAX_LANES - 1)
                if len(columns.lanes) < MAX_LANES:
                    columns.lanes.append(key)
                    lane_of[key] = lane
        frames = get("frames")
        # A request to free and its completion share their list.
        if frames is not last_frames:
            last_frames, last_stack = frames, number_of_stack(frames)
        time_us = get("time_us")
        add_action(action)
        add_address(address)
        add_size(size)
        add_stack(last_stack)
        add_lane(lane)
        add_position(position)
        add_time(time_us if type(time_us) is int and 0 <= time_us <= _MAX_ADDRESS else 0)
        word = get("user_metadata")
        if word:
            _count(columns.metadata, word)
        word = get("compile_context")
        if word and word != "N/A":
            _count(columns.compile_contexts, word)
    return columns


def _count(seen: dict[str, int], word: Any) -> None:
    if isinstance(word, str) and word and word != "N/A" and (word in seen or len(seen) < 64):
        seen[word] = seen.get(word, 0) + 1
