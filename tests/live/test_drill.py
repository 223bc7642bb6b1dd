"""Faults on demand: each one starts for real, shows what it is to show where it is to show it, and leaves nothing."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.drill.launch import HERE, Drill, Fault, fault_named, has_ended, load_faults, started

from torchtriage.evals.case import load_case

FAULTS = load_faults()
IN_EVERY_RUN = "file-wait"
PLAYBOOK = HERE.parents[2] / "playbook"
PY_SPY = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

# Two jobs beside each other would make each other slow.
alone = pytest.mark.xdist_group("live")
needs_torch = pytest.mark.skipif(
    not sys.platform.startswith("linux") or importlib.util.find_spec("torch") is None,
    reason="starts training jobs: needs Linux and torch",
)


def test_each_fault_has_a_number_and_a_name_of_its_own_and_a_truth_that_the_playbook_knows() -> None:
    known = {path.stem for path in PLAYBOOK.glob("*/*.md")} | {"healthy", "insufficient-evidence"}

    assert len({fault.number for fault in FAULTS}) == len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {mode for fault in FAULTS for mode in (fault.failure_mode, *fault.acceptable)} <= known


def test_the_same_fault_is_found_by_name_and_by_number() -> None:
    assert fault_named("killed") == fault_named("13")


def test_no_name_in_the_program_gives_a_fault_away() -> None:
    telling = {"blocked", "dead", "deadlock", "fail", "fault", "freeze", "hang", "held", "hold", "kill", "skip", "slow",
               "stall", "stop", "straggler", "stuck", "swallow", "uneven"}  # fmt: skip
    tree = ast.parse((HERE / "job.py").read_text(encoding="utf-8"))

    functions = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}

    assert len(functions) > 20
    assert not [name for name in functions if telling & set(name.lower().split("_"))]


def test_no_recording_gives_its_fault_away(cases: Path) -> None:
    recorder = "python evals/faults/drill/record.py OUT.tar.zst "
    recorded: set[str] = set()
    for folder in sorted(cases.iterdir()):
        case = load_case(folder)
        if not (case.provenance.command or "").startswith(recorder):
            continue
        fault = fault_named((case.provenance.command or "").removeprefix(recorder))
        recorded.add(fault.name)
        assert case.expected.failure_mode == fault.failure_mode
        assert case.expected.acceptable == list(fault.acceptable)
        assert case.expected.culprits.ranks == fault.culprits(1, 2)
        # A name of one word, such as "stopped", is also what software says.
        telling = [b"FAULT_RANK", b"FAULT=", *([fault.name.encode()] if "-" in fault.name else [])]
        for path in (path for path in (folder / case.inputs).rglob("*") if path.is_file()):
            content = path.read_bytes()
            assert not [word for word in telling if word in content], path
    assert recorded == {fault.name for fault in FAULTS}


@alone
@needs_torch
@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, id=each.name, marks=() if each.name == IN_EVERY_RUN else pytest.mark.slow) for each in FAULTS],
)
def test_a_fault_gets_into_its_state_and_no_process_of_it_stays(fault: Fault, tmp_path: Path) -> None:
    if fault.needs == "root" and os.geteuid():
        pytest.skip("mounts a file system: needs root")

    with started(fault, tmp_path) as drill:
        ranks = drill.find_ranks()
        if fault.state("gloo") in ("hangs", "runs"):
            assert sorted(ranks) == [0, 1, 2, 3]
            _stand_where_told(drill, ranks)
        for rank in range(4):
            assert f"[rank{rank}]".encode() in drill.log_of(rank)

    assert not [pid for pid in drill.ranks.values() if not has_ended(pid)]


@alone
@needs_torch
@pytest.mark.slow
def test_the_job_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "launch.py"), "ordinary-run", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        said = starter.stdout.readline()
        starter.send_signal(signal.SIGKILL)
    pids = [int(part) for part in said.partition("{")[2].partition("}")[0].replace(":", ",").split(",")[1::2]]
    assert len(pids) == 4

    deadline = time.monotonic() + 20
    while not all(has_ended(pid) for pid in pids):
        assert time.monotonic() < deadline
        os.sched_yield()


def _stand_where_told(drill: Drill, ranks: dict[int, int]) -> None:
    if PY_SPY is None:
        pytest.skip("py-spy is not installed")
    for rank, pid in ranks.items():
        wanted = drill.fault.at if rank in drill.culprits or not drill.culprits else drill.fault.peers_at
        if not wanted:
            continue
        dump = [PY_SPY, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        # Without stopping the process a look can fail while it moves, so that several may be needed.
        deadline = time.monotonic() + 20
        functions: set[str] = set()
        while not functions & set(wanted):
            assert time.monotonic() < deadline, (rank, functions)
            looked = subprocess.run(dump, capture_output=True, timeout=20, check=False)
            threads = json.loads(looked.stdout) if looked.returncode == 0 else []
            functions = {
                frame["name"].rpartition(".")[2]
                for thread in threads
                if thread["os_thread_id"] == pid
                for frame in thread["frames"]
            }
