"""Out-of-memory errors of ranks: what was being done, what earlier steps needed, and what was survived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.scan.read import PatternSet, scan, text_source

if TYPE_CHECKING:
    from torchtriage.report import Signal

SITE = "/opt/env/lib/python3.12/site-packages/"
CALL = (SITE + "torch/nn/modules/module.py", "_call_impl")
BACKWARD = (SITE + "torch/_tensor.py", "backward")
LOAD = (SITE + "torch/serialization.py", "load")
SIZES = "Of the allocated memory {} is allocated by PyTorch, and 256.00 MiB is reserved by PyTorch but unallocated."
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB "
    "of which 512.00 MiB is free. Including non-PyTorch memory, this process has 79.00 GiB memory in use. "
    + SIZES.format("78.00 GiB")
)


def signals(text: str, name: str = "log.cuda_out_of_memory") -> list[Signal]:
    return [s for s in analyze(scan([text_source(text)], PatternSet([]))).signals if s.name == name]


def failure(*frames: tuple[str, str], last: str = MESSAGE, rank: int = 0) -> str:
    lines = ["Traceback (most recent call last):", '  File "/job/run.py", line 3, in main', "    loop()"]
    for file, function in frames:
        lines += [f'  File "{file}", line 12, in {function}', "    call()"]
    return "\n".join(f"[rank{rank}]: {line}" for line in [*lines, last])


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        ([(SITE + "torch/optim/adam.py", "step"), (SITE + "torch/optim/adam.py", "_init_group")], "optimizer_state"),
        ([(SITE + "torch/optim/sgd.py", "step"), (SITE + "torch/optim/sgd.py", "_multi_tensor_sgd")], "optimizer_step"),
        ([CALL, ("/job/model.py", "forward")], "forward"),
        ([CALL, (SITE + "torch/nn/functional.py", "cross_entropy")], "loss"),
        ([BACKWARD, (SITE + "torch/autograd/graph.py", "_engine_run_backward")], "backward"),
        ([BACKWARD, (SITE + "torch/utils/checkpoint.py", "unpack_hook"), CALL], "recompute"),
        ([(SITE + "transformers/trainer.py", "evaluation_loop"), CALL], "evaluation"),
        (
            [
                (SITE + "transformers/trainer.py", "evaluation_loop"),
                (SITE + "transformers/trainer_pt_utils.py", "nested_concat"),
            ],
            "evaluation_concat",
        ),
        ([LOAD, (SITE + "torch/serialization.py", "persistent_load")], "checkpoint_load"),
        ([CALL, ("/job/model.py", "eager_attention_forward")], "attention_unfused"),
        ([(SITE + "torch/nn/modules/module.py", "_apply")], "model_placement"),
        ([("/job/optimizer.py", "step"), ("/job/engine.py", "backward")], None),
    ],
)  # fmt: skip
def test_the_frames_tell_what_the_rank_was_doing(frames, phase):
    (found,) = signals(failure(*frames))
    assert found.facts["phase"] == phase


def test_the_users_own_frame_and_the_frame_of_the_phase_are_quoted():
    (found,) = signals(failure(CALL, ("/job/model.py", "forward"), (SITE + "torch/nn/functional.py", "linear")))
    assert found.facts["where"] == "forward (/job/model.py:12)"
    assert [e.quote for e in found.evidence][1:] == [
        '[rank0]:   File "/job/model.py", line 12, in forward',
        f'[rank0]:   File "{CALL[0]}", line 12, in {CALL[1]}',
    ]


def test_two_ranks_that_interleave_keep_their_own_numbers():
    one = failure(CALL).split("\n")
    other = failure(CALL, last=MESSAGE.replace("GPU 0", "GPU 1").replace("1.00 GiB.", "2.00 GiB."), rank=1).split("\n")
    found = signals("\n".join(line for pair in zip(one, other, strict=True) for line in pair))
    assert [(s.scope.ranks, s.facts["gpu"], s.facts["requested_bytes"]) for s in found] == [
        ([0], 0, 1 << 30),
        ([1], 1, 2 << 30),
    ]


def test_a_message_that_a_narrow_window_broke_is_read_to_its_end():
    (found,) = signals("\n".join([MESSAGE[:130], MESSAGE[130:260], MESSAGE[260:], "", "step 9 of the plan"]))
    assert found.facts["reserved_unallocated_bytes"] == 256 << 20
    assert found.facts["this_process_bytes"] == 79 << 30


def test_a_broken_message_takes_nothing_from_the_lines_of_other_ranks():
    lines = [f"[rank0]: {MESSAGE[:130]}", "[rank1] step 4 loss 2.0", f"[rank0]: {MESSAGE[130:]}"]
    (found,) = signals("\n".join(lines))
    assert (found.scope.ranks, found.facts["allocated_bytes"]) == ([0], 78 << 30)


def test_what_launchers_repeat_is_told_once():
    report = f'{{"message": {{"message": "{MESSAGE}", "extraInfo": {{"timestamp": "1"}}}}}}'
    assert len(signals(f"{failure(CALL)}\n{report}\n{MESSAGE.removeprefix('torch.')}")) == 1


def test_a_message_in_a_line_of_the_program_is_read_without_a_traceback():
    (found,) = signals(f"[rank0] step 1 loss 2.0\n[rank1] step 1 loss 2.0\n[rank1] ERROR failed: {MESSAGE[24:]}")
    assert (found.scope.ranks, found.facts["told_by"], found.facts["phase"]) == ([1], "line", None)


@pytest.mark.parametrize(
    "lines",
    [
        [f"[rank1] WARNING {MESSAGE[24:]}"],
        [f"[rank1] ERROR {MESSAGE[24:]} Retrying with half the batch"],
        [f"[rank1] ERROR {MESSAGE[24:]}", "[rank1] step 2 loss 1.9"],
        [f"[rank1] ERROR {MESSAGE[24:]}", "[rank1] training finished"],
        ["[rank1] set PYTORCH_CUDA_ALLOC_CONF in case it says CUDA out of memory"],
        [f"I once had this: {MESSAGE[24:]} It is fine now."],
    ],
)
def test_what_a_rank_survived_or_only_speaks_of_is_no_failure(lines):
    assert signals("\n".join(["[rank0] step 1 loss 2.0", "[rank1] step 1 loss 2.0", *lines])) == []


def test_a_caught_error_after_which_the_rank_steps_on_is_no_failure():
    steps = "[rank0] step 1 loss 2.0\n{}\n[rank0] step 2 loss 1.9\n[rank0] step 3 loss 1.8"
    assert signals(steps.format(failure(CALL))) == []


def with_peaks(*peaks_gib: float, metric: str = "peak_memory", last: str = MESSAGE) -> float | None:
    steps = [f"[rank0] step {n} loss 2.0 {metric} {peak:.2f} GiB" for n, peak in enumerate(peaks_gib)]
    (found,) = signals("\n".join([*steps, failure(CALL, last=last)]))
    return found.facts["over_usual_peak"]


def test_a_step_that_needs_more_than_all_before_is_told_by_how_much():
    assert with_peaks(30.0, 39.5, 39.5, 39.5) == 2.0


@pytest.mark.parametrize(
    ("peaks", "metric"),
    [
        ((20.0, 40.0, 60.0, 75.0), "peak_memory"),  # it rose all the time
        ((39.5, 39.5), "peak_memory"),  # too few
        ((39.5, 39.5, 39.5), "memory_allocated"),  # what is left after a step is no peak
        ((39.5, 39.5, 39.5), "peak_rss"),  # of the host
    ],
)
def test_a_peak_is_usual_only_where_it_is_the_gpus_and_no_longer_rises(peaks, metric):
    assert with_peaks(*peaks, metric=metric) is None


def test_other_processes_that_are_ranks_of_the_job_are_told_so():
    launcher = "Sending process 4711 closing signal SIGTERM"
    last = MESSAGE.replace("Including", "Process 4711 has 1.00 GiB memory in use. Including")
    assert [s.facts["others_are_ranks"] for s in signals(f"{failure(CALL, last=last)}\n{launcher}")] == [True]
    assert [s.facts["others_are_ranks"] for s in signals(failure(CALL, last=last))] == [False]


@pytest.mark.parametrize(
    ("last", "asked"),
    [
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you "
         "tried to allocate 2147483648 bytes. Error code 12 (Cannot allocate memory)", 2 << 30),
        ("MemoryError", None),
        ("OSError: [Errno 12] Cannot allocate memory", None),
    ],
)  # fmt: skip
def test_memory_of_the_host_that_was_refused_is_another_signal(last, asked):
    text = failure(LOAD, last=last, rank=2)
    (found,) = signals(text, "log.host_memory_refused")
    assert (found.scope.ranks, found.facts["requested_bytes"], found.facts["phase"]) == ([2], asked, "checkpoint_load")
    assert signals(text) == []
