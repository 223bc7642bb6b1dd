"""What memory is for, against jobs whose blocks are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memory.make_snapshot import GIB, MIB, Allocator, native, snapshot, torch_frame, user
from memory.simulated_jobs import Job, trained, until_oom
from memory.truths import device_of, findings_of, kinds_of, summary_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("context", ["all", "alloc"])
@pytest.mark.parametrize("native_stacks", [True, False])
@pytest.mark.parametrize("n_steps", [2, 6])
def test_the_peak_of_training_is_told_by_purpose(
    n_steps: int, native_stacks: bool, context: str, tmp_path: Path
) -> None:
    job = trained(n_steps, None, Allocator(context=context), native_stacks=native_stacks, activation_bytes=40 * MIB)
    held = device_of(job.gpu, tmp_path)["by_category"]
    # The peak is the first moment of backward.
    assert held["parameters"] == 128 * MIB
    assert held["optimizer_state"] == 256 * MIB
    assert 300 * MIB <= held["activations"] <= 322 * MIB
    assert held.get("retained", 0) == 0


@pytest.mark.parametrize("context", ["all", "alloc"])
@pytest.mark.parametrize("native_stacks", [True, False])
def test_the_peak_of_a_single_step_is_that_of_its_optimizer(native_stacks: bool, context: str, tmp_path: Path) -> None:
    job = trained(1, None, Allocator(context=context), native_stacks=native_stacks, activation_bytes=MIB)
    assert device_of(job.gpu, tmp_path)["by_category"] == {
        "parameters": 128 * MIB, "gradients": 128 * MIB, "optimizer_state": 256 * MIB, "temporaries": 8 * MIB,
    }  # fmt: skip


@pytest.mark.parametrize("native_stacks", [True, False])
def test_gradients_are_told_at_the_step_of_the_optimizer(native_stacks: bool, tmp_path: Path) -> None:
    job = Job(Allocator(total_bytes=440 * MIB), native_stacks=native_stacks, activation_bytes=MIB)
    job.setup()
    until_oom(job.step)
    held = device_of(job.gpu, tmp_path)["by_category"]
    assert held["parameters"] == held["gradients"] == 128 * MIB
    assert held["optimizer_state"] == sum(block.size for block in job.state)


def test_categories_add_up_to_what_is_allocated(tmp_path: Path) -> None:
    for gpu in (Allocator(), Allocator(max_entries=700), Allocator(expandable=True)):
        device = device_of(trained(8, lambda job, _: job.keep(MIB), gpu).gpu, tmp_path)
        assert sum(device["by_category"].values()) == pytest.approx(device["peak_allocated"], rel=1e-3)
        assert sum(device["ending_by_category"].values()) == pytest.approx(device["allocated"], rel=1e-3)


@pytest.mark.parametrize(
    ("frames", "category"),
    [
        ([torch_frame("all_gather", "distributed/distributed_c10d.py")], "communication"),
        ([torch_frame("load", "serialization.py")], "parameters"),
        ([torch_frame("capture", "cuda/graphs.py")], "graphs"),
        ([native("at::cuda::getCUDABlasLtWorkspaceSize"), native("at::cuda::getCurrentCUDABlasHandle()")], "workspace"),
        ([user("update", 20, "/job/kv_cache.py")], "kv_cache"),
        ([user("anything", 20)], "other"),
        ([], "unknown"),
    ],
)  # fmt: skip
def test_the_innermost_telling_frame_says_what_for(
    frames: list[dict[str, object]], category: str, tmp_path: Path
) -> None:
    gpu = Allocator()
    gpu.alloc(4 * MIB, [*frames, user("main", 3)] if frames else [])
    assert device_of(gpu, tmp_path)["by_category"] == {category: 4 * MIB}


def test_recomputation_in_backward_makes_activations(tmp_path: Path) -> None:
    job = Job(Allocator())
    job.setup()
    again = [
        torch_frame("forward", "nn/modules/linear.py"), torch_frame("_call_impl", "nn/modules/module.py"),
        torch_frame("recompute_fn", "utils/checkpoint.py"), torch_frame("unpack_hook", "utils/checkpoint.py"),
    ]  # fmt: skip
    job.gpu.alloc(70 * MIB, job.at(23, *again))
    assert device_of(job.gpu, tmp_path)["by_category"]["activations"] == 70 * MIB


def test_evidence_points_at_the_place_that_it_quotes(tmp_path: Path) -> None:
    job = trained(8, lambda job, _: job.keep(9 * MIB), Allocator(max_entries=900))
    content = snapshot(job.gpu)
    device = summary_of(content, tmp_path)["devices"][0]
    for where, value in [(h["where"], h["largest_bytes"]) for h in [*device["holders"], *device["ending"]]] + [
        (g["where"], g["value"]) for g in device["grown"]
    ]:
        here = content
        for part in where.split("/")[1:]:
            here = here[int(part)] if isinstance(here, list) else here[part]
        assert here == value or where.startswith("/segments"), where


def test_a_cache_that_fills_the_gpu_is_named_as_one(tmp_path: Path) -> None:
    gpu = Allocator(total_bytes=2 * GIB)
    append = [user("update", 40, "/job/kv_cache.py"), torch_frame("_call_impl", "nn/modules/module.py", 1790)]

    def run() -> None:
        for number in range(1000):
            for _ in range(4):
                gpu.alloc(4 * MIB, [*append, user("decode", 10 + number % 2), user("main", 3)])

    until_oom(run)
    found = findings_of(gpu, tmp_path)
    assert kinds_of(found)
    assert all(one.finding.facts["kv_cache"] for one in found.faults)
