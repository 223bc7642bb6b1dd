"""A snapshot asked of a running process; Python's own way of asking is replaced, for it needs 3.14."""

import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest

from torchtriage import memory_snapshot
from torchtriage.bundle.processes import NoJobError
from torchtriage.errors import BadCallError
from torchtriage.memory.live import take_snapshot

SNAPSHOT = {"segments": [], "device_traces": [[]]}


def run_here(pid: int, script: str) -> None:
    """Run the script as the asked process would."""
    del pid
    exec(Path(script).read_text(encoding="utf-8"), {})  # it is our own


def with_torch(monkeypatch: pytest.MonkeyPatch, *, initialised: bool) -> None:
    def dump(path: str) -> None:
        Path(path).write_bytes(pickle.dumps(SNAPSHOT))

    memory = types.SimpleNamespace(_dump_snapshot=dump)
    cuda = types.SimpleNamespace(is_initialized=lambda: initialised, memory=memory)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))


def test_where_python_cannot_ask_the_reason_and_another_way_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    with pytest.raises(BadCallError, match=r"3\.14.*_dump_snapshot"):
        memory_snapshot(pid=os.getpid())


def test_a_process_that_is_not_there_is_said(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(NoJobError, match=str(ended.pid)):
        take_snapshot(ended.pid, tmp_path)


def test_the_snapshot_that_the_process_writes_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "remote_exec", run_here, raising=False)
    with_torch(monkeypatch, initialised=True)
    path = take_snapshot(os.getpid(), tmp_path)
    assert pickle.loads(path.read_bytes()) == SNAPSHOT  # written above
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


def test_a_process_without_cuda_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "remote_exec", run_here, raising=False)
    with_torch(monkeypatch, initialised=False)
    with pytest.raises(BadCallError, match="no CUDA in this process"):
        take_snapshot(os.getpid(), tmp_path)


def test_a_process_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "remote_exec", lambda _pid, _script: None, raising=False)
    with pytest.raises(BadCallError, match="did not answer"):
        take_snapshot(os.getpid(), tmp_path, wait_s=0.1)


def test_a_refusal_of_the_system_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_pid: int, _script: str) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(sys, "remote_exec", refuse, raising=False)
    with pytest.raises(BadCallError, match="not permitted"):
        take_snapshot(os.getpid(), tmp_path)
