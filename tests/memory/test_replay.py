"""Totals, peaks and live sets against a simulated allocator that counts for itself."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from memory.make_snapshot import EAGER, MIB, Allocator, OutOfMemoryError, snapshot, user
from memory.truths import device_of
from torchtriage.memory.columns import read_events
from torchtriage.memory.frames import Stacks
from torchtriage.memory.gaps import gaps_at
from torchtriage.memory.replay import Replay, live_at, replay
from torchtriage.memory.segments import Now, read_segments

if TYPE_CHECKING:
    from pathlib import Path

_STACKS = [[user("run", line)] for line in range(1, 6)]
_SIZES = st.one_of(
    st.integers(1, 4096), st.integers(100_000, 3 * MIB), st.integers(3 * MIB, 40 * MIB), st.just(512), st.just(20 * MIB)
)
_MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), _SIZES, st.integers(0, 2)),
        st.tuples(st.sampled_from(["free", "lend"]), st.integers(0, 40), st.just(0)),
        st.tuples(st.sampled_from(["finish", "empty", "fail", "record"]), st.just(0), st.just(0)),
    ),
    max_size=90,
)
_LANES = [(0, EAGER), (77, EAGER), (0, (0, 3))]
_SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _played(moves: list[tuple[str, int, int]], gpu: Allocator, *, late: bool) -> Allocator:
    gpu.recording = not late
    blocks: list[Any] = []
    for kind, value, lane in moves:
        frames = _STACKS[value % 5]
        if kind == "alloc":
            blocks.append(gpu.alloc(value, frames, *_LANES[lane]))
        elif kind in ("free", "lend") and blocks:
            gpu.free(blocks.pop(value % len(blocks)), frames, used_elsewhere=kind == "lend")
        elif kind == "finish":
            gpu.finish_streams()
        elif kind == "empty":
            gpu.empty_cache(frames)
        elif kind == "record":
            gpu.recording = True
        elif kind == "fail":
            with pytest.raises(OutOfMemoryError):
                gpu.alloc(gpu.total_bytes + 1, frames)
    gpu.recording = True
    return gpu


def _replayed(gpu: Allocator) -> tuple[Any, Now, Replay]:
    content = copy.deepcopy(snapshot(gpu))
    now = read_segments(content["segments"], gpu.device)
    columns = read_events(content["device_traces"][gpu.device], Stacks())
    return columns, now, replay(columns, now)


@_SETTINGS
@given(_MOVES, st.booleans(), st.booleans(), st.sampled_from([5, 17, 1 << 30]))
def test_what_is_replayed_is_what_happened(
    moves: list[tuple[str, int, int]], expandable: bool, late: bool, max_entries: int
) -> None:
    gpu = _played(moves, Allocator(expandable=expandable, max_entries=max_entries), late=late)
    actions = {event["action"] for event in gpu.events}
    # A ring so small that completions alone are left looks like a history in which frees are noted once.
    assume("free_requested" in actions or "free_completed" not in actions)
    columns, now, course = _replayed(gpu)
    assert (now.allocated, now.reserved, now.requested) == (gpu.allocated, gpu.reserved, gpu.requested)
    # Events know what was asked for, segments what that took: the difference at the end is the difference throughout.
    padding = gpu.allocated - gpu.requested
    truths = list(gpu.truths)
    assert course.end_allocated == gpu.allocated
    if truths:
        assert course.peak_allocated == max(course.start_allocated, max(truth.requested for truth in truths) + padding)
        assert course.peak_reserved == max(course.start_reserved, *(truth.reserved for truth in truths))
        assert max(sample[1] for sample in course.timeline) <= course.peak_allocated
    for index, allocated, reserved in course.timeline:
        if index < 0:
            assert (allocated, reserved) == (course.start_allocated, course.start_reserved)
            continue
        assert (allocated - padding, reserved) == (truths[index].requested, truths[index].reserved)
    if course.peak_at >= 0:
        assert truths[course.peak_at].requested + padding == course.peak_allocated
    for index, truth in enumerate(truths):
        events, old = live_at(columns, course, index)
        assert len(events) + len(old) == truth.n_live
    assert [oom[0] for oom in course.ooms] == [i for i, e in enumerate(gpu.events) if e["action"] == "oom"]
    for index, allocated, active, reserved in course.ooms:
        assert (allocated - padding, reserved) == (truths[index].requested, truths[index].reserved)
        assert active >= allocated
    assert course.n_frees_missing == 0


@_SETTINGS
@given(_MOVES, st.booleans(), st.booleans())
def test_gaps_are_those_of_the_allocator_at_every_moment(
    moves: list[tuple[str, int, int]], expandable: bool, late: bool
) -> None:
    # Sizes that leave no padding, so that what an event asked for is what its block took.
    grain = [(kind, -(-value // 512) * 512 if kind == "alloc" else value, lane) for kind, value, lane in moves]
    kept = [move for move in grain if move[0] != "lend"]
    for end in range(0, len(kept) + 1, max(1, len(kept) // 4)):
        earlier = _played(kept[:end], Allocator(expandable=expandable), late=False)
        whole = _played(kept, Allocator(expandable=expandable), late=False)
        columns, now, course = _replayed(whole)
        found = gaps_at(columns, now, course, len(earlier.events) - 1)
        seen: dict[tuple[int, tuple[int, int]], tuple[int, int]] = {}
        for lane in found.lanes:
            free, largest = seen.get((lane.stream, lane.pool), (0, 0))
            seen[lane.stream, lane.pool] = (free + lane.free_bytes, max(largest, lane.largest_bytes))
        true: dict[tuple[int, tuple[int, int]], tuple[int, int]] = {}
        for (stream, pool, _), sizes in earlier.gaps().items():
            free, largest = true.get((stream, pool), (0, 0))
            true[stream, pool] = (free + sum(sizes), max(largest, *sizes))
        padded = _padding(earlier)
        for key, (free, largest) in true.items():
            assert free <= seen[key][0] <= free + padded
            assert largest <= seen[key][1] <= largest + padded


def _padding(gpu: Allocator) -> int:
    return sum(block.size - block.requested for block in gpu.live.values())


def test_the_peak_of_each_device_is_its_own(tmp_path: Path) -> None:
    gpus = [Allocator(device=0), Allocator(device=2)]
    for size, gpu in zip((3 * MIB, 7 * MIB), gpus, strict=True):
        gpu.free(gpu.alloc(size, _STACKS[0]), _STACKS[1])
    assert [device_of(gpu, tmp_path)["peak_allocated"] for gpu in gpus] == [3 * MIB, 7 * MIB]


def test_a_free_without_its_request_is_one_free(tmp_path: Path) -> None:
    gpu = Allocator()
    gpu.free(gpu.alloc(4 * MIB, _STACKS[0]), _STACKS[0])
    gpu.alloc(2 * MIB, _STACKS[0])
    gpu.events = type(gpu.events)(e for e in gpu.events if e["action"] != "free_requested")
    device = device_of(gpu, tmp_path)
    assert (device["allocated"], device["peak_allocated"]) == (2 * MIB, 4 * MIB)


def test_frees_whose_allocation_is_missing_twice_never_make_memory_negative(tmp_path: Path) -> None:
    gpu = Allocator()
    for _ in range(5):
        gpu.free(gpu.alloc(4 * MIB, _STACKS[0]), _STACKS[0])
    gpu.events = type(gpu.events)(e for e in gpu.events if e["action"] != "alloc")
    device = device_of(gpu, tmp_path)
    assert min(sample[1] for sample in device["timeline"]) >= 0
    assert device["peak_allocated"] == 4 * MIB


def test_without_segments_the_events_alone_are_summed(tmp_path: Path) -> None:
    gpu = Allocator()
    first = gpu.alloc(6 * MIB, _STACKS[0])
    gpu.alloc(3 * MIB, _STACKS[0])
    gpu.free(first, _STACKS[0])
    gpu.segments = []
    device = device_of(gpu, tmp_path)
    assert device["peak_allocated"] == 9 * MIB
    assert min(sample[1] for sample in device["timeline"]) >= 0
    assert min(sample[2] for sample in device["timeline"]) >= 0
