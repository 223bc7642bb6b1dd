"""What launchers, schedulers and the kernel say about ends of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.read import PatternSet, scan, text_source

if TYPE_CHECKING:
    from torchtriage.report import Signal


def exits(text: str) -> list[Signal]:
    return [s for s in analyze(scan([text_source(text)], PatternSet([]))).signals if s.name == "log.process_exit"]


@pytest.mark.parametrize(
    ("line", "ranks", "exitcode", "signal", "reason"),
    [
        ("srun: error: node01: task 3: Killed", [3], -9, "SIGKILL", None),
        ("srun: error: node01: task 3: Exited with exit code 1", [3], 1, None, None),
        ("srun: error: node01: task 3: Segmentation fault (core dumped)", [3], -11, "SIGSEGV", None),
        ("srun: error: node01: task 3: Out Of Memory", [3], -9, "SIGKILL", None),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0.", [], -9, "SIGKILL", "oom_kill"),
        (
            "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-30T06:00:00 DUE TO TIME LIMIT ***",
            [], -15, "SIGTERM", "time_limit",
        ),
        ("process 1 terminated with signal SIGSEGV", [1], -11, "SIGSEGV", None),
        ("mpirun noticed that process rank 3 with PID 9 on node n exited on signal 9.", [3], -9, "SIGKILL", None),
        ("    Reason:       OOMKilled", [], -9, "SIGKILL", "oom_kill"),
        ("[5.1] Out of memory: Killed process 99 (python) total-vm:1kB", [], -9, "SIGKILL", "oom_kill"),
        ("[ERROR] [launch.py:322:m] ['python'] exits with return code = -9", [], -9, "SIGKILL", None),
        ("failed (exitcode: -7) local_rank: 2 (pid: 99) of binary: python", [2], -7, "SIGBUS", None),
    ],
)  # fmt: skip
def test_the_words_of_each_launcher_are_read(line, ranks, exitcode, signal, reason):
    (found,) = exits(line)
    assert found.scope.ranks == ranks
    facts = {key: found.facts[key] for key in ("exitcode", "signal", "reason")}
    assert facts == {"exitcode": exitcode, "signal": signal, "reason": reason}


def test_task_lists_of_srun_are_ranks():
    assert [s.scope.ranks for s in exits("srun: error: n: tasks 0-2,5: Exited with exit code 1")] == [
        [0],
        [1],
        [2],
        [5],
    ]


def test_a_process_that_the_kernel_killed_is_the_rank_that_the_table_names():
    found = exits(
        "Root Cause (first observed failure):\n[0]:\n  host      : n1\n  rank      : 4 (local_rank: 0)\n"
        "  exitcode  : -9 (pid: 99)\n[5.1] Memory cgroup out of memory: Killed process 99 (python)\n"
    )
    assert [(s.scope.ranks, s.scope.hosts, s.facts["reason"]) for s in found] == [([4], ["n1"], "oom_kill")]


def test_a_clean_end_is_no_failure():
    assert exits("[ERROR] ['python'] exits with return code = 0\nsrun: error: n: task 1: Requested node is down") == []
