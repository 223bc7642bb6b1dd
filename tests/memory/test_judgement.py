"""Jobs whose truth is known by construction, judged from their snapshots; healthy ones raise nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from memory.make_snapshot import GIB, MIB, Allocator, library, torch_frame, user
from memory.simulated_jobs import Job, trained, until_oom
from memory.truths import device_of, findings_of, kinds_of
from torchtriage.memory.judge import Beside, rises_in_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _leak_every_step(job: Job, number: int) -> None:
    job.keep(5 * MIB)


def _leak_every_fifth(job: Job, number: int) -> None:
    if number % 5 == 0:
        job.keep(12 * MIB)


def _growing_buffer(job: Job, number: int) -> None:
    grown = job.gpu.alloc(3 * MIB * (number + 1), job.at(27))
    for block in job.held:
        job.gpu.free(block, job.at(27))
    job.held = [grown]


def _kept_evaluation_outputs(job: Job, number: int) -> None:
    if number % 5 == 4:
        job.evaluate(kept_bytes=2 * MIB)


_LEAKS: dict[str, tuple[Callable[[Job, int], None], int, str]] = {
    "every step": (_leak_every_step, 12, "train (/job/train.py:26)"),
    "every fifth step": (_leak_every_fifth, 40, "train (/job/train.py:26)"),
    "a buffer that is rebuilt larger": (_growing_buffer, 20, "train (/job/train.py:27)"),
    "evaluation outputs": (_kept_evaluation_outputs, 30, "evaluate (/job/train.py:72)"),
}


@pytest.mark.parametrize("native_stacks", [True, False])
@pytest.mark.parametrize("context", ["all", "alloc"])
@pytest.mark.parametrize("name", list(_LEAKS))
def test_a_leak_is_found_under_a_large_activation_peak(
    name: str, context: str, native_stacks: bool, tmp_path: Path
) -> None:
    each, n_steps, site = _LEAKS[name]
    job = trained(n_steps, each, Allocator(context=context), activation_bytes=64 * MIB, native_stacks=native_stacks)
    found = findings_of(job.gpu, tmp_path)
    assert kinds_of(found) == ["leak"]
    assert found.faults[0].finding.site == site
    kept = sum(block.size for block in job.held)
    assert 0.5 * kept <= found.faults[0].finding.bytes <= kept


def _warming_cache(job: Job, number: int) -> None:
    if number < 14:
        job.keep(4 * MIB)


def _saturating_cache(job: Job, number: int) -> None:
    if number in (0, 1, 2, 4, 7, 12, 20):
        job.keep(4 * MIB)


def _evaluated(job: Job, number: int) -> None:
    if number % 4 == 3:
        job.evaluate()


def _logged(job: Job, number: int) -> None:
    """The last outputs live on until the next ones, of whatever length they were."""
    for block in job.held:
        job.gpu.free(block, job.at(27))
    job.held = [job.gpu.alloc((7 + number * 37 % 23) * MIB, job.at(27))]


def _meter(job: Job, number: int) -> None:
    """A window of the last results."""
    job.keep(2 * MIB)
    if len(job.held) > 6:
        job.gpu.free(job.held.pop(0), job.at(26))


def _cleared_every_epoch(job: Job, number: int) -> None:
    job.keep(3 * MIB)
    if number % 32 == 31:
        for block in job.held:
            job.gpu.free(block, job.at(28))
        job.held.clear()


_HEALTHY: dict[str, tuple[Callable[[Job, int], None] | None, int]] = {
    "plain": (None, 12),
    "three steps": (None, 3),
    "a cache that is full before the end": (_warming_cache, 24),
    "a cache that fills ever more slowly": (_saturating_cache, 40),
    "evaluation between": (_evaluated, 16),
    "outputs of any length that live on for one step": (_logged, 30),
    "a window of results": (_meter, 30),
    "results that are cleared now and then": (_cleared_every_epoch, 100),
    "results that are cleared now and then, cut in between": (_cleared_every_epoch, 127),
    "many steps": (None, 240),
}


@pytest.mark.parametrize("native_stacks", [True, False])
@pytest.mark.parametrize("expandable", [True, False])
@pytest.mark.parametrize("name", list(_HEALTHY))
def test_a_healthy_job_raises_nothing(name: str, expandable: bool, native_stacks: bool, tmp_path: Path) -> None:
    each, n_steps = _HEALTHY[name]
    gpu = Allocator(expandable=expandable)
    job = trained(n_steps, each, gpu, native_stacks=native_stacks, activation_bytes=4 * MIB, parameter_bytes=MIB)
    found = findings_of(job.gpu, tmp_path)
    assert kinds_of(found) == []
    # Where more is held in the second half of the steps than at its start, nothing is claimed either way.
    assert found.steady or any(rises_in_all(d) for s in found.snapshots for d in s.summary["devices"])


@pytest.mark.parametrize("native_stacks", [True, False])
@pytest.mark.parametrize("n_steps", [4, 20])
@pytest.mark.parametrize("n_micro", [2, 8, 40])
def test_gradient_accumulation_is_no_leak(n_micro: int, n_steps: int, native_stacks: bool, tmp_path: Path) -> None:
    job = Job(Allocator(), native_stacks=native_stacks, activation_bytes=4 * MIB)
    job.setup()
    for _ in range(n_steps):
        job.step(n_micro=n_micro)
    for cut in (0, 300):
        for _ in range(cut):
            job.gpu.events.pop()
        assert kinds_of(findings_of(job.gpu, tmp_path)) == []


@pytest.mark.parametrize("native_stacks", [True, False])
def test_steps_of_every_length_are_healthy(native_stacks: bool, tmp_path: Path) -> None:
    job = Job(Allocator(), native_stacks=native_stacks)
    job.setup()
    for number in range(30):
        job.step(scale=0.2 + (number * 7919 % 97) / 60)
    found = findings_of(job.gpu, tmp_path)
    assert kinds_of(found) == []
    assert found.steady


@pytest.mark.parametrize("native_stacks", [True, False])
def test_a_ring_that_lost_the_beginning_tells_the_leak_all_the_same(native_stacks: bool, tmp_path: Path) -> None:
    job = trained(60, _leak_every_step, Allocator(max_entries=2500), native_stacks=native_stacks)
    found = findings_of(job.gpu, tmp_path)
    assert kinds_of(found) == ["leak"]
    assert found.judged[-1].finding.kind == "history_truncated"


@pytest.mark.parametrize("native_stacks", [True, False])
def test_a_ring_that_lost_the_beginning_of_a_healthy_job_is_no_fault(native_stacks: bool, tmp_path: Path) -> None:
    job = trained(60, None, Allocator(max_entries=2500), native_stacks=native_stacks)
    found = findings_of(job.gpu, tmp_path)
    assert [one.finding.kind for one in found.judged] == ["history_truncated"]
    assert found.steady


def test_a_history_switched_on_late_is_not_called_truncated(tmp_path: Path) -> None:
    job = Job(Allocator(recording=False))
    job.setup()
    for _ in range(3):
        job.step()
    job.gpu.recording = True
    for _ in range(8):
        job.step()
    found = findings_of(job.gpu, tmp_path)
    assert [one.finding.kind for one in found.judged] == []
    assert found.steady


# Out of memory


def _oom_of(job: Job, tmp_path: Path, run: Callable[[], Any], **kwargs: Any) -> Any:
    until_oom(run)
    return findings_of(job.gpu, tmp_path, **kwargs)


@pytest.mark.parametrize("native_stacks", [True, False])
@pytest.mark.parametrize("n_steps", [0, 5])
def test_activations_that_do_not_fit_are_the_peak(n_steps: int, native_stacks: bool, tmp_path: Path) -> None:
    job = trained(n_steps, None, Allocator(total_bytes=2 * GIB), n_layers=8, native_stacks=native_stacks,
                  parameter_bytes=2 * MIB)  # fmt: skip
    found = _oom_of(job, tmp_path, lambda: job.step(scale=9))
    assert kinds_of(found) == ["activation_peak"]


def test_one_request_larger_than_all_else_is_named(tmp_path: Path) -> None:
    job = trained(4, None, Allocator(total_bytes=4 * GIB))
    found = _oom_of(job, tmp_path, lambda: job.gpu.alloc(6 * GIB, job.at(22)))
    assert kinds_of(found) == ["single_large_allocation"]
    assert found.faults[0].finding.site == "train (/job/train.py:22)"


@pytest.mark.parametrize("native_stacks", [True, False])
def test_the_first_step_of_the_optimizer_is_named(native_stacks: bool, tmp_path: Path) -> None:
    job = Job(Allocator(total_bytes=1 * GIB), parameter_bytes=20 * MIB, native_stacks=native_stacks)
    job.setup()
    found = _oom_of(job, tmp_path, job.step)
    assert kinds_of(found) == ["optimizer_state"]
    assert found.faults[0].finding.facts["first_step"]


def test_optimizer_state_in_one_large_buffer_is_the_optimizers(tmp_path: Path) -> None:
    job = Job(Allocator(total_bytes=2 * GIB), parameter_bytes=20 * MIB)
    job.setup()
    flat = [torch_frame("_init_group", "optim/adamw.py", 110), torch_frame("step", "optim/adamw.py", 220)]
    found = _oom_of(job, tmp_path, lambda: job.gpu.alloc(3 * GIB, job.at(24, *flat)))
    assert kinds_of(found) == ["optimizer_state"]


@pytest.mark.parametrize("native_stacks", [True, False])
def test_a_leak_that_fills_the_gpu_comes_before_activations(native_stacks: bool, tmp_path: Path) -> None:
    job = Job(Allocator(total_bytes=2 * GIB), native_stacks=native_stacks, activation_bytes=64 * MIB)
    job.setup()

    def run() -> None:
        for _ in range(1000):
            job.step()
            job.keep(24 * MIB)

    found = _oom_of(job, tmp_path, run)
    assert kinds_of(found)[0] == "leak"


def test_free_pieces_that_are_all_too_small_are_fragmentation(tmp_path: Path) -> None:
    gpu = Allocator(total_bytes=2 * GIB)
    # Segments of 20 MiB with two blocks each: no segment is ever wholly free.
    stack = [user("fill", 5), user("main", 1)]
    blocks = [gpu.alloc(9 * MIB, stack) for _ in range(190)]
    for block in blocks[::2]:
        gpu.free(block, stack)
    until_oom(lambda: gpu.alloc(160 * MIB, stack))
    found = findings_of(gpu, tmp_path)
    assert kinds_of(found) == ["fragmentation"]
    assert not found.faults[0].finding.facts["stranded"]
    assert found.faults[0].finding.sure == "high"


@pytest.mark.parametrize(("stream", "pool", "private"), [(7, (0, 0), False), (0, (0, 9), True)])
def test_free_memory_of_another_stream_or_pool_is_stranded(
    stream: int, pool: tuple[int, int], private: bool, tmp_path: Path
) -> None:
    gpu = Allocator(total_bytes=2 * GIB)
    stack = [user("copy", 5), user("main", 1)]
    blocks = [gpu.alloc(9 * MIB, stack, stream, pool) for _ in range(180)]
    for block in blocks[::2]:
        gpu.free(block, stack)
    until_oom(lambda: [gpu.alloc(9 * MIB, stack) for _ in range(99)])
    found = findings_of(gpu, tmp_path)
    assert kinds_of(found) == ["fragmentation"]
    assert found.faults[0].finding.facts["stranded"]
    assert found.faults[0].finding.facts["private_pool"] is private


def test_frees_that_wait_for_a_stream_are_stranded(tmp_path: Path) -> None:
    gpu = Allocator(total_bytes=2 * GIB)
    stack = [user("copy", 5), user("main", 1)]
    gpu.free(gpu.alloc(MIB, stack), stack)
    for block in [gpu.alloc(20 * MIB, stack) for _ in range(90)]:
        gpu.free(block, stack, used_elsewhere=True)
    # During a capture nothing is waited for.
    gpu.finish_streams = lambda: None  # type: ignore[method-assign]
    until_oom(lambda: [gpu.alloc(20 * MIB, stack) for _ in range(30)])
    found = findings_of(gpu, tmp_path)
    assert kinds_of(found) == ["fragmentation"]
    assert found.faults[0].finding.facts["stranded"]


def test_other_processes_are_named_when_a_log_tells_the_size_of_the_gpu(tmp_path: Path) -> None:
    gpu = Allocator(total_bytes=40 * GIB, other_bytes=37 * GIB)
    job = trained(3, None, gpu, n_layers=16, parameter_bytes=4 * MIB)
    found = _oom_of(job, tmp_path, lambda: job.step(scale=9), logs={None: Beside(40 * GIB, 37 * GIB)})
    assert kinds_of(found)[0] == "other_process"
    alone = findings_of(gpu, tmp_path)
    assert "other_process" not in kinds_of(alone)


def test_outputs_kept_in_a_last_evaluation_are_the_leak(tmp_path: Path) -> None:
    for function in ("evaluate", "run_test_set"):
        job = trained(5, None, Allocator(total_bytes=2 * GIB), parameter_bytes=2 * MIB)
        found = _oom_of(job, tmp_path, lambda job=job, f=function: job.evaluate(200, 40 * MIB, f))
        assert kinds_of(found)[0] == "leak"
        assert found.faults[0].finding.site == f"{function} (/job/train.py:72)"


def test_forwards_of_one_step_that_wait_for_their_backward_are_activations(tmp_path: Path) -> None:
    for n_steps in (0, 3):
        job = trained(n_steps, None, Allocator(total_bytes=2 * GIB), parameter_bytes=2 * MIB)

        def run(job: Job = job) -> None:
            for _ in range(99):
                job.gpu.alloc(MIB, job.at(20))
                job.forward()

        found = _oom_of(job, tmp_path, run)
        assert kinds_of(found)[0] == "activation_peak"


def test_an_oom_that_was_handled_is_still_told(tmp_path: Path) -> None:
    job = trained(6, None, Allocator(total_bytes=3 * GIB), parameter_bytes=4 * MIB)
    until_oom(lambda: job.forward(scale=40))
    for block in list(job.gpu.live.values()):
        if block not in [*job.parameters, *job.state]:
            job.gpu.free(block, job.at(29))
    for _ in range(6):
        job.step()
    found = findings_of(job.gpu, tmp_path)
    assert len(kinds_of(found)) == 1
    assert "leak" not in kinds_of(found)
    assert found.faults[0].finding.facts["went_on"]


# The shapes that loops have


def _looped(job: Job, shape: str, n: int, each: Callable[[Job, int], None] | None) -> None:
    root = [user("<module>", 99)]
    for number in range(n):
        if shape == "epochs and batches":
            job.outer = [user("run", 50 + number % 4), user("main", 90), *root]
        elif shape == "trainer of a library":
            job.outer = [library("inner", "trainer/loop.py", 7), library("fit", "trainer/api.py", 3), *root]
        elif shape == "generator":
            job.outer = [user("batches", 44 + number % 3), user("main", 90), *root]
        elif shape == "comprehension":
            job.outer = [user("<listcomp>", 44), user("main", 44), *root]
        elif shape == "recursion":
            job.outer = [user("again", 44), user("again", 45), user("again", 44), *root]
        job.step()
        if each is not None:
            each(job, number)


@pytest.mark.parametrize("native_stacks", [True, False])
@pytest.mark.parametrize("one_line", [True, False])
@pytest.mark.parametrize(
    "shape", ["plain", "epochs and batches", "trainer of a library", "generator", "comprehension", "recursion"]
)
def test_leaks_are_told_in_every_shape_of_loop(shape: str, one_line: bool, native_stacks: bool, tmp_path: Path) -> None:
    for each, kinds in ((None, []), (_leak_every_step, ["leak"])):
        job = Job(Allocator(), one_line=one_line, native_stacks=native_stacks)
        job.setup()
        _looped(job, shape, 14, each)
        device = device_of(job.gpu, tmp_path)
        assert device["n_steps"] >= 12, (shape, each)
        assert kinds_of(findings_of(job.gpu, tmp_path)) == kinds


@pytest.mark.parametrize("n_layers", [4, 40])
def test_the_layers_of_one_forward_are_no_steps(n_layers: int, tmp_path: Path) -> None:
    job = Job(Allocator(), n_layers=n_layers, parameter_bytes=MIB)
    job.setup()
    job.forward()
    found = findings_of(job.gpu, tmp_path)
    assert kinds_of(found) == []
    assert not found.steady


def test_one_step_is_too_little_to_be_called_healthy(tmp_path: Path) -> None:
    found = findings_of(trained(1).gpu, tmp_path)
    assert kinds_of(found) == []
    assert not found.steady


def test_without_stacks_nothing_is_blamed_and_nothing_is_called_healthy(tmp_path: Path) -> None:
    found = findings_of(trained(20, _leak_every_step, Allocator(context="none")).gpu, tmp_path)
    assert kinds_of(found) == []
    assert not found.steady


def test_hooks_on_the_autograd_thread_are_no_loop(tmp_path: Path) -> None:
    job = Job(Allocator(), native_stacks=False)
    job.setup()
    for _ in range(2):
        job.forward()
        for _ in range(20):
            for line in (5, 9):
                hook = [user("hook", line, "/job/hooks.py")]
                job.gpu.free(job.gpu.alloc(MIB, hook), hook)
    assert device_of(job.gpu, tmp_path)["n_steps"] < 4


def test_a_cache_that_grows_by_design_is_no_fault_while_it_fits(tmp_path: Path) -> None:
    gpu = Allocator()
    append = user("update", 40, "/job/kv_cache.py")
    for number in range(40):
        gpu.alloc(4 * MIB, [append, user("decode", 10 + number % 2), user("main", 3)])
    assert kinds_of(findings_of(gpu, tmp_path)) == []


def test_data_put_on_the_gpu_before_training_is_no_leak(tmp_path: Path) -> None:
    job = Job(Allocator(), parameter_bytes=2 * MIB)
    job.setup()
    for _ in range(60):
        job.keep(8 * MIB, line=12)
        job.gpu.free(job.gpu.alloc(MIB, job.at(14)), job.at(15))
    for _ in range(20):
        job.step()
    found = findings_of(job.gpu, tmp_path)
    assert kinds_of(found) == []
    assert found.steady
