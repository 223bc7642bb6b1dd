"""Stacks of a snapshot: which of them are one."""

from __future__ import annotations

from typing import Any

from torchtriage.memory.columns import read_events
from torchtriage.memory.frames import Stacks


def _frames(n_frames: int, **changed_line: int) -> list[dict[str, Any]]:
    return [
        {"name": f"call_{k}", "filename": "/workspace/model.py", "line": changed_line.get(f"at_{k}", k + 1)}
        for k in range(n_frames)
    ]


def test_lists_that_share_their_frames_are_one_stack():
    stacks, frames = Stacks(), _frames(30)

    assert stacks.number(frames) == stacks.number(list(frames)) == 1


def test_stacks_that_differ_in_any_one_frame_are_told_apart():
    stacks, frames = Stacks(), _frames(30)
    others = [[*frames[:k], *_frames(30, **{f"at_{k}": 99})[k : k + 1], *frames[k + 1 :]] for k in range(30)]

    first = [stacks.number(one) for one in [frames, *others]]

    assert first == list(range(1, 32))
    assert [stacks.number(list(one)) for one in [frames, *others]] == first


def test_equal_stacks_whose_frames_are_not_shared_are_one():
    stacks = Stacks()

    assert stacks.number(_frames(30)) == stacks.number(_frames(30)) == 1


def test_frames_that_hold_containers_are_not_compared():
    nested: list[Any] = []
    for _ in range(200):
        nested = [nested, nested]
    frames: list[Any] = _frames(30)
    frames[12] = {"name": nested, "filename": "", "line": 0}
    again: list[Any] = list(frames)
    again[12] = {"name": [*nested], "filename": "", "line": 0}
    stacks = Stacks()

    assert stacks.number(frames) == stacks.number(again)


def test_a_free_and_its_completion_that_share_their_list_have_one_stack_and_the_next_event_its_own():
    shared = _frames(12)
    trace: list[Any] = [
        {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "frames": _frames(9)},
        {"action": "free_requested", "addr": 512, "size": 512, "stream": 0, "frames": shared},
        {"action": "free_completed", "addr": 512, "size": 512, "stream": 0, "frames": shared},
        {"action": "alloc", "addr": 512, "size": 512, "stream": 0},
    ]

    columns = read_events(trace, Stacks())

    assert list(columns.stack) == [1, 2, 2, 0]


def test_an_event_with_a_size_or_address_that_is_none_is_counted_and_left_out():
    good = {"action": "alloc", "addr": 512, "size": 512, "stream": 3}
    trace: list[Any] = [
        {**good, "size": True}, {**good, "size": -1}, {**good, "addr": "512"}, {**good, "stream": []}, good,
        {"action": "oom", "size": 512, "stream": 3, "device_free": None},
    ]  # fmt: skip

    columns = read_events(trace, Stacks())

    assert columns.n_odd == 4
    assert list(columns.address) == [512, -1]
    assert columns.lanes == [(3, (0, 0))]
