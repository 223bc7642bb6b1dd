"""What one observation says more closely is told in place of the playbook entry's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from torchtriage.knowledge.load import load_playbook
from torchtriage.verdict.compose import compose
from torchtriage.verdict.decide import decide
from torchtriage.verdict.findings import Findings, Observation

if TYPE_CHECKING:
    from torchtriage.report import Verdict

PEERS = Observation("stacks.in_collective", frozenset({0, 1, 3}), {"peers_waiting": False, "certain": True}, ())


def seen(name: str, *, hosts: tuple[str, ...] = (), ranks: tuple[int, ...] = (2,), **facts: Any) -> Observation:
    return Observation(name, frozenset(ranks), facts, (), hosts=hosts)


def answer(*observed: Observation) -> Verdict:
    findings = Findings(observations=[PEERS, *observed], ranks={0, 1, 2, 3})
    book = load_playbook()
    return compose("triage", book, decide(book, findings.observations, findings.ranks), findings, [])


def in_a_file_call() -> Observation:
    return seen("stacks.file_io", where="load (train.py:9)", peers_waiting=True, certain=True, why="is in a file call")


def other_end(kind: str, **facts: Any) -> Observation:
    details = {"call": "read", "path": "pipe:[12]", "role": "rank", "looks": 2, "pids": [4711], "writes": False}
    return seen("proc.waits_for_other_end", hosts=("node1",), **{**details, "kind": kind, **facts})


def test_without_facts_of_the_process_the_entry_speaks_for_itself() -> None:
    verdict = answer(in_a_file_call())
    entry = load_playbook().entries["storage-read-blocks-one-rank"]
    assert (verdict.failure_mode, verdict.cause, verdict.fix) == (entry.id, entry.cause, list(entry.fix))


def test_a_rank_that_opens_a_fifo_waits_for_its_other_end_and_not_for_a_file_server() -> None:
    fifo = seen(
        "proc.blocked_in_open_of_fifo", hosts=("node1",), path="/data/x.fifo", role="rank", looks=2, pids=[4711]
    )
    verdict = answer(in_a_file_call(), fifo)
    assert verdict.failure_mode == "storage-read-blocks-one-rank"
    assert verdict.summary.startswith("Rank 2 waits in the open of the named pipe /data/x.fifo until somebody opens")
    assert "network" not in verdict.cause
    assert "On node1: `fuser -v` on /data/x.fifo" in verdict.fix[0]
    assert "pid 4711" in verdict.fix[0]


@pytest.mark.parametrize(
    ("kind", "facts", "words"),
    [
        ("pipe", {}, "waits in read until somebody writes into the pipe"),
        ("pipe", {"call": "write", "writes": True}, "waits in write until somebody reads from the pipe"),
        ("terminal", {"path": "/dev/pts/3"}, "waits for keyboard input at /dev/pts/3"),
    ],
)
def test_a_rank_that_waits_at_a_pipe_or_terminal_is_said_to(kind: str, facts: dict[str, Any], words: str) -> None:
    verdict = answer(in_a_file_call(), other_end(kind, **facts))
    assert verdict.failure_mode == "storage-read-blocks-one-rank"
    assert words in verdict.summary
    assert "server or client" not in verdict.cause


def test_a_read_of_a_socket_is_no_storage_fault() -> None:
    verdict = answer(in_a_file_call(), other_end("socket", path="socket:[9]"))
    assert verdict.failure_mode == "logging-call-blocks-one-rank"
    assert "storage-read-blocks-one-rank" in {r.failure_mode for r in verdict.ruled_out}


def test_a_stopped_rank_is_continued_by_its_pid() -> None:
    stopped = seen("proc.stopped", hosts=("node1",), state="T", frozen=False, role="rank", looks=2, pids=[4711])
    verdict = answer(stopped)
    assert verdict.failure_mode == "process-stopped-by-signal"
    assert verdict.fix[0].startswith("On node1: `kill -CONT 4711` lets rank 2 run on")


def test_from_a_stack_dump_alone_the_pid_is_known_too() -> None:
    verdict = answer(seen("stacks.stopped", peers_waiting=True, certain=True, pids=[4711]))
    assert verdict.fix[0].startswith("`kill -CONT 4711` on the node of rank 2")


def test_a_traced_or_frozen_rank_is_freed_in_another_way() -> None:
    facts = {"hosts": ("node1",), "role": "rank", "looks": 2, "pids": [4711]}
    traced = answer(seen("proc.stopped", state="t", frozen=False, tracer_pid=77, tracer_name="gdb", **facts))
    assert traced.summary.startswith("Rank 2 is held by gdb (pid 77)")
    assert "kill 77" in traced.fix[0]
    assert "docker unpause" in answer(seen("proc.stopped", state="S", frozen=True, **facts)).fix[0]


def test_pids_of_two_hosts_stand_in_no_command() -> None:
    facts = {"state": "T", "frozen": False, "role": "rank", "looks": 2}
    verdict = answer(
        seen("proc.stopped", hosts=("a",), ranks=(2,), pids=[7], **facts),
        seen("proc.stopped", hosts=("b",), ranks=(3,), pids=[8], **facts),
    )
    assert verdict.failure_mode == "process-stopped-by-signal"
    assert not [fix for fix in verdict.fix if "-CONT 7" in fix]
    assert any("kill -CONT PID" in fix for fix in verdict.fix)


def test_where_every_rank_waits_in_a_collective_none_is_said_to_wait_for_data() -> None:
    everywhere = seen("stacks.in_collective", ranks=(0, 1, 2, 3), all_ranks=True, certain=True)
    earlier = seen("log.stopped_early", ranks=(0, 1, 3), last_step=4, peers_last_step=5)
    findings = Findings(observations=[everywhere, earlier], ranks={0, 1, 2, 3})
    book = load_playbook()
    decision = decide(book, findings.observations, findings.ranks)
    assert "dataloader-worker-blocked-in-read" not in {a.entry.id for a in decision.assessments}
