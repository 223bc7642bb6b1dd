"""Where one training step ends and the next begins, told from the stacks alone. Stdlib only: isolated worker.

A loop goes back to an earlier line of the function that it is in. Loops inside of a model's forward are none of
training, and where there are backward passes, a step has one. A body of a single line never goes back; then a forward
after a backward begins a step. Only allocations are looked at: frees may carry the stack of the allocation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from torchtriage.memory.columns import ALLOC, whole
from torchtriage.memory.frames import BACKWARD, FORWARD, LIBRARY, OPTIMIZER, RECOMPUTE, USER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtriage.memory.columns import Columns
    from torchtriage.memory.frames import Stacks

ENOUGH = 4
"""Rounds from which on an outer loop is preferred to an inner one."""
_MIN_ROUNDS = 2
_MIN_SHARE_WITH_WORK = 0.5
_MAX_DEPTH = 24
_STEP_NAMES = ("ProfilerStep", "Optimizer.step", "train_step", "training_step")
_Chain = tuple[tuple[int, int], ...]


def step_starts(columns: Columns, stacks: Stacks, annotations: Any) -> list[int]:
    """Indexes of the events with which a further step begins, in order; empty when no loop can be told."""
    work = work_events(columns, stacks)
    by_lines = _by_lines(columns, _chains(columns, stacks), work, range(len(columns)))
    if len(by_lines) >= ENOUGH:
        return by_lines
    by_phases = _by_phases(columns, stacks)
    best = by_phases if len(by_phases) > len(by_lines) else by_lines
    return best or _by_annotations(columns, annotations)


def rounds_at_the_end(columns: Columns, stacks: Stacks, starts: Sequence[int]) -> list[int]:
    """Starts of the rounds of a loop within the last step that has no backward: of evaluation, of generation."""
    work = work_events(columns, stacks)
    since = max(starts[-1] if starts else 0, work[-1] + 1 if work else 0)
    return _by_lines(columns, _chains(columns, stacks), [], range(since, len(columns)))


def work_events(columns: Columns, stacks: Stacks) -> list[int]:
    """Allocations of backward or of the optimizer; without C++ frames the autograd thread has no stack at all."""
    of_work = [bool(stack.marks & (BACKWARD | OPTIMIZER)) for stack in stacks.stacks]
    of_work[0] = any(of_work)
    return [i for i, number in enumerate(columns.stack) if of_work[number] and columns.action[i] == ALLOC]


def _by_lines(columns: Columns, chains: list[_Chain], work: list[int], events: Iterable[int]) -> list[int]:
    actions, numbers = columns.action, columns.stack
    last_line: dict[int, int] = {}
    depth_of: dict[int, int] = {}
    landings: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    previous = 0
    for index in events:
        number = numbers[index]
        if number == previous or actions[index] != ALLOC:
            continue
        chain = chains[number]
        if not chain:
            continue
        previous = number
        for depth, (function, line) in enumerate(chain):
            before = last_line.get(function)
            if before == line:
                continue
            if before is None:
                depth_of[function] = depth
            elif line < before:
                landings[function][line].append(index)
            last_line[function] = line
    best: list[int] = []
    for function in sorted(landings, key=lambda f: depth_of[f]):
        for found in sorted(landings[function].values(), key=len, reverse=True)[:8]:
            n_rounds = _n_with_work(found, work) if work else len(found)
            if n_rounds < _MIN_SHARE_WITH_WORK * len(found):
                continue
            if n_rounds >= ENOUGH:
                return found
            if n_rounds >= _MIN_ROUNDS and len(found) > len(best):
                best = found
    return best


def _n_with_work(starts: list[int], work: list[int]) -> int:
    """In how many rounds there was some; of the last one, which may be cut, it is not asked."""
    edges = [bisect_left(work, start) for start in starts]
    return 1 + sum(after > before for before, after in pairwise(edges))


def _chains(columns: Columns, stacks: Stacks) -> list[_Chain]:
    """Of each stack the functions outside of torch and of the model, with their lines, outermost first.

    Only of the thread that runs forward and the optimizer: hooks run on the autograd thread, which may have no frame
    but theirs.
    """
    numbers: dict[tuple[str, str], int] = {}
    chains = [_chain(stacks, number, numbers) for number in range(len(stacks.stacks))]
    roots: Counter[int] = Counter()
    for number, count in Counter(columns.stack).items():
        if chains[number]:
            of_main = bool(stacks.stacks[number].marks & (FORWARD | OPTIMIZER))
            roots[chains[number][0][0]] += count + of_main * len(columns)
    main = max(roots, key=lambda root: roots[root], default=-1)
    return [chain if chain and chain[0][0] == main else () for chain in chains]


def _chain(stacks: Stacks, number: int, numbers: dict[tuple[str, str], int]) -> _Chain:
    """A function that calls itself stands only where it is outermost."""
    chain: dict[int, int] = {}
    for frame_number in reversed(stacks.stacks[number].frames):
        frame = stacks.frames[frame_number]
        if frame.marks & (FORWARD | BACKWARD | OPTIMIZER | RECOMPUTE) or len(chain) >= _MAX_DEPTH:
            break
        if frame.kind in (USER, LIBRARY):
            file, name, line = frame.place
            chain.setdefault(numbers.setdefault((file, name), len(numbers)), line)
    return tuple(chain.items())


def _by_phases(columns: Columns, stacks: Stacks) -> list[int]:
    """Where a forward follows a backward or an optimizer's step."""
    marks = [stack.marks for stack in stacks.stacks]
    starts: list[int] = []
    worked = False
    for index, number in enumerate(columns.stack):
        if columns.action[index] != ALLOC:
            continue
        if marks[number] & (BACKWARD | OPTIMIZER | RECOMPUTE):
            worked = True
        elif worked and marks[number] & FORWARD:
            starts.append(index)
            worked = False
    return starts if len(starts) >= _MIN_ROUNDS else []


def _by_annotations(columns: Columns, annotations: Any) -> list[int]:
    """Steps that the profiler or the optimizer marked, where events and marks have times."""
    times: dict[str, list[int]] = defaultdict(list)
    for entry in cast("list[Any]", annotations)[:200_000] if isinstance(annotations, list) else []:
        record = cast("dict[Any, Any]", entry) if isinstance(entry, dict) else {}
        name, time_us = record.get("name"), whole(record.get("time_us"), 1 << 62)
        if record.get("stage") == "START" and isinstance(name, str) and time_us:
            times[next((known for known in _STEP_NAMES if known in name), "")].append(time_us)
    marks = next((sorted(times[name]) for name in _STEP_NAMES if len(times[name]) > _MIN_ROUNDS), list[int]())
    starts: list[int] = []
    position = 0
    for index, time_us in enumerate(columns.time_us):
        if position < len(marks) and time_us >= marks[position] > 0:
            starts.append(index)
            while position < len(marks) and marks[position] <= time_us:
                position += 1
    return starts
