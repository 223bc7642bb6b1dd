"""Play the events of one device again: what was allocated, active and reserved when, and which blocks were live.

The history is a ring: its beginning may be gone, and it may have been switched on late. What the device held before the
first event follows from the end, where the segments say what there is. Stdlib only: runs in the isolated worker.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.memory.columns import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
)  # fmt: skip

if TYPE_CHECKING:
    from torchtriage.memory.columns import Columns
    from torchtriage.memory.segments import Now

N_TIMELINE = 240
_MOST = 1 << 62  # sizes that no GPU has may add up to more than a column holds


@dataclass
class Replay:
    """The course of one device's memory. Indexes are into the columns; -1 stands for before the first of them."""

    freed_at: array[int]
    """Of each alloc event the index at which the block was given back; -1 when it never was."""
    before: dict[int, int]
    """Address to size of blocks that were live before the first event; those freed later and those still there."""
    before_freed_at: dict[int, int]
    start_reserved: int
    start_allocated: int
    peak_allocated: int = 0
    peak_at: int = -1
    peak_reserved: int = 0
    ooms: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    """Of each OOM: index, allocated, active, reserved just then."""
    timeline: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Samples of (index, allocated, reserved), with the highest of each piece kept."""
    n_frees_missing: int = 0
    """Blocks that were handed out again, or are gone at the end, without having been given back."""
    unmatched: set[int] = field(default_factory=set[int])
    """Events that give back what nothing says was handed out."""
    sees_completion: bool = False
    """Whether the history tells when a stream was done with what was given back."""
    allocated: array[int] = field(default_factory=lambda: array("q"))
    """After each event."""

    @property
    def end_allocated(self) -> int:
        """After the last event."""
        return self.allocated_before(len(self.allocated))

    def allocated_before(self, index: int) -> int:
        """Just before an event."""
        return self.allocated[index - 1] if index > 0 else self.start_allocated


def replay(columns: Columns, now: Now, *, joined: bool = True) -> Replay:
    """Play the events from the first to the last, in two passes: which block each event is about, then the sums.

    ``joined``: whether the segments are those of the moment after the last event, which they are not in a cut file.
    """
    n = len(columns)
    actions, addresses, sizes = columns.action, columns.address, columns.size
    # Where frees are only noted once, that note is the one that counts.
    gives_back = FREE_REQUESTED if FREE_REQUESTED in actions else FREE_COMPLETED
    result = Replay(array("i", [-1]) * n, {}, {}, 0, 0)
    result.sees_completion = FREE_COMPLETED in actions
    freed_at, before, before_freed_at = result.freed_at, result.before, result.before_freed_at
    live: dict[int, int] = {}
    reserved_change = lowest_change = 0
    for index in range(n):
        action = actions[index]
        if action == ALLOC:
            address = addresses[index]
            if address in live:
                # The same address twice: the event that gave it back is missing. It was gone by now at the latest.
                freed_at[live[address]] = index
                result.n_frees_missing += 1
            live[address] = index
        elif action == gives_back:
            address = addresses[index]
            allocated_at = live.pop(address, None)
            if allocated_at is not None:
                freed_at[allocated_at] = index
            elif address not in before:
                before[address] = sizes[index]
                before_freed_at[address] = index
            else:
                result.unmatched.add(index)
        elif action in (SEGMENT_ALLOC, SEGMENT_MAP):
            reserved_change += sizes[index]
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
            reserved_change -= sizes[index]
            lowest_change = min(lowest_change, reserved_change)
    given_back = sum(before.values())
    known = joined and bool(now.segments)
    if known:
        held = {block.address: block.size for block in now.blocks if block.state == 0}
        for address, index in list(live.items()):
            if address not in held:
                # It is not there any more, and nothing says when it went.
                freed_at[index] = n - 1
                result.n_frees_missing += 1
                del live[address]
        for address, size in held.items():
            if address not in live and address not in before:
                before[address] = size
    # Sizes of events are those asked for; the segments know the blocks, which are a little larger.
    end = sum(sizes[index] for index in live.values())
    result.start_allocated = max(given_back, now.allocated - end + given_back if known else 0)
    result.start_reserved = max(-lowest_change, now.reserved - reserved_change if known else 0)
    _sum_up(columns, result, gives_back)
    return result


def _sum_up(columns: Columns, result: Replay, gives_back: int) -> None:
    actions, sizes, freed_at = columns.action, columns.size, result.freed_at
    allocated = result.start_allocated
    pending = 0
    reserved = result.start_reserved
    result.peak_allocated, result.peak_reserved = allocated, reserved
    n = len(columns)
    stride = max(1, n // N_TIMELINE)
    highest = (-1, allocated, reserved)
    # Blocks whose give-back was not noted end where their address is handed out again.
    closes = (
        {freed_at[i]: sizes[i] for i in range(n) if freed_at[i] >= 0 and actions[freed_at[i]] == ALLOC}
        if result.n_frees_missing
        else {}
    )
    add_allocated = result.allocated.append
    for index in range(n):
        action = actions[index]
        if action == ALLOC:
            allocated += sizes[index] - closes.get(index, 0)
            if allocated > result.peak_allocated:
                result.peak_allocated, result.peak_at = allocated, index
        elif action == gives_back:
            if index not in result.unmatched:
                allocated -= sizes[index]
                pending += sizes[index]
        elif action == FREE_COMPLETED:
            pending -= sizes[index]
        elif action in (SEGMENT_ALLOC, SEGMENT_MAP):
            reserved += sizes[index]
            if reserved > result.peak_reserved:
                result.peak_reserved = reserved
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
            reserved -= sizes[index]
        elif action == OOM:
            waiting = max(0, pending) if gives_back == FREE_REQUESTED and result.sees_completion else 0
            result.ooms.append((index, allocated, allocated + waiting, reserved))
        add_allocated(min(allocated, _MOST))
        if allocated > highest[1]:
            highest = (index, allocated, reserved)
        if (index + 1) % stride == 0 or index == n - 1:
            result.timeline.append(highest if highest[1] > allocated else (index, allocated, reserved))
            highest = (index, allocated, reserved)


def live_at(columns: Columns, result: Replay, moment: int) -> tuple[list[int], list[int]]:
    """What was live just after the event ``moment``: indexes of alloc events, and addresses of blocks of before."""
    actions, freed_at = columns.action, result.freed_at
    events = [i for i in range(moment + 1) if actions[i] == ALLOC and not 0 <= freed_at[i] <= moment]
    gone = result.before_freed_at
    return events, [address for address in result.before if gone.get(address, moment + 1) > moment]
