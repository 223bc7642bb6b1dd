"""Dumping all processes of a job at once, as files of a bundle and their entries in its manifest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stacks.live_processes import SLEEPER, WORKER, Process, need_ptrace, running, state, within
from torchtriage.artefacts.inputs import open_inputs
from torchtriage.stacks.probe import (
    MAX_CHILDREN_OF_A_RANK,
    dump_file,
    dump_processes,
    process_name,
    thread_cpu_seconds,
)
from torchtriage.stacks.tool import dump_stacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.bundle.manifest import Item


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    need_ptrace()
    return tmp_path / "bundle" / "node1" / "stacks"


def by_path(items: Sequence[Item]) -> dict[str, Item]:
    return {item.path: item for item in items}


def test_every_rank_and_child_leaves_a_dump_under_a_name_that_says_whose_it_is(folder: Path) -> None:
    with running(SLEEPER, "1") as first, running(SLEEPER, "0") as second, running(SLEEPER, "0") as child:
        processes = [
            Process(child.pid, "dataloader worker", None, second.pid),
            Process(first.pid, rank=0),
            Process(second.pid, rank=11),
        ]
        items = by_path(dump_processes(processes, folder, host="node1"))
        names = [
            f"node1/stacks/rank00-pid{first.pid}.json",
            f"node1/stacks/rank11-pid{second.pid}.json",
            f"node1/stacks/rank11-pid{second.pid}-child{child.pid}.json",
        ]
        assert list(items) == names
        item = items[names[1]]
        assert (item.kind, item.rank, item.pid, item.host, item.ok, item.error, item.redacted) == (
            "stack_dump", 11, second.pid, "node1", True, None, True,
        )  # fmt: skip
        assert item.command[1:] == ["dump", "--json", "--native", "--pid", str(second.pid)]
        assert "--native" not in items[names[2]].command
        assert all((folder.parents[1] / name).stat().st_mode & 0o777 == 0o600 for name in names)
    report = dump_stacks([str(folder.parents[1])])
    assert [(r.rank, r.pid, r.state) for r in report.ranks] == [
        (0, first.pid, "lock_wait"),
        (11, second.pid, "lock_wait"),
    ]
    assert any("1 helper process(es) were left out" in gap for gap in report.gaps)


def test_a_stopped_rank_is_found_stopped_with_its_frames(folder: Path) -> None:
    with running(SLEEPER, "0") as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert within(5, lambda: state(process.pid) == "T")
        items = dump_processes([Process(process.pid, rank=3)], folder, host="node1")
        assert state(process.pid) == "T"
    name = f"node1/stacks/rank03-pid{process.pid}"
    assert [item.path for item in items] == [f"{name}.stopped.txt", f"{name}.json"]
    report = dump_stacks([str(folder.parents[1])])
    assert [(r.rank, r.state) for r in report.ranks] == [(3, "stopped")]
    assert any("waits_for_ever" in frame for frame in report.ranks[0].frames)
    assert [(e.where, e.quote) for e in report.evidence] == [("2", "State: T (stopped)")]


def test_a_second_look_tells_who_stands_who_spins_and_who_moves(folder: Path) -> None:
    spinner = 'print("ready", flush=True)\nwhile True: pass\n'
    with running(SLEEPER, "0") as still, running(spinner) as spinning:
        processes = [Process(still.pid, rank=0), Process(spinning.pid, rank=1)]
        items = dump_processes(processes, folder, host="node1", again_after_s=2.0)
    assert [item.path.rpartition("/")[2] for item in items if "/again/" in item.path] == [
        f"rank00-pid{still.pid}.json",
        f"rank01-pid{spinning.pid}.json",
    ]
    report = dump_stacks([str(folder.parents[1])])
    assert len(report.ranks) == 2
    assert "between two looks rank 0-1 stood still" in report.summary


def test_a_rank_that_cannot_be_read_leaves_the_reason_and_what_py_spy_said(folder: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import os; os.execv('/bin/sleep', ['python3.99', '600'])"])
    try:
        assert within(5, lambda: _command(other.pid).startswith(b"python3.99"))
        (item,) = dump_processes([Process(other.pid, rank=2)], folder, host="node1")
    finally:
        other.kill()
        other.wait()
    assert (item.ok, item.path) == (False, f"node1/stacks/rank02-pid{other.pid}.txt")
    assert item.error == "py-spy finds no Python in it"
    assert "is not Python, and only Python can be dumped: give the pid" in (item.reason or "")
    assert "backtrace" not in (folder.parents[1] / item.path).read_text(encoding="utf-8")
    assert [(r.rank, r.state) for r in dump_stacks([str(folder)]).ranks] == [(2, "unreadable")]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_children_that_are_not_python_are_not_tried(folder: Path) -> None:
    other = subprocess.Popen(["/bin/sleep", "600"])
    try:
        with running(SLEEPER, "0") as process:
            assert within(5, lambda: b"sleep" in _command(other.pid))
            processes = [Process(process.pid), Process(other.pid, "helper", 0, process.pid)]
            assert len(dump_processes(processes, folder, host="node1")) == 1
    finally:
        other.kill()
        other.wait()


def test_children_beyond_the_bound_are_left_out_and_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.stacks.probe._is_python", lambda _pid: True)
    with running(SLEEPER, "0") as process:
        n = MAX_CHILDREN_OF_A_RANK + 3
        children = [Process(1 << 30 | each, "helper", 0, process.pid) for each in range(n)]
        items = dump_processes([Process(process.pid), *children], folder, host="node1", native=False)
    assert items[0].ok
    assert items[-1].error == "3 DataLoader workers and helpers were not dumped"
    assert {item.reason for item in items[1:-1]} == {"it ended after it was found and before it was looked at"}


def test_a_file_that_is_there_already_is_not_overwritten(folder: Path) -> None:
    with running(SLEEPER, "0") as process:
        planted = folder / f"{process_name(0, process.pid)}.json"
        planted.parent.mkdir(parents=True)
        planted.symlink_to(folder.parent / "elsewhere")
        (item,) = dump_processes([Process(process.pid)], folder, host="node1")
    assert not item.ok
    assert not (folder.parent / "elsewhere").exists()


def test_without_py_spy_the_manifest_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.stacks.probe.find_py_spy", lambda: None)
    (item,) = dump_processes([Process(os.getpid())], tmp_path / "n" / "stacks", host="n")
    assert not item.ok
    assert "pip install" in (item.reason or "")
    assert dump_processes([], tmp_path / "n" / "stacks", host="n") == []


def test_secrets_in_frames_are_masked_and_values_of_variables_dropped() -> None:
    thread = {"pid": 1, "thread_name": "token=hf_abcdefghijklmnop", "os_thread_id": 9, "owns_gil": True, "frames": [
        {"name": "f", "filename": "/w/sk-abcdefghijklmnop.py", "module": None, "short_filename": "a.py", "line": 1,
         "locals": [{"name": "key", "repr": "'sk-abcdefghijklmnop'"}]}]}  # fmt: skip
    data = dump_file(json.dumps([thread]).encode(), {9: 1.5}, 1000.0)
    assert data is not None
    assert b"abcdefghijklmnop" not in data
    (read,) = json.loads(data)
    assert (read["cpu_seconds"], read["time_s"], "locals" in read["frames"][0]) == (1.5, 1000.0, False)


@pytest.mark.parametrize("output", [b"", b"[]", b"{}", b"[1]", b"[" * 100_000, b"nonsense", b'[{"frames":5},3,null]'])
def test_what_is_no_list_of_threads_is_no_dump(output: bytes) -> None:
    assert dump_file(output, {}, 0.0) is None


def test_the_cpu_seconds_of_a_thread_grow_while_it_computes() -> None:
    with running(WORKER, "squares") as process:
        begin = thread_cpu_seconds(process.pid)[process.pid]
        assert within(30, lambda: thread_cpu_seconds(process.pid)[process.pid] > begin)
    assert thread_cpu_seconds(process.pid) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("n", "limit_s"), [(16, 2.5), (64, 5.0)])
def test_one_look_at_all_ranks_of_a_node_takes_seconds(tmp_path: Path, n: int, limit_s: float) -> None:
    need_ptrace()
    with ExitStack() as stack:
        processes = [Process(stack.enter_context(running(SLEEPER, "3")).pid, rank=rank) for rank in range(n)]
        best = float("inf")
        # Others load the machine: of a few looks the fastest counts.
        for attempt in range(3):
            begin = time.perf_counter()
            items = dump_processes(processes, tmp_path / str(attempt) / "stacks", host="node1")
            best = min(best, time.perf_counter() - begin)
            assert all(item.ok and "--native" in item.command for item in items)
            if best < limit_s:
                break
        print(f"one look at {n} processes with native frames: {best:.2f} s")
        assert best < limit_s


def test_an_interrupt_ends_the_dumpers_and_leaves_nobody_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = folder.parents[2] / "py-spy"
    stuck.write_text(
        f"#!{sys.executable}\nimport os, sys, time\nos.kill(int(sys.argv[-1]), 19)\ntime.sleep(600)\n",
        encoding="utf-8",
    )
    stuck.chmod(0o700)
    monkeypatch.setattr("torchtriage.stacks.probe.find_py_spy", lambda: str(stuck))
    with running(SLEEPER, "0") as process:

        def interrupt() -> None:
            within(20, lambda: state(process.pid) == "T")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            dump_processes([Process(process.pid)], folder, host="node1", timeout_s=60)
        thread.join()
        assert within(5, lambda: state(process.pid) == "S")


ODD: dict[str, object] = {"frames": 5, "thread_id": "x", "owns_gil": [], "active": {}, "thread_name": 7}


def program(folder: Path, source: str) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{source}\n", encoding="utf-8")
    path.chmod(0o700)
    return str(path)


def test_values_of_another_type_and_entries_that_are_no_threads_are_dropped() -> None:
    whole: dict[str, object] = {
        **ODD,
        "os_thread_id": [],
        "frames": [{"name": "f", "line": "x", "odd": 1}, 4, {"name": None}, {}],
    }
    data = dump_file(json.dumps([whole, ODD, 3, None]).encode(), {9: 1.5}, 7.0)
    assert json.loads(data or b"") == [{"frames": [{"name": "f"}], "cpu_seconds": None, "time_s": 7.0}]


@pytest.mark.parametrize("odd", [json.dumps([ODD, 3, None]), '["x"]', "[[[[", "[1e999]", "[]"])
def test_one_odd_dump_costs_no_other_process_its_stack(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    frame = {"name": "step", "filename": "/w/train.py", "line": 3}
    good = json.dumps([{"pid": 1, "os_thread_id": 1, "frames": [frame]}])
    with running(SLEEPER, "0") as first, running(SLEEPER, "0") as second:
        source = f"print({odd!r} if sys.argv[-1] == '{first.pid}' else {good!r})"
        monkeypatch.setattr("torchtriage.stacks.probe.find_py_spy", lambda: program(tmp_path, source))
        items = dump_processes([Process(first.pid, rank=0), Process(second.pid, rank=1)], folder, host="node1")
    assert [(item.rank, item.ok) for item in items] == [(0, False), (1, True)]
    assert items[0].error == "what py-spy wrote is no list of threads"


def test_a_fault_at_one_process_is_told_of_that_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_pid: int) -> dict[int, float]:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr("torchtriage.stacks.probe.thread_cpu_seconds", fails)
    with running(SLEEPER, "0") as process:
        (item,) = dump_processes([Process(process.pid, rank=5)], folder, host="node1", native=False)
    assert (item.rank, item.ok, item.error) == (5, False, "ZeroDivisionError: odd")


def test_a_py_spy_that_hangs_is_tried_twice_and_not_for_a_second_look(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = tmp_path / "tries"
    source = f"open({str(tries)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\ntime.sleep(600)"
    monkeypatch.setattr("torchtriage.stacks.probe.find_py_spy", lambda: program(tmp_path, source))
    with running(SLEEPER, "0") as process:
        (item,) = dump_processes([Process(process.pid)], folder, host="node1", timeout_s=1.0, again_after_s=0.0)
    assert (item.ok, item.error) == (False, "no answer within 1 s")
    assert [line.split()[2:-2] for line in tries.read_text(encoding="utf-8").splitlines()] == [["--native"], []]
    with open_inputs([str(folder.parents[1])]) as inputs:
        assert [artefact.kind for artefact in inputs.artefacts] == ["stack_dump"]
    report = dump_stacks([str(folder.parents[1])])
    assert [(rank.rank, rank.state) for rank in report.ranks] == [(0, "unreadable")]
    assert any("the stack could not be had: no answer within 1 s" in gap for gap in report.gaps)


def test_what_is_known_of_a_process_without_a_stack_is_recognised_however_much_py_spy_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "sys.stderr.write('\\u00e9 odd words\\n' * 5000)\nsys.exit(1)"
    monkeypatch.setattr("torchtriage.stacks.probe.find_py_spy", lambda: program(tmp_path, source))
    with running(SLEEPER, "0") as process:
        dump_processes([Process(process.pid)], folder, host="node1")
    assert [(rank.rank, rank.state) for rank in dump_stacks([str(folder.parents[1])]).ranks] == [(0, "unreadable")]


@pytest.mark.parametrize(
    "output",
    [
        b'[{"frames": 5, "thread_id":"x","owns_gil":[],"active":{},"thread_name":7},3,null]',
        b"[[]]",
        b"{}",
        b"null",
    ],
)
def test_an_answer_of_another_shape_is_no_dump(output: bytes) -> None:
    assert dump_file(output, {}, 1.0) is None


def test_a_thread_with_an_odd_number_has_no_cpu_time() -> None:
    data = dump_file(b'[{"frames": [], "os_thread_id": [1]}]', {1: 2.0}, 1.0)
    assert data is not None
    assert json.loads(data)[0]["cpu_seconds"] is None
