"""Which call sites hold more after every step: leaks, told from what stays live at the same point of each step.

Looking at one point of the step leaves activations out, however large they are. The first steps are left out too: there
optimizer state, caches and workspaces come into being. A place is a line of the user's code and the innermost line of
Python below it, so that a loop whose body is one line has several. Stdlib only: runs in the isolated worker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from torchtriage.memory.columns import ALLOC
from torchtriage.memory.frames import BACKWARD, FORWARD, OPTIMIZER

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchtriage.memory.columns import Columns
    from torchtriage.memory.frames import Stacks
    from torchtriage.memory.replay import Replay

MAX_SAMPLES = 96
MIN_RISES = 3
MIN_BYTES = 1 << 20
MIN_SHARE_OF_PEAK = 0.002
# Of a steady growth each half has half.
MIN_SHARE_OF_FIRST_HALF = 0.15
MIN_SHARE_OF_SECOND_HALF = 0.25
MAX_SHARE_OF_FALLS = 0.06
MAX_FALLEN_SHARE = 0.25
_LONGER_WAIT = 1.5
_MIN_ACTIVATION_BYTES = 1 << 16
_WARM_UP_SHARE = 0.2
_MIN_STARTS = 2
_LONG_AFTER = 4
_MIN_SHARE_OF_FEW = 0.02

Place = tuple[int, int]


@dataclass(frozen=True)
class Grown:
    """A place that holds more and more."""

    place: Place
    stack: int
    grown_bytes: int
    grown_blocks: int
    n_rounds: int
    bytes_per_round: int
    last_event: int
    """An allocation of it that is still live at the end."""
    few_rounds: bool = False
    """Told from two or three equal increases, where there are no more steps."""


def grown_sites(columns: Columns, replay: Replay, stacks: Stacks, starts: Sequence[int], peak: int) -> list[Grown]:
    """Places whose live bytes rise from step to step, largest growth first."""
    few = len(starts) < MIN_RISES + 2
    if len(starts) < _MIN_STARTS or _is_over(starts, len(columns)):
        return []
    moments = [*starts, len(columns) - 1] if few else starts
    n_samples = min(len(moments), MAX_SAMPLES)
    series_bytes, series_blocks = _sampled(columns, replay, stacks, moments, n_samples)
    warm_up = 0 if few else max(1, round(n_samples * _WARM_UP_SHARE))
    # From the first sample that counts to the last.
    rounds = max(1, round((len(moments) - 1) * (n_samples - 1 - warm_up) / max(1, n_samples - 1)))
    share = _MIN_SHARE_OF_FEW if few else MIN_SHARE_OF_PEAK
    rising: dict[Place, list[int]] = {}
    for place, series in series_bytes.items():
        held = series[warm_up:]
        if held[-1] - held[0] >= max(MIN_BYTES, share * peak) and (_rises_evenly(held) if few else _rises(held)):
            rising[place] = series
    grown: list[Grown] = []
    for place, kept in _kept_by(columns, replay, stacks, rising.keys()).items():
        if _one_for_each_stream(columns, kept):
            continue
        last = kept[-1]
        gained = rising[place][-1] - rising[place][warm_up]
        blocks = series_blocks[place][-1] - series_blocks[place][warm_up]
        grown.append(Grown(place, columns.stack[last], gained, blocks, rounds, gained // rounds, last, few))
    return sorted(grown, key=lambda g: (-g.grown_bytes, g.place))


def _is_over(starts: Sequence[int], n_events: int) -> bool:
    """Whether the job had left the loop for long: what it built up there is what it goes on to work with."""
    return n_events - starts[-1] > _LONG_AFTER * max(after - before for before, after in pairwise(starts))


def _one_for_each_stream(columns: Columns, kept: Sequence[int]) -> bool:
    """Whether a place keeps one block of a kind on each of several streams, as libraries do with their workspaces."""
    kinds = Counter((columns.lanes[columns.lane[index]][0], columns.size[index]) for index in kept)
    return len({stream for stream, _ in kinds}) >= MIN_RISES and max(kinds.values()) == 1


def keeps_a_graph(columns: Columns, stacks: Stacks, starts: Sequence[int], grown: Sequence[Grown]) -> bool:
    """Whether the growth may be the forwards of one large step whose backward is yet to come.

    Where there was no backward since, and what grows is most of what forward allocates and not its outputs alone.
    """
    if not grown or not starts:
        return False
    forward: set[Place] = set()
    for index in range(starts[0], len(columns)):
        stack = stacks.stacks[columns.stack[index]]
        if columns.action[index] != ALLOC:
            continue
        if stack.marks & (BACKWARD | OPTIMIZER):
            return False
        if stack.marks & FORWARD and columns.size[index] >= _MIN_ACTIVATION_BYTES:
            forward.add((stack.site, stack.leaf))
    growing = forward & {g.place for g in grown}
    return bool(growing) and 2 * len(growing) >= len(forward)


def _rises(held: Sequence[int]) -> bool:
    changes = [after - before for before, after in pairwise(held)]
    rises = [position for position, change in enumerate(changes) if change > 0]
    falls = [-change for change in changes if change < 0]
    gained, middle = held[-1] - held[0], held[len(held) // 2] - held[0]
    if len(rises) < MIN_RISES or len(falls) > MAX_SHARE_OF_FALLS * len(changes):
        return False
    if sum(falls) > MAX_FALLEN_SHARE * gained:
        return False
    # It still goes on: since the last rise not much more time went by than between earlier ones.
    longest = max(after - before for before, after in pairwise([-1, *rises]))
    if len(changes) - 2 - rises[-1] > _LONGER_WAIT * longest:
        return False
    return middle >= MIN_SHARE_OF_FIRST_HALF * gained and gained - middle >= MIN_SHARE_OF_SECOND_HALF * gained


def _rises_evenly(held: Sequence[int]) -> bool:
    """Whether as much is added in every round as in the first, from nothing on: too even for a warm-up."""
    return held[0] > 0 and all(abs(after - before - held[0]) <= 0.02 * held[0] for before, after in pairwise(held))


def _sampled(
    columns: Columns, replay: Replay, stacks: Stacks, moments: Sequence[int], n_samples: int
) -> tuple[dict[Place, list[int]], dict[Place, list[int]]]:
    """Live bytes and blocks of each place just before the moments; of several that make one sample the least bytes.

    What rises and falls within some steps has its least bytes always at the bottom, however the samples lie.
    """
    actions, sizes, freed_at = columns.action, columns.size, replay.freed_at
    place_of_stack = [(stack.site, stack.leaf) for stack in stacks.stacks]
    closing = {round((k + 1) * len(moments) / n_samples) - 1: k for k in range(n_samples)}
    ends: dict[int, list[int]] = {}
    held: dict[Place, int] = {}
    blocks: dict[Place, int] = {}
    least: dict[Place, int] = {}
    changed: set[Place] = set()
    series_bytes: dict[Place, list[int]] = {}
    series_blocks: dict[Place, list[int]] = {}
    previous = 0
    for number, moment in enumerate(moments):
        for index in range(previous, moment):
            # What ends before the moment is of no interest; which event gave it back does not matter.
            if actions[index] != ALLOC or 0 <= freed_at[index] < moment:
                continue
            place = place_of_stack[columns.stack[index]]
            held[place] = held.get(place, 0) + sizes[index]
            blocks[place] = blocks.get(place, 0) + 1
            changed.add(place)
            if freed_at[index] >= 0:
                ends.setdefault(bisect_right(moments, freed_at[index]), []).append(index)
        for index in ends.pop(number, ()):
            place = place_of_stack[columns.stack[index]]
            held[place] -= sizes[index]
            blocks[place] -= 1
            changed.add(place)
        for place in changed:
            least[place] = min(least.get(place, 0), held[place])
        changed.clear()
        sample = closing.get(number)
        if sample is not None:
            for place, size in held.items():
                lowest = least[place] if len(moments) > n_samples else size
                series_bytes.setdefault(place, [0] * n_samples)[sample] = lowest
                series_blocks.setdefault(place, [0] * n_samples)[sample] = blocks[place]
            least = dict(held)
        previous = moment
    return series_bytes, series_blocks


def _kept_by(columns: Columns, replay: Replay, stacks: Stacks, places: Collection[Place]) -> dict[Place, list[int]]:
    """Of each of the places its allocations that are still live at the end."""
    kept: dict[Place, list[int]] = {}
    if not places:
        return kept
    place_of_stack = [(stack.site, stack.leaf) for stack in stacks.stacks]
    for index, freed in enumerate(replay.freed_at):
        if freed < 0 and columns.action[index] == ALLOC and place_of_stack[columns.stack[index]] in places:
            kept.setdefault(place_of_stack[columns.stack[index]], []).append(index)
    return kept
