"""Who holds memory at a moment, by call site, and what for: parameters, gradients, optimizer state, activations, ...

Snapshots do not say what a block is for. It is told from the phase in whose stack it was asked for, from when it was
given back and by whom, and from its pool; how sure that is, is told with it. Stdlib only: runs in the isolated worker.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.memory import frames
from torchtriage.memory.columns import ALLOC
from torchtriage.memory.replay import live_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.memory.columns import Columns
    from torchtriage.memory.frames import Stacks
    from torchtriage.memory.replay import Replay
    from torchtriage.memory.segments import Block, Now

MAX_HOLDERS = 60
_HIGH, _MEDIUM, _LOW = _DOUBT = ("high", "medium", "low")


@dataclass
class Holder:
    """Blocks of one call site and one purpose."""

    category: str
    sure: str
    site: str
    stack: int
    bytes: int = 0
    blocks: int = 0
    largest_bytes: int = 0
    where: str = ""
    """JSON Pointer of the size of its largest block."""


@dataclass
class Course:
    """What the whole history tells for judging one block."""

    columns: Columns
    now: Now
    replay: Replay
    stacks: Stacks
    starts: Sequence[int]
    private: list[tuple[int, int]]
    """Start and end of segments in private pools."""
    has_frames: bool
    after_backward: list[int]
    """Events of the optimizer, or of a forward that is none of a recomputation."""
    allocations: array[int]
    """Events that allocate, where frees have no stack of their own; else empty."""
    grown: frozenset[tuple[int, int]] = frozenset()
    """Places that hold more after every step."""
    parameter_sizes: set[int] = field(default_factory=set[int])


def course_of(columns: Columns, now: Now, replay: Replay, stacks: Stacks, starts: Sequence[int]) -> Course:
    """Gather it."""
    ends_backward = [
        bool(s.marks & frames.OPTIMIZER)
        or bool(s.marks & frames.FORWARD and not s.marks & (frames.BACKWARD | frames.RECOMPUTE))
        for s in stacks.stacks
    ]
    after_backward = [index for index, number in enumerate(columns.stack) if ends_backward[number]]
    private = sorted((s.address, s.address + s.total) for s in now.segments if s.pool != (0, 0))
    allocations = array("i")
    if all(freed < 0 or columns.stack[freed] == columns.stack[index] for index, freed in enumerate(replay.freed_at)):
        allocations = array("i", (index for index, action in enumerate(columns.action) if action == ALLOC))
    return Course(columns, now, replay, stacks, starts, private, any(columns.stack), after_backward, allocations)


def holders_at(known: Course, moment: int, device: int) -> tuple[list[Holder], dict[str, int], list[tuple[int, int]]]:
    """Group what is live just after ``moment``.

    Returns:
        Holders, most bytes first; bytes by category; bytes by stack number, for a flame graph.
    """
    columns, replay, stacks = known.columns, known.replay, known.stacks
    events, old = live_at(columns, replay, moment)
    groups: dict[tuple[str, int], Holder] = {}
    by_stack: dict[int, int] = {}
    judged = [(index, *purpose_of(known, index)) for index in events]
    known.parameter_sizes = {columns.size[i] for i, category, _ in judged if category == "parameters"}
    for index, category, sure in judged:
        if category == "temporaries" and known.parameter_sizes and _like_a_gradient(known, index):
            category, sure = "gradients", _LOW
        where = f"/device_traces/{device}/{columns.position[index]}/size"
        _add(groups, stacks, category, sure, columns.stack[index], columns.size[index], where)
        by_stack[columns.stack[index]] = by_stack.get(columns.stack[index], 0) + columns.size[index]
    blocks = {block.address: block for block in known.now.blocks}
    for address in old:
        size, block = replay.before[address], blocks.get(address)
        stack = stacks.number(block.frames) if block is not None and block.state == 0 else 0
        category, sure = _purpose_of_old(stacks, stack, known, address)
        where = _where_old(block, address, columns, replay, device)
        _add(groups, stacks, category, sure, stack, size, where)
        by_stack[stack] = by_stack.get(stack, 0) + size
    by_category: dict[str, int] = {}
    for holder in groups.values():
        by_category[holder.category] = by_category.get(holder.category, 0) + holder.bytes
    ordered = sorted(groups.values(), key=lambda h: (-h.bytes, h.site, h.category))
    return ordered, by_category, sorted(by_stack.items(), key=lambda item: -item[1])


def _where_old(block: Block | None, address: int, columns: Columns, replay: Replay, device: int) -> str:
    if block is not None and block.state == 0:
        return f"{block.where}/size"
    index = replay.before_freed_at.get(address)
    return "" if index is None else f"/device_traces/{device}/{columns.position[index]}/size"


def _add(
    groups: dict[tuple[str, int], Holder], stacks: Stacks, category: str, sure: str, stack: int, size: int,
    where: str,
) -> None:  # fmt: skip
    site = stacks.stacks[stack].site
    holder = groups.get((category, site))
    if holder is None:
        holder = groups[category, site] = Holder(category, sure, stacks.site_text(stack), stack)
    # The least sure of its blocks says how sure the whole is.
    holder.sure = max(holder.sure, sure, key=_DOUBT.index)
    holder.bytes += size
    holder.blocks += 1
    if size > holder.largest_bytes or not holder.where:
        holder.largest_bytes, holder.where, holder.stack = size, where, stack


def purpose_of(known: Course, index: int) -> tuple[str, str]:
    """Category of a block that was asked for within the history, and how sure that is."""
    columns, replay, stacks = known.columns, known.replay, known.stacks
    stack = stacks.stacks[columns.stack[index]]
    marks, inner, freed = stack.marks, stack.inner, replay.freed_at[index]
    private = columns.lanes[columns.lane[index]][1] != (0, 0) or _is_private(known, columns.address[index])
    if private or marks & frames.GRAPH:
        return "graphs", _HIGH
    if marks & frames.WORKSPACE:
        return "workspace", _HIGH
    if inner & frames.KV_CACHE:
        return "kv_cache", _MEDIUM
    if inner & frames.COMMUNICATION:
        return "communication", _MEDIUM
    if inner & frames.OPTIMIZER or (marks & frames.OPTIMIZER and not marks & (frames.FORWARD | frames.BACKWARD)):
        return ("optimizer_state", _HIGH) if _outlives_step(known, index) else ("temporaries", _HIGH)
    if inner & frames.LOADING:
        return "parameters", _HIGH
    if inner & frames.SETUP and not marks & (frames.FORWARD | frames.BACKWARD):
        return "parameters", _HIGH
    if (stack.site, stack.leaf) in known.grown and freed < 0:
        return "retained", _MEDIUM
    if marks & frames.RECOMPUTE:
        return "activations", _HIGH
    if marks & frames.BACKWARD or (not columns.stack[index] and known.has_frames):
        sure = _HIGH if marks & frames.BACKWARD else _MEDIUM
        if freed < 0 or _frees_in(known, freed) == "between":
            return ("gradients", sure) if _outlives_backward(known, index) else ("temporaries", _LOW)
        return "temporaries", sure
    if marks & frames.EVALUATION:
        return ("retained", _MEDIUM) if _outlives_step(known, index) else ("activations", _MEDIUM)
    if freed >= 0 and _frees_in(known, freed) == "backward":
        return "activations", _HIGH
    if marks & frames.FORWARD:
        if freed < 0 and _steps_after(known, index) >= 2:
            return "retained", _MEDIUM
        return "activations", _MEDIUM
    if not columns.stack[index]:
        return "unknown", _LOW
    if _steps_after(known, index) >= 2:
        return "retained", _LOW
    return "other", _LOW


def _purpose_of_old(stacks: Stacks, number: int, known: Course, address: int) -> tuple[str, str]:
    """Category of a block from before the history."""
    marks, inner = stacks.stacks[number].marks, stacks.stacks[number].inner
    if _is_private(known, address) or marks & frames.GRAPH:
        return "graphs", _HIGH
    for mark, category in (
        (frames.KV_CACHE, "kv_cache"), (frames.COMMUNICATION, "communication"), (frames.OPTIMIZER, "optimizer_state"),
        (frames.LOADING, "parameters"), (frames.SETUP, "parameters"),
    ):  # fmt: skip
        if inner & mark:
            return category, _MEDIUM
    return ("gradients", _LOW) if marks & frames.BACKWARD else ("before_history", _LOW)


def _is_private(known: Course, address: int) -> bool:
    position = bisect_right(known.private, (address, 1 << 62)) - 1
    return position >= 0 and known.private[position][0] <= address < known.private[position][1]


def _steps_after(known: Course, index: int) -> int:
    """How many steps began while the block was live."""
    freed = known.replay.freed_at[index]
    end = len(known.columns) if freed < 0 else freed
    return bisect_right(known.starts, end) - bisect_right(known.starts, index)


def _outlives_step(known: Course, index: int) -> bool:
    """Whether it is kept: over the start of a further step, or, where no steps are known, to the end."""
    if known.starts and bisect_right(known.starts, index) < len(known.starts):
        return _steps_after(known, index) >= 1
    return known.replay.freed_at[index] < 0


def _frees_in(known: Course, freed: int) -> str:
    """In which phase a block was given back: in ``backward``, or ``between`` phases by the user's or torch's code.

    Where frees only repeat the stack of the allocation, what was allocated last before tells the phase.
    """
    if known.allocations:
        freed = known.allocations[max(0, bisect_right(known.allocations, freed) - 1)]
    number = known.columns.stack[freed]
    marks = known.stacks.stacks[number].marks
    if marks & frames.BACKWARD or (not number and known.has_frames):
        return "backward"
    return "between"


def _outlives_backward(known: Course, index: int) -> bool:
    """Whether something of the optimizer, or a further step, came while the block was live."""
    freed = known.replay.freed_at[index]
    end = len(known.columns) if freed < 0 else freed
    return freed >= 0 or any(
        bisect_left(events, end) > bisect_right(events, index) for events in (known.starts, known.after_backward)
    )


def _like_a_gradient(known: Course, index: int) -> bool:
    """Whether a block of backward that was live when the history ended has the size of a parameter."""
    return known.replay.freed_at[index] < 0 and known.columns.size[index] in known.parameter_sizes
