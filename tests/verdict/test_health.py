"""When a job may be called healthy, and what one moment of a job that finished does not prove."""

from pathlib import Path

import pytest

from torchtriage.verdict.tool import triage

WAITS = """Process 70: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 70 (idle): "MainThread"
    cudaStreamSynchronize (libcudart.so.12)
    step (train.py:40)
    main (train.py:90)
"""
SLEEPS = """Process 71: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 71 (idle): "MainThread"
    clock_nanosleep (libc.so.6)
    wait_for_file (train.py:21)
    main (train.py:88)
"""
STEPS = [f"2026-11-30 06:20:{step:02d},000 INFO train rank={rank} step={step}/20 loss={2 - step / 100:.3f}"
         for step in range(20) for rank in (0, 1)]  # fmt: skip


def job(folder: Path, *, lines: list[str], stacks: bool) -> Path:
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    if stacks:
        (folder / "stack-rank0.txt").write_text(WAITS)
        (folder / "stack-rank1.txt").write_text(SLEEPS)
    return folder


def test_a_rank_that_sleeps_while_its_peers_wait_is_the_culprit_of_a_hang(tmp_path: Path) -> None:
    verdict = triage([str(job(tmp_path, lines=STEPS, stacks=True))])
    assert (verdict.failure_mode, verdict.culprits.ranks) == ("rank-waits-for-flag-or-file", [1])


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_one_moment_of_a_job_that_finished_is_no_hang(ranks: tuple[int, ...], tmp_path: Path) -> None:
    ends = [f"2026-11-30 06:21:00,000 INFO train rank={rank} done in 30.1 s" for rank in ranks]
    verdict = triage([str(job(tmp_path, lines=[*STEPS, *ends], stacks=True))])
    assert verdict.failure_mode is None
    assert verdict.status == ("healthy" if len(ranks) == 2 else "inconclusive")


def test_even_steps_without_an_end_are_not_enough(tmp_path: Path) -> None:
    assert triage([str(job(tmp_path, lines=STEPS, stacks=False))]).status == "inconclusive"


def test_even_steps_and_an_end_on_every_rank_are_healthy(tmp_path: Path) -> None:
    ends = [f"2026-11-30 06:21:00,000 INFO train rank={rank} done in 30.1 s" for rank in (0, 1)]
    assert triage([str(job(tmp_path, lines=[*STEPS, *ends], stacks=False))]).status == "healthy"
