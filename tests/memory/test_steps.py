"""Where steps begin."""

from __future__ import annotations

from typing import Any

import pytest

from memory.make_snapshot import MIB, Allocator, snapshot, torch_frame, user
from memory.simulated_jobs import Job, trained
from torchtriage.memory.columns import read_events
from torchtriage.memory.frames import Stacks
from torchtriage.memory.steps import rounds_at_the_end, step_starts


def _starts(gpu: Allocator, annotations: Any = None) -> list[int]:
    stacks = Stacks()
    columns = read_events(snapshot(gpu)["device_traces"][gpu.device], stacks)
    return step_starts(columns, stacks, annotations)


@pytest.mark.parametrize("n_steps", [3, 5, 20])
def test_each_step_but_the_first_has_a_start_at_its_first_line(n_steps: int) -> None:
    job = trained(n_steps)
    events = list(job.gpu.events)
    starts = _starts(job.gpu)
    assert len(starts) == n_steps - 1
    assert {events[index]["frames"][0]["line"] for index in starts} == {20}


def test_loops_of_evaluation_are_no_steps_where_there_is_training() -> None:
    job = Job(Allocator())
    job.setup()
    for number in range(8):
        job.step()
        if number % 2:
            job.evaluate(n_batches=30)
    assert len(_starts(job.gpu)) in (7, 11)


def test_an_evaluation_at_the_end_has_rounds_of_its_own() -> None:
    job = trained(5)
    job.evaluate(n_batches=9)
    stacks = Stacks()
    columns = read_events(snapshot(job.gpu)["device_traces"][0], stacks)
    starts = step_starts(columns, stacks, None)
    assert len(rounds_at_the_end(columns, stacks, starts)) == 8


@pytest.mark.parametrize("n_tokens", [2, 30])
def test_without_training_an_outer_loop_counts(n_tokens: int) -> None:
    gpu = Allocator()
    for _ in range(6):
        for _ in range(n_tokens):
            for line in (7, 8):
                gpu.free(gpu.alloc(MIB, [user("decode", line), user("serve", 3), user("main", 2)]), [])
        gpu.free(gpu.alloc(MIB, [user("answer", 11), user("serve", 4), user("main", 2)]), [])
    assert len(_starts(gpu)) == 5


def test_a_helper_that_is_called_often_in_a_step_is_no_loop() -> None:
    job = Job(Allocator())
    job.setup()
    for _ in range(3):
        activations = job.forward()
        for _ in range(6):
            for line in (5, 6):
                helper = user("term_of_loss", line)
                job.gpu.free(job.gpu.alloc(MIB, job.at(22, helper)), job.at(22, helper))
        job.backward(activations)
        job.optimize()
        job.zero_grad()
    assert len(_starts(job.gpu)) == 2


def test_marks_of_the_profiler_count_where_stacks_tell_nothing() -> None:
    gpu = Allocator()
    marks: list[Any] = [5, {"stage": "START", "name": 3}, {"stage": "START", "name": "other", "time_us": 4}]
    frames = [torch_frame("empty", "functional.py")]
    for number in range(6):
        marks.append({"stage": "START", "name": f"ProfilerStep#{number}", "device": 0, "time_us": gpu.now_us})
        gpu.free(gpu.alloc(MIB, frames), frames)
    starts = _starts(gpu, marks)
    assert len(starts) == 6
    assert starts == sorted(starts)
    assert _starts(gpu, {"no": "list"}) == []
