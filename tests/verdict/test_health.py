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


def test_a_job_that_was_restarted_and_then_finished_is_neither_failed_nor_healthy(tmp_path: Path) -> None:
    restart = [
        "E1130 06:20:30.000000 77 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) "
        "local_rank: 1 (pid: 99) of binary: python",
        "I1130 06:20:31.000000 77 torch/distributed/elastic/agent/server/api.py:899] [default] Worker group FAILED. "
        "2/3 attempts left; will restart worker group",
    ]
    again = [line.replace("06:20", "06:40") for line in STEPS]
    ends = [f"2026-11-30 06:41:00,000 INFO train rank={rank} done in 30.1 s" for rank in (0, 1)]
    verdict = triage([str(job(tmp_path, lines=[*STEPS, *restart, *again, *ends], stacks=False))])
    assert (verdict.status, verdict.failure_mode) == ("inconclusive", None)
    assert "restarted the job, and it then finished" in verdict.summary


def test_one_flush_of_the_allocator_is_no_slow_job_and_many_are(tmp_path: Path) -> None:
    flush = (
        "[2026-11-30 06:20:20,000] [WARNING] [stage3.py:2139:step] 4 pytorch allocator cache flushes since last step."
    )
    once = triage([str(job(tmp_path, lines=[*STEPS, flush], stacks=False))])
    often = triage([str(job(tmp_path, lines=[*STEPS, *([flush] * 6)], stacks=False))])
    assert (once.failure_mode, often.failure_mode) == (None, "allocator-retries-near-full-memory")


def end_of(folder: Path, text: str) -> tuple[str | None, list[int], list[str], str]:
    (folder / "job.log").write_text(text)
    verdict = triage([str(folder)])
    return verdict.failure_mode, verdict.culprits.ranks, verdict.culprits.hosts, verdict.summary


SLURM_STEPS = "".join(f"{task}: step {step}/90 loss 2.1\n" for step in range(9) for task in (0, 1))


@pytest.mark.parametrize(
    ("text", "mode", "ranks", "hosts", "said"),
    [
        (SLURM_STEPS + "srun: error: Node failure on n3\nslurmstepd: error: *** JOB 9 ON n1 CANCELLED AT "
         "2026-11-30T06:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
         "job-preempted-or-timed-out-by-scheduler", [], ["n3"], "NODE FAILURE"),
        (SLURM_STEPS + "slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-11-30T06:00:00 ***\n"
         "srun: error: n1: tasks 0-1: Terminated\n",
         "job-preempted-or-timed-out-by-scheduler", [0, 1], ["n1"], "no rank failed first"),
        (SLURM_STEPS + "Name:   train-3\nNode:   pool-7/10.1.2.3\nReason:   Evicted\n"
         "Message:   The node was low on resource: memory.\n",
         "job-preempted-or-timed-out-by-scheduler", [], ["pool-7", "train-3"], "low on resource"),
        ("[rank0]: step 1/9 loss 2.1\nW1130 06:20:31.000000 7 torch/distributed/elastic/agent/server/api.py:719] "
         "Received 2 death signal, shutting down workers\n[rank0]: Traceback (most recent call last):\n"
         '[rank0]:   File "/w/train.py", line 9, in main\n[rank0]:     step()\n[rank0]: KeyboardInterrupt\n',
         "job-preempted-or-timed-out-by-scheduler", [], [], "interrupted"),
        ("[rank0]: step 1/9 loss 2.1\nray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
         "memory.\nMemory on the node (IP: 10.0.0.5, ID: 6c1b) where the task (actor ID: 8a, pid=75) was running was "
         "98GB / 100GB (0.98), which exceeds the memory usage threshold of 0.95. Ray killed this worker.\n",
         "process-killed-by-sigkill", [], ["10.0.0.5"], "killed from outside"),
        (SLURM_STEPS + "srun: error: n2: task 1: Out Of Memory\n", "process-killed-by-sigkill", [1], ["n2"],
         "Rank 1 was killed by SIGKILL before"),
    ],
)  # fmt: skip
def test_who_ended_a_job_from_outside_is_named(
    text: str, mode: str, ranks: list[int], hosts: list[str], said: str, tmp_path: Path
) -> None:
    assert end_of(tmp_path, text)[:3] == (mode, ranks, hosts)
    assert said in end_of(tmp_path, text)[3]


def test_a_segmentation_fault_with_a_stack_names_its_rank_and_no_code_that_was_not_printed(tmp_path: Path) -> None:
    stack = (
        "[rank1]: Fatal Python error: Segmentation fault\n[rank1]: \n"
        "[rank1]: Current thread 0x00007f0d9a3c1740 (most recent call first):\n"
        '[rank1]:   File "/w/ops.py", line 12 in rope\n'
    )
    steps = "".join(f"[rank{rank}]: step {step}/9 loss 2.1\n" for step in range(5) for rank in (0, 1))
    mode, ranks, _, summary = end_of(tmp_path, steps + stack)
    assert (mode, ranks) == ("segfault-in-native-code", [1])
    assert "exit code" not in summary
