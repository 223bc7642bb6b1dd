"""Stacks with bytes as a tree of boxes for a flame graph, bounded: what is too small to be seen is summed up.

Pure. A box lies within its caller's; calls of one caller are ordered by their bytes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SMALLEST_SHARE = 0.001
"""Of all bytes; what has less is part of its caller's ``SMALLER``."""
SMALLER = "(smaller)"
MAX_DEPTH = 64


@dataclass(eq=False)
class Call:
    """A frame below its callers."""

    name: str
    bytes: int = 0
    calls: dict[str, Call] = field(default_factory=dict[str, "Call"])
    unlisted_bytes: int = 0
    """Of stacks that are not listed one by one."""


@dataclass(frozen=True)
class Box:
    """Where a frame lies, in bytes from the left and in frames from the top."""

    name: str
    start: int
    bytes: int
    depth: int


def tree_of(name: str, stacks: Sequence[tuple[Sequence[str], int]], total_bytes: int) -> Call:
    """Join stacks (outermost frame first) under one root.

    Args:
        name: of the root.
        stacks: frames and bytes of each.
        total_bytes: of all stacks, those included that are not listed.
    """
    root = Call(name)
    for names, size in stacks:
        call = root
        call.bytes += size
        for each in names[:MAX_DEPTH]:
            call = call.calls.setdefault(each, Call(each))
            call.bytes += size
    root.unlisted_bytes = max(0, total_bytes - root.bytes)
    root.bytes += root.unlisted_bytes
    return root


def boxes_of(root: Call, cost: Callable[[str], int], budget: int) -> list[Box]:
    """Lay out the largest calls, callers before what they call.

    Args:
        root: of the tree.
        cost: of showing a frame of this name.
        budget: what all of them may cost.
    """
    shown = _largest(root, cost, budget)
    least = root.bytes * SMALLEST_SHARE
    boxes: list[Box] = []
    pending = [(root, 0, 0)]
    while pending:
        call, start, depth = pending.pop()
        boxes.append(Box(call.name, start, call.bytes, depth))
        inner = sorted((c for c in call.calls.values() if id(c) in shown), key=lambda c: -c.bytes)
        smaller = call.unlisted_bytes + sum(c.bytes for c in call.calls.values() if id(c) not in shown)
        placed: list[tuple[Call, int, int]] = []
        for each in inner:
            placed.append((each, start, depth + 1))
            start += each.bytes
        if smaller >= max(least, 1):
            boxes.append(Box(SMALLER, start, smaller, depth + 1))
        pending.extend(reversed(placed))
    return boxes


def _largest(root: Call, cost: Callable[[str], int], budget: int) -> set[int]:
    """Identities of the calls to show. A call is never larger than its caller, so that its caller is among them."""
    least = max(1.0, root.bytes * SMALLEST_SHARE)
    shown: set[int] = set()
    waiting = [(-root.bytes, 0, root)]
    order = 0
    while waiting:
        size, _, call = heapq.heappop(waiting)
        # Each call may bring one more box of what is smaller.
        budget -= cost(call.name) + cost(SMALLER)
        if -size < least or budget < 0:
            break
        shown.add(id(call))
        for each in call.calls.values():
            order += 1
            heapq.heappush(waiting, (-each.bytes, order, each))
    return shown
