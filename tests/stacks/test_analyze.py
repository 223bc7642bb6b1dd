"""Comparison of ranks by their stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stacks.stack_inputs import BARRIER, LOADER, START, SYNC, USER, dump_text, read_text
from torchtriage.stacks.analyze import StackFindings, analyze

if TYPE_CHECKING:
    from torchtriage.report import Signal

WAIT = [*SYNC, *USER, *START]
LOAD = [*LOADER, "step (train.py:49)", *USER[1:], *START]
WORKER = ["_worker_loop (torch/utils/data/_utils/worker.py:349)", "Process.run (multiprocessing/process.py:108)"]


def judge(*stacks: list[str], names: list[str] | None = None, **how: Any) -> StackFindings:
    """Findings for ranks 0, 1, ... with these main-thread stacks."""
    dumps = [
        (names[rank] if names else f"rank_{rank}/stack.txt", read_text(dump_text(100 + rank, frames, **how)))
        for rank, frames in enumerate(stacks)
    ]
    return analyze(dumps, {})


def signal(findings: StackFindings, name: str) -> Signal:
    (found,) = [each for each in findings.signals if each.name == name]
    return found


def test_the_rank_that_loads_data_while_all_others_wait_is_the_culprit() -> None:
    findings = judge(WAIT, LOAD, WAIT, WAIT)
    assert findings.culprit_ranks == [1]
    loading, waiting = signal(findings, "stacks.data_loading"), signal(findings, "stacks.waiting_on_gpu")
    assert (loading.scope.ranks, waiting.scope.ranks) == ([1], [0, 2, 3])
    assert loading.facts == {
        "n_ranks": 4,
        "all_ranks": False,
        "peers_waiting": True,
        "where": "step (train.py:49)",
        "certain": True,
        "why": "waits for the DataLoader",
        "pids": [101],
    }
    assert waiting.facts["peers_waiting"] is False
    assert len(waiting.evidence) == 3
    assert [(e.artefact, e.where, e.quote) for e in loading.evidence] == [("rank_1/stack.txt", "6", LOADER[1])]


def test_when_every_rank_waits_nobody_is_the_culprit_and_it_is_said() -> None:
    findings = judge(WAIT, WAIT)
    assert findings.culprit_ranks == []
    assert signal(findings, "stacks.waiting_on_gpu").facts["all_ranks"] is True
    assert findings.notes == [
        "every rank waits for the device or in a collective: stacks alone cannot tell which rank is missing"
    ]


def test_python_code_that_may_be_a_device_wait_makes_nobody_a_culprit() -> None:
    findings = judge([*BARRIER, *USER], USER)
    assert findings.culprit_ranks == []
    assert signal(findings, "stacks.python_running").facts["certain"] is False
    assert "dump again with `py-spy dump --native" in findings.notes[0]


def test_a_rank_that_certainly_acts_is_the_culprit_beside_an_uncertain_one() -> None:
    assert judge([*BARRIER, *USER], USER, LOAD).culprit_ranks == [2]


def test_python_code_that_holds_the_gil_while_others_wait_is_the_culprit() -> None:
    dumps = [
        ("rank_0/stack.txt", read_text(dump_text(1, WAIT))),
        ("rank_1/stack.txt", read_text(dump_text(2, USER, status="active+gil"))),
    ]
    assert analyze(dumps, {}).culprit_ranks == [1]


def test_when_more_ranks_act_than_wait_nobody_stands_out() -> None:
    assert judge(WAIT, LOAD, LOAD).culprit_ranks == []


def test_ranks_that_one_line_called_into_different_functions_have_the_same_caller() -> None:
    for line, same in ((80, True), (81, False)):
        here = [*BARRIER, "for_data (train.py:60)", "both (train.py:80)", *USER[1:]]
        there = [*BARRIER, "for_experts (train.py:70)", f"both (train.py:{line})", *USER[1:]]
        found = signal(judge(here, here, there), "stacks.different_place")
        assert (found.scope.ranks, found.facts["same_caller"]) == ([2], same)


def test_a_waiting_rank_at_another_place_is_named_against_the_majority() -> None:
    other = [*BARRIER, "save (train.py:70)", *USER[1:]]
    findings = judge(WAIT, WAIT, other, WAIT)
    found = signal(findings, "stacks.different_place")
    assert found.scope.ranks == [2]
    assert found.facts == {
        "where": "save (train.py:70)", "majority_where": "step (train.py:50)", "n_places": 2, "by_rank_zero": False,
        "same_caller": True,
    }  # fmt: skip
    assert found.evidence[0].quote == "save (train.py:70)"
    assert signal(findings, "stacks.in_collective").facts["in_collective_call"] == "barrier"


def test_two_places_with_as_many_ranks_are_a_tie() -> None:
    found = signal(judge(WAIT, [*BARRIER, "save (train.py:70)", *USER[1:]]), "stacks.different_place")
    assert (found.scope.ranks, found.facts["tie"]) == ([0, 1], True)


def test_the_same_place_on_different_drivers_and_tools_is_one_group() -> None:
    site = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    fault = (
        "Thread 0x00007f11bb7fe740 (most recent call first):\n"
        f'  File "{site}", line 5030 in barrier\n'
        '  File "/workspace/train.py", line 50 in step\n  File "/workspace/train.py", line 90 in main\n'
    )
    dumps = [("rank_0/stack.txt", read_text(dump_text(1, [*BARRIER, *USER]))), ("rank_1/stack.txt", read_text(fault))]
    findings = analyze(dumps, {})
    assert [group.ranks for group in findings.groups] == [[0, 1]]
    assert not [each for each in findings.signals if each.name == "stacks.different_place"]


def test_the_native_dump_of_a_process_decides_over_the_plain_one() -> None:
    plain, native = read_text(dump_text(7, USER)), read_text(dump_text(7, WAIT))
    for dumps in ([("a.txt", plain), ("b.txt", native)], [("a.txt", native), ("b.txt", plain)]):
        findings = analyze(dumps, {7: 4})
        assert [(r.rank, r.pid, r.state) for r in findings.ranks] == [(4, 7, "waiting_on_gpu")]


@pytest.mark.parametrize(
    ("name", "command", "rank"),
    [
        ("stacks/rank_3/dump.txt", "python train.py", 3),
        ("a.txt", "python train.py --rank=5", 5),
        ("a.txt", "python train.py --local_rank 2", 2),
        ("a.txt", "python train.py", None),
    ],
)
def test_the_rank_comes_from_the_name_or_the_command(name: str, command: str, rank: int | None) -> None:
    assert analyze([(name, read_text(dump_text(7, WAIT, command=command)))], {}).ranks[0].rank == rank


def test_local_ranks_of_two_nodes_are_not_taken_for_ranks() -> None:
    dumps = [
        (f"node{n}/a.txt", read_text(dump_text(7 + n, WAIT, command="python train.py --local-rank=0"))) for n in (0, 1)
    ]
    findings = analyze(dumps, {})
    assert [(r.rank, r.pid) for r in findings.ranks] == [(None, 7), (None, 8)]
    assert signal(findings, "stacks.waiting_on_gpu").facts["pids"] == [7, 8]


def test_two_processes_with_one_pid_on_two_hosts_stay_two() -> None:
    dumps = [(f"node{n}/stacks/pyspy-pid7.txt", read_text(dump_text(7, WAIT))) for n in (0, 1)]
    assert len(analyze(dumps, {}).ranks) == 2


def test_a_dataloader_worker_is_no_rank_and_tells_what_its_rank_waits_for() -> None:
    worker = ["read (libc.so.6)", "Shards.__getitem__ (dataset.py:30)",
              "_MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:52)", *WORKER, *USER]  # fmt: skip
    idle = ["poll (libc.so.6)", "Connection._poll (multiprocessing/connection.py:440)", *WORKER, *USER]
    text = dump_text(7, LOAD) + dump_text(8, worker, parent=7) + dump_text(9, idle, parent=7)
    findings = analyze(
        [("rank_0/stack.txt", read_text(text)), ("rank_1/stack.txt", read_text(dump_text(10, WAIT)))], {}
    )
    assert [(r.rank, r.pid, r.state) for r in findings.ranks] == [
        (0, 7, "data_loading"),
        (1, 10, "waiting_on_gpu"),
    ]
    assert signal(findings, "stacks.data_loading").facts["worker_state"] == "file_io"


def test_launchers_and_helpers_are_left_out_and_counted() -> None:
    agent = ["_invoke_run (torch/distributed/elastic/agent/server/api.py:900)", "main (torch/distributed/run.py:900)"]
    tracker = "python -c from multiprocessing.resource_tracker import main;main(4)"
    dumps = [
        ("a.txt", read_text(dump_text(1, agent))),
        ("b.txt", read_text(dump_text(2, ["main (multiprocessing/resource_tracker.py:1)"], command=tracker))),
        ("c.txt", read_text(dump_text(3, WAIT))),
    ]
    findings = analyze(dumps, {3: 0})
    assert [r.pid for r in findings.ranks] == [3]
    assert findings.notes[-2:] == [
        "1 launcher process(es) were left out: they only wait for the ranks",
        "1 helper process(es) were left out: they are not ranks",
    ]


def test_ranks_that_multiprocessing_spawned_are_ranks() -> None:
    command = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5) --multiprocessing-fork"
    frames = [*SYNC, "train (train.py:9)", "_wrap (torch/multiprocessing/spawn.py:90)"]
    assert len(analyze([("a.txt", read_text(dump_text(3, frames, command=command)))], {}).ranks) == 1


def test_a_thousand_ranks_give_few_groups_and_few_quotes() -> None:
    findings = judge(*[WAIT] * 1000, LOAD)
    assert findings.culprit_ranks == [1000]
    assert [len(group.ranks) for group in findings.groups] == [1000, 1]
    assert all(len(each.evidence) <= 3 for each in findings.signals)


def test_a_dump_that_was_written_as_the_process_ended_says_so() -> None:
    text = (
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
        + '  File "/w/a.py", line 1 in <module>\n'
    )
    findings = analyze([("rank_1/stderr.txt", read_text(text))], {})
    assert "rank 1 was dumped as it ended: Fatal Python error: Aborted" in findings.notes


FORKED = [
    "BaseProcess.run (multiprocessing/process.py:108)",
    "Popen._launch (multiprocessing/popen_fork.py:71)",
    "rebuild (train.py:30)",
    *USER,
]
JOINS = ["wait4 (libc.so.6)", "Popen.poll (multiprocessing/popen_fork.py:27)",
         "BaseProcess.join (multiprocessing/process.py:149)", "rebuild (train.py:31)", *USER]  # fmt: skip


@pytest.mark.parametrize(("inner", "told"), [
    (["build (train.py:12)"], "idle"),
    (["Queue.get (multiprocessing/queues.py:113)", "serve (train.py:20)"], None),
    ([], None),
])  # fmt: skip
def test_a_forked_process_that_waits_amid_its_work_is_told_of_the_rank_that_waits_for_it(
    inner: list[str], told: str | None
) -> None:
    dumps = [
        ("stack-rank0.txt", read_text(dump_text(10, [*SYNC, *USER]))),
        ("rank01-pid11.txt", read_text(dump_text(11, JOINS))),
        ("rank01-pid11-child12.txt", read_text(dump_text(12, [*inner, *FORKED], status="idle"))),
    ]
    facts = signal(analyze(dumps, {}), "stacks.lock_wait").facts
    assert facts.get("child_state") == told
    assert facts.get("child_where") == ("build (train.py:12)" if told else None)
