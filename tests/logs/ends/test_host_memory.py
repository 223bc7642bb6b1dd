"""Kills for the host's memory: sizes, limits, and which rank the killed process was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtriage.logs.analyze import analyze
from torchtriage.logs.ends.host_memory import kill_facts, killed_pid, node_facts
from torchtriage.logs.ends.kernel_log import add_kills
from torchtriage.logs.records import LogSource
from torchtriage.logs.scan.read import PatternSet, scan, text_source

if TYPE_CHECKING:
    from torchtriage.report import Signal

FAILED = "failed (exitcode: -9) local_rank: 3 (pid: 640) of binary: python"
KILL = (
    "[77.25] Memory cgroup out of memory: Killed process 640 (python) total-vm:4096kB, anon-rss:2048kB, shmem-rss:8kB"
)


def exits(text: str, *kernel: str, host: str | None = None) -> list[Signal]:
    timeline = scan([text_source(text)], PatternSet([]))
    add_kills(timeline, [LogSource("dmesg", lines.split("\n"), host=host) for lines in kernel])
    return [s for s in analyze(timeline).signals if s.name == "log.process_exit"]


@pytest.mark.parametrize(
    ("line", "pid", "facts"),
    [
        (KILL, 640, {"comm": "python", "total_vm_bytes": 4 << 20, "anon_rss_bytes": 2 << 20, "shmem_rss_bytes": 8 << 10,
                     "limited_by": "cgroup"}),
        ("[1.0] Out of memory: Killed process 7 (pt_main_thread) total-vm:8kB, anon-rss:4kB", 7,
         {"comm": "pt_main_thread", "total_vm_bytes": 8 << 10, "anon_rss_bytes": 4 << 10, "limited_by": "host"}),
        ("[1.0] Out of memory: Kill process 7 (python) score 900 or sacrifice child", 7,
         {"comm": "python", "limited_by": "host"}),
        ("[1.0] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,oom_memcg=/b,"
         "task_memcg=/b,task=ray::W,pid=12,uid=0", 12, {"comm": "ray::W", "limited_by": "cgroup"}),
        ("[1.0] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/,"
         "task=python3,pid=12,uid=0", 12, {"comm": "python3", "limited_by": "host"}),
        ("slurmstepd: error: Detected 3 oom_kill events in StepId=5.0. Some of the step tasks have been OOM Killed.",
         None, {"limited_by": "cgroup", "kill_events": 3}),
    ],
)  # fmt: skip
def test_the_words_of_kernels_and_slurm_are_numbers(line, pid, facts):
    assert (killed_pid(line), kill_facts(line)) == (pid, facts)


def test_rays_monitor_tells_of_the_node_and_of_the_worker():
    line = (
        "Memory on the node (IP: 10.0.0.3, ID: ab) where the task (task ID: cd, name=W.f, pid=51, memory used=3.00GB)"
        " was running was 15.00GB / 16.00GB (0.9375), which exceeds the memory usage threshold of 0.9. Ray killed this"
    )
    assert node_facts(line) == {
        "node_used_bytes": 15 << 30,
        "node_total_bytes": 16 << 30,
        "threshold_share": 0.9,
        "limited_by": "ray",
        "anon_rss_bytes": 3 << 30,
    }


def test_the_second_line_of_an_old_kernel_adds_the_sizes():
    (found,) = exits(
        "[1.0] Out of memory: Kill process 7 (python) score 900 or sacrifice child\n"
        "[1.0] Killed process 7 (python) total-vm:8kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB"
    )
    assert (found.facts["pid"], found.facts["anon_rss_bytes"], found.facts["reason"]) == (7, 4 << 10, "oom_kill")


@pytest.mark.parametrize("line", ["[launcher] Killed process 640", "[agent] Killed process 640 (python) on request"])
def test_a_kill_by_somebody_else_is_not_one_for_memory(line):
    assert exits(line) == []


def test_a_process_that_the_kernel_killed_is_the_rank_that_the_agent_missed():
    (found,) = exits(f"{FAILED}\n{KILL}")
    assert (found.scope.ranks, found.facts["reason"], found.facts["anon_rss_bytes"]) == ([3], "oom_kill", 2 << 20)
    assert [e.where for e in found.evidence] == ["1", "2"]


def test_of_a_kernels_own_log_only_kills_of_the_jobs_processes_count():
    other = KILL.replace("640", "99")
    (found,) = exits(FAILED, f"[1.0] eth0: link up\n{other}\n{KILL}")
    assert (found.scope.ranks, found.facts["pid"], found.facts["limited_by"]) == ([3], 640, "cgroup")
    assert [(e.artefact, e.where) for e in found.evidence] == [("text", "1"), ("dmesg", "3")]
    assert exits("[rank0] step 1 loss 2.0", other) == []


def test_a_process_of_another_host_with_the_same_number_is_not_the_jobs():
    table = (
        "Root Cause (first observed failure):\n[0]:\n  host      : n1\n  rank      : 4 (local_rank: 0)\n"
        "  exitcode  : -9 (pid: 640)"
    )
    assert [s.facts["reason"] for s in exits(table, KILL, host="n2")] == [None]
    assert [s.facts["reason"] for s in exits(table, KILL, host="n1")] == ["oom_kill"]


def test_a_loader_worker_that_was_killed_belongs_to_the_rank_that_missed_it():
    lines = [
        "Traceback (most recent call last):",
        '  File "/job/run.py", line 3, in main',
        "    batch = next(loader)",
        "RuntimeError: DataLoader worker (pid 640) is killed by signal: Killed. ",
    ]
    (found,) = exits("\n".join([f"[rank2]: {line}" for line in lines] + [KILL]))
    assert (found.scope.ranks, found.facts["loader_worker"]) == ([2], True)


@given(
    st.text(max_size=300), st.sampled_from([KILL, "oom-kill:constraint=", "exceeds the memory usage threshold of ", ""])
)
@settings(deadline=None)
def test_no_text_breaks_the_readers(text, known):
    for line in (known + text, text + known):
        killed_pid(line)
        kill_facts(line)
        node_facts(line)
