"""What the curves of a run say becomes a verdict where the playbook knows what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logs.metrics.metric_runs import Run, Values, change, healthy, slower
from torchtriage.verdict.tool import triage

if TYPE_CHECKING:
    from pathlib import Path

    from torchtriage.report import Verdict

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 1.10 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the "
    "allocated memory 76.50 GiB is allocated by PyTorch, and 310.00 MiB is reserved by PyTorch but unallocated."
)


def verdict(folder: Path, run: Run, form: str, *end: str) -> Verdict:
    path = folder / "train.log"
    path.write_text("\n".join((run.text(form), *end)) + "\n", encoding="utf-8")
    return triage([str(path)])


def finished(n_ranks: int) -> list[str]:
    return [f"[rank{rank}] Training completed" for rank in range(n_ranks)]


def test_a_job_with_spikes_and_periodic_stalls_that_finished_is_healthy(tmp_path):
    def edit(step: int, rank: int, v: Values) -> None:
        v.loss *= 4 if step == 200 else 1

    run = slower(change(healthy(2, calm=True), edit), lambda step: 6.0 if step % 20 == 7 else 1.0)
    assert verdict(tmp_path, run, "plain", *finished(2)).status == "healthy"


def test_a_job_that_finished_ever_more_slowly_is_not_healthy(tmp_path):
    run = slower(healthy(2, calm=True), lambda step: 1 + step / 100)
    found = verdict(tmp_path, run, "plain", *finished(2))
    assert found.status == "inconclusive"


def test_memory_that_grew_until_it_ran_out_is_kept_alive_across_steps(tmp_path):
    def edit(step: int, rank: int, v: Values) -> None:
        v.allocated = 20e9 + step * 180e6 if rank == 1 else v.allocated

    trace = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/workspace/train.py", line 80, in <module>',
        "[rank1]:     loss.backward()",
        f"[rank1]: {OOM}",
    ]
    found = verdict(tmp_path, change(healthy(3, calm=True), edit), "plain", *trace)
    assert (found.failure_mode, found.culprits.ranks) == ("tensors-kept-alive-across-steps", [1])
    assert any("allocated=" in evidence.quote for evidence in found.evidence)


def test_a_loss_scale_that_fell_to_its_minimum_is_an_overflow_of_fp16(tmp_path):
    def edit(step: int, rank: int, v: Values) -> None:
        v.scale = max(1.0, 2.0 ** (16 - max(0, step - 190) // 3))

    found = verdict(tmp_path, change(healthy(4, calm=True), edit), "megatron")
    assert found.failure_mode == "fp16-range-overflow"


def test_a_rank_whose_data_take_long_is_a_straggler_of_the_host(tmp_path):
    def edit(step: int, rank: int, v: Values) -> None:
        if rank == 1:
            v.data_s, v.backward_s = v.data_s + v.time_s * 0.4, max(0.0, v.backward_s - v.time_s * 0.4)

    found = verdict(tmp_path, change(healthy(5, calm=True), edit), "plain")
    assert (found.failure_mode, found.culprits.ranks) == ("host-side-straggler-rank", [1])
    assert "data_ms" in found.summary


def test_a_statistic_of_the_input_that_one_rank_lost_tells_whose_batch_was_not_finite(tmp_path):
    lines: list[str] = []
    for step in range(10):
        for rank in (0, 1):
            loss, mean = ("nan" if step > 4 else "2.31"), ("nan" if (rank, step) == (1, 5) else "0.02")
            lines.append(f"2026-11-30 06:20:{step:02d},000 INFO [rank{rank}] step={step} loss={loss} input_mean={mean}")
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = triage([str(tmp_path / "train.log")])
    assert (found.failure_mode, found.culprits.ranks) == ("nonfinite-values-in-input-data", [1])
