"""What launchers, schedulers and the kernel say about ends of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.scan.read import PatternSet, scan, text_source

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
        ("srun: error: node01: task 3: Out Of Memory", [3], -9, "SIGKILL", "oom_kill"),
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
        (
            "[rank: 1] Child process with PID 55 terminated with code 1. Forcefully terminating all other processes",
            [], 1, None, None,
        ),
        ("subprocess.CalledProcessError: Command '['a']' died with <Signals.SIGKILL: 9>.", [], -9, "SIGKILL", None),
        ("Job 1 failed with return code list: [0, 137]", [], -9, "SIGKILL", None),
        ("run.sh: line 3: 957 Segmentation fault      (core dumped) python t.py", [], -11, "SIGSEGV", None),
        ("Killed", [], -9, "SIGKILL", None),
        ("Bus error (core dumped)", [], -7, "SIGBUS", None),
        ("trainer-1 exited with code 137", [], -9, "SIGKILL", None),
        ("command terminated with exit code 143", [], -15, "SIGTERM", None),
        ("a.service: Main process exited, code=killed, status=9/KILL", [], -9, "SIGKILL", None),
        ("prterun noticed that process rank 1 on node n exited on\nsignal 9 (Killed).", [1], -9, "SIGKILL", None),
        ("  Process name: [[51,1],3]\n  Exit code:    1", [3], 1, None, None),
        ("=   RANK 3 PID 957 RUNNING AT n1\n=   KILLED BY SIGNAL: 9 (Killed)", [3], -9, "SIGKILL", None),
        ("srun: error: Node failure on n7", [], None, None, "node_failure"),
        ("JobId=5 JobState=TIMEOUT Reason=TimeLimit", [], -15, "SIGTERM", "time_limit"),
        ("123.0    python    64 OUT_OF_ME+    0:125", [], -9, "SIGKILL", "oom_kill"),
        ("125|NODE_FAIL|1:0", [], 1, None, "node_failure"),
        ("126|CANCELLED by 1000|0:15", [], -15, "SIGTERM", "cancelled"),
        ("126|PREEMPTED|0:0", [], -15, "SIGTERM", "preemption"),
        ("128|FAILED|0:11", [], -11, "SIGSEGV", None),
        ("Name:   train-3\n  Reason:    Error\n  Exit Code:    139", [], -11, "SIGSEGV", None),
        ("        exitCode: 137\n        finishedAt: x\n        reason: OOMKilled", [], -9, "SIGKILL", "oom_kill"),
        ("train-worker-1   0/1     Error       0          5m", [], 1, None, None),
        ("Warning  Evicted  3m  kubelet  The node was low on resource: memory.", [], None, None, "evicted"),
        (
            "A worker died or was killed while executing a task. Worker exit type: SYSTEM_ERROR Worker exit detail: "
            "Worker exits with an exit code 1.",
            [], 1, None, None,
        ),
        (
            "Memory on the node (IP: 10.0.0.2) where the task (a, pid=77) was running was 1GB / 2GB (0.96), which "
            "exceeds the memory usage threshold of 0.95. Ray killed this worker",
            [], -9, "SIGKILL", "oom_kill",
        ),
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


@pytest.mark.parametrize(
    "line",
    [
        "124    train    gpu    64  COMPLETED      0:0",
        "test FAILED 12:30 in 5s",
        "  Reason:   Completed\n  Exit Code:    0",
        "train-worker-3   1/1     Running     0          5m",
        "its worker process has died. Worker exit type: INTENDED_USER_EXIT",
        "all tests Killed by mutation",
        "trainer-1 exited with code 0",
        "Job 1 finished with return code list: [0, 0]",
    ],
)
def test_what_is_no_failure_is_not_read_as_one(line):
    assert exits(line) == []


def test_what_srun_ends_after_a_failure_is_no_cause():
    found = exits(
        "srun: error: n1: task 3: Segmentation fault (core dumped)\nsrun: Terminating StepId=1.0\n"
        "srun: error: n2: tasks 4-5: Killed\nsrun: error: n1: task 2: Terminated"
    )
    seen = [(s.scope.ranks, s.facts["first_observed"], s.facts["by_launcher"]) for s in found]
    assert seen == [([3], True, False), ([4], False, True), ([5], False, True), ([2], False, True)]


def test_under_torchrun_a_task_of_the_scheduler_is_a_node_and_no_rank():
    found = exits(
        "failed (exitcode: 1) local_rank: 2 (pid: 99) of binary: python\n"
        "srun: error: node01: task 1: Exited with exit code 1"
    )
    assert [(s.facts["told_by"], s.scope.ranks, s.scope.hosts) for s in found] == [
        ("elastic_failed", [2], []),
        ("srun", [], ["node01"]),
    ]


def test_all_fields_of_the_failure_table_are_read():
    (found,) = exits(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-30_06:20:26\n  host      : n1\n"
        "  rank      : 4 (local_rank: 0)\n  exitcode  : -6 (pid: 99)\n  error_file: /tmp/a/4/error.json\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 99"
    )
    assert (found.scope.ranks, found.scope.hosts) == ([4], ["n1"])
    facts = {key: found.facts[key] for key in ("signal", "pid", "error_file", "first_observed")}
    assert facts == {"signal": "SIGABRT", "pid": 99, "error_file": "/tmp/a/4/error.json", "first_observed": True}


def test_containers_of_different_pods_are_told_apart():
    found = exits("NAME  READY  STATUS\na-1   0/1     OOMKilled   0\na-2   0/1     OOMKilled   0")
    assert [s.scope.hosts for s in found] == [["a-1"], ["a-2"]]


def test_a_clean_end_is_no_failure():
    assert exits("[ERROR] ['python'] exits with return code = 0\nsrun: error: n: task 1: Requested node is down") == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("srun: error: node01: task 3: Out Of Memory", None),
        ("srun: error: node01: task 3: Segmentation fault (core dumped)", None),
        ("srun: error: node01: task 3: Exited with exit code 1", 1),
        ("failed (exitcode: -7) local_rank: 2 (pid: 99) of binary: python", -7),
        ("trainer-1 exited with code 137", 137),
        ("process 1 terminated with signal SIGSEGV", None),
    ],
)
def test_an_exit_code_counts_as_told_only_where_the_line_prints_it(line: str, told: int | None) -> None:
    assert exits(line)[0].facts["told_exitcode"] == told


def test_the_deepspeed_launcher_names_the_local_rank_of_the_process_that_failed() -> None:
    (found,) = exits("[ERROR] [launch.py:325:m] ['python', 't.py', '--local_rank=3'] exits with return code = -9")
    assert found.scope.ranks == [3]


def test_a_local_rank_of_a_second_node_is_the_rank_at_its_place_there() -> None:
    steps = "".join(f"w{rank // 2 + 1}: [INFO] [Rank {rank}] step={step}, loss=2.1\n" for step in range(9)
                    for rank in range(4))  # fmt: skip
    found = exits(
        steps + "w2: [ERROR] [launch.py:325:m] ['python', 't.py', '--local_rank=1'] exits with return code = 1"
    )
    assert [(s.scope.ranks, s.scope.hosts) for s in found] == [([3], ["w2"])]


def test_a_pod_that_is_described_has_its_own_name_its_node_and_the_message() -> None:
    (found,) = exits(
        "Name:             train-3\nNode:             pool-a-7/10.1.2.3\nReason:           Evicted\n"
        "Message:          The node was low on resource: memory.\n      Exit Code:    137"
    )
    assert found.scope.hosts == ["train-3", "pool-a-7"]
    assert (found.facts["reason"], found.facts["detail"]) == ("evicted", "The node was low on resource: memory.")


RESTART = (
    "failed (exitcode: -9) local_rank: 1 (pid: 99) of binary: python\n"
    "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
)
STEPS = "".join(f"[rank{rank}]: step {step}/9 loss 2.1\n" for step in range(9) for rank in (0, 1))
DONE = "[rank0]: training finished\n[rank1]: training finished\n"


@pytest.mark.parametrize(
    ("log", "names"),
    [
        (STEPS + RESTART + STEPS + DONE, ["log.end_recovered"]),
        (STEPS + RESTART + STEPS, ["log.process_exit"]),
        (STEPS + DONE + RESTART, ["log.process_exit"]),
        (STEPS + RESTART + STEPS + DONE + "failed (exitcode: -6) local_rank: 0 (pid: 9) of binary: python",
         ["log.process_exit", "log.process_exit"]),
    ],
)  # fmt: skip
def test_an_end_before_a_restart_that_finished_is_no_failure_of_the_job(log: str, names: list[str]) -> None:
    found = analyze(scan([text_source(log)], PatternSet([]))).signals
    assert [s.name for s in found if s.name in ("log.end_recovered", "log.process_exit")] == names
