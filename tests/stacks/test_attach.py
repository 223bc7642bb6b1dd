"""Attaching to real processes: what is read, what stands in the way, and that nobody stays stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stacks.live_processes import (
    ANSWERER,
    SLEEPER,
    SLEEPS_DEEPLY,
    answers,
    environment_of_tests,
    need_ptrace,
    running,
    state,
    within,
)
from torchtriage.stacks import guard as guard_script
from torchtriage.stacks.attach import Guard, find_py_spy, look_at, run_guarded
from torchtriage.stacks.obstacles import obstacle, without_stack
from torchtriage.stacks.refusals import in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchtriage.stacks.attach import Look

# Attaches again and again until it is killed; says when it has begun.
DRIVER = """
import sys
from torchtriage.stacks.attach import Guard, look_at

pid, py_spy = int(sys.argv[1]), sys.argv[2]
with Guard() as guard:
    print("ready", flush=True)
    while True:
        look_at(pid, guard, py_spy=py_spy, timeout_s=30)
"""
# A dumper as bad as can be: it leaves its target stopped and does not end.
STOPPER = """#!{python}
import os, signal, sys, time
os.kill(int(sys.argv[-1]), signal.SIGSTOP)
{ignore}
time.sleep(600)
"""


@pytest.fixture
def guard() -> Iterator[Guard]:
    need_ptrace()
    with Guard() as entered:
        yield entered


def look(pid: int, guard: Guard, **how: object) -> Look:
    py_spy = find_py_spy()
    assert py_spy is not None
    return look_at(pid, guard, py_spy=py_spy, **how)  # type: ignore[arg-type]


def frames_of(look: Look, thread_name: str = "MainThread") -> list[str]:
    assert look.output is not None
    (thread,) = [thread for thread in json.loads(look.output) if thread["thread_name"] == thread_name]
    return [frame["name"] for frame in thread["frames"]]


def stopper(folder: Path, *, stubborn: bool = False) -> str:
    path = folder / "py-spy"
    ignore = "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)" if stubborn else ""
    path.write_text(STOPPER.format(python=sys.executable, ignore=ignore), encoding="utf-8")
    path.chmod(0o700)
    return str(path)


def test_one_look_gives_python_and_native_frames_of_all_threads(guard: Guard) -> None:
    with running(SLEEPER, "2") as process:
        seen = look(process.pid, guard)
        frames = frames_of(seen)
        assert (seen.how, seen.error, seen.stopped) == ("native", None, None)
        assert "waits_for_ever" in frames
        assert frames.index("waits_for_ever") > 0
        assert "waits_for_ever" in frames_of(seen, "helper-1")
        assert "--locals" not in seen.command
        assert "--subprocesses" not in seen.command


def test_a_child_is_read_without_native_frames(guard: Guard) -> None:
    with running(SLEEPER, "0") as process:
        seen = look(process.pid, guard, native=False)
        assert seen.how == "python"
        assert "--native" not in seen.command


def test_a_stopped_process_is_read_as_it_is_and_not_continued(guard: Guard) -> None:
    with running(SLEEPER, "0") as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert within(5, lambda: state(process.pid) == "T")
        seen = look(process.pid, guard)
        assert (seen.how, seen.stopped) == ("nonblocking", "T (stopped)")
        assert "waits_for_ever" in frames_of(seen)
        assert state(process.pid) == "T"


def test_a_process_that_is_traced_already_is_read_while_it_runs(guard: Guard) -> None:
    py_spy = find_py_spy()
    assert py_spy is not None
    with running(SLEEPER, "0") as process, running(TRACER, str(process.pid)):
        seen = look(process.pid, guard)
        assert (seen.how, seen.stopped) == ("nonblocking", None)
        assert guard_script.tracer_of(process.pid)


TRACER = """
import ctypes, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0, ctypes.get_errno()  # PTRACE_SEIZE stops nobody
print("ready", flush=True)
threading.Event().wait()
"""


def test_a_process_that_sleeps_where_nothing_can_stop_it_is_read_while_it_does(guard: Guard) -> None:
    with running(SLEEPS_DEEPLY) as process:
        assert within(5, lambda: state(process.pid) == "D")
        seen = look(process.pid, guard, timeout_s=60)
        assert (seen.how, seen.error) == (
            "nonblocking",
            "not stopped: a thread of it sleeps in the kernel (state D)",
        )
        assert "state D" in (seen.reason or "")
        assert b"in_the_kernel" in (seen.output or b"")
        assert state(process.pid) == "D"


def test_a_dumper_that_waits_for_a_thread_that_cannot_be_stopped_goes_on_without_stopping(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True])
    monkeypatch.setattr("torchtriage.stacks.attach._sleeps_deeply", lambda _pid: next(answers))
    with running(SLEEPS_DEEPLY) as process:
        assert within(5, lambda: state(process.pid) == "D")
        seen = look(process.pid, guard, timeout_s=0.5)
        assert (seen.how, seen.error) == ("nonblocking", "no answer within 0.5 s")
        assert b"in_the_kernel" in (seen.output or b"")


def test_another_process_with_the_same_number_is_left_alone(guard: Guard) -> None:
    with running(SLEEPER, "0") as process:
        seen = look(process.pid, guard, start_ticks=1)
        assert (seen.command, seen.output, seen.error) == ([], None, "the process has ended")


def test_a_process_that_is_gone_is_said_to_have_ended(guard: Guard) -> None:
    with running(SLEEPER, "0") as process:
        pass
    seen = look(process.pid, guard)
    assert (seen.output, seen.reason) == (None, "the process has ended")


def test_what_is_not_python_is_said_to_be_none(guard: Guard) -> None:
    other = subprocess.Popen(["/bin/sleep", "600"])
    try:
        assert within(5, lambda: Path(f"/proc/{other.pid}/exe").readlink().name != Path(sys.executable).resolve().name)
        seen = look(other.pid, guard)
        assert seen.output is None
        name = Path(f"/proc/{other.pid}/exe").readlink().name
        assert (
            seen.reason == f"{name} is not Python, and only Python can be dumped: give the pid of a rank's own process"
        )
        assert seen.error == "Error: Failed to find python version from target process"
    finally:
        other.kill()
        other.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as another user")
def test_another_users_process_needs_root(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'"
    with running(SLEEPER, "0") as process:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        assert obstacle(process.pid, text) == (
            "the process belongs to user 0 and this is user 4711: run this as root or as that user"
        )


def test_a_missing_capability_of_a_container_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.stacks.obstacles._yama", lambda: None)
    monkeypatch.setattr("torchtriage.stacks.obstacles._has_sys_ptrace", lambda: False)
    monkeypatch.setattr("torchtriage.stacks.obstacles._in_container", lambda: True)
    for user, who in ((0, "is root without CAP_SYS_PTRACE"), (4711, "does not allow tracing")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        monkeypatch.setattr("torchtriage.stacks.obstacles._owner", lambda _pid, user=user: user)
        reason = obstacle(os.getpid(), "Error: EPERM: Operation not permitted")
        assert reason.startswith(f"this container {who}")
        assert "--cap-add SYS_PTRACE" in reason


@pytest.mark.parametrize(("scope", "advice"), [(1, "ptrace_scope is 1"), (2, "only root"), (3, "booted again")])
def test_the_kernels_ptrace_scope_is_named(monkeypatch: pytest.MonkeyPatch, scope: int, advice: str) -> None:
    monkeypatch.setattr("torchtriage.stacks.obstacles._yama", lambda: scope)
    monkeypatch.setattr("torchtriage.stacks.obstacles._owner", lambda _pid: 4711)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert advice in obstacle(os.getpid(), "Permission Denied: Try running again with elevated permissions")


def test_a_dumper_beyond_its_time_is_ended_and_its_target_runs_on(guard: Guard, tmp_path: Path) -> None:
    for stubborn in (False, True):
        bad = stopper(tmp_path, stubborn=stubborn)
        with running(ANSWERER, "3") as process:
            ended = run_guarded([bad, str(process.pid)], process.pid, guard, timeout_s=0.4)
            assert (ended.returncode, ended.error) == (None, "no answer within 0.4 s")
            assert answers(process)


def test_a_target_that_was_stopped_before_stays_stopped(guard: Guard, tmp_path: Path) -> None:
    with running(ANSWERER, "0") as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert within(5, lambda: state(process.pid) == "T")
        run_guarded([stopper(tmp_path), str(process.pid)], process.pid, guard, timeout_s=0.4)
        assert state(process.pid) == "T"


def test_output_without_end_is_cut_off(guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.stacks.attach.MAX_BYTES", 1 << 20)
    endless = tmp_path / "endless"
    endless.write_text(f"#!{sys.executable}\nwhile True: print('x' * 65536)\n", encoding="utf-8")
    endless.chmod(0o700)
    ended = run_guarded([str(endless)], os.getpid(), guard, timeout_s=60)
    assert (ended.returncode, ended.error) == (None, "more than 1 MiB of output")


def test_a_dump_that_is_too_large_is_not_called_slow(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.stacks.attach.MAX_BYTES", 1 << 20)
    endless = tmp_path / "endless"
    endless.write_text(f"#!{sys.executable}\nwhile True: print('[' * 65536)\n", encoding="utf-8")
    endless.chmod(0o700)
    with running(SLEEPER, "0") as process:
        seen = look_at(process.pid, guard, py_spy=str(endless), timeout_s=60)
    assert seen.error == "more than 1 MiB of output"
    assert (seen.reason or "").startswith("py-spy wrote more than is kept of one process: ")


def test_a_zombie_is_said_to_have_ended_without_a_try(guard: Guard) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        assert within(20, lambda: state(process.pid) == "Z")
        seen = look(process.pid, guard)
    finally:
        process.wait()
    assert (seen.command, seen.error) == ([], "the process has ended")
    assert "zombie" in (seen.reason or "")


def test_a_thread_of_the_kernel_is_told_by_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, told in ((0x208040, "a thread of the kernel, not a program"), (0x400040, None)):
        stat = f"2 (kthreadd) S 0 0 0 0 -1 {flags} 0 0 0 0 0 1 0 0 20 0 1 0 3 0 0\n".encode()
        monkeypatch.setattr("torchtriage.bundle.proc_files.read", lambda _path, _limit, stat=stat: stat)
        assert (without_stack(2) or (None,))[0] == told


def test_a_program_that_is_not_there_is_an_error_not_an_exception(guard: Guard) -> None:
    assert run_guarded(["/nowhere/py-spy"], os.getpid(), guard, timeout_s=1).error == (
        "/nowhere/py-spy: No such file or directory"
    )


def kill_a_driver(pid: int, py_spy: str, begun: object, delay_s: float) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(pid), py_spy], stdout=subprocess.PIPE, env=environment_of_tests()
    )
    assert driver.stdout is not None
    with driver.stdout:
        assert driver.stdout.readline() == b"ready\n"
        if callable(begun):
            assert within(10, begun)
        within(delay_s, lambda: False)
        driver.kill()
        driver.wait()


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_killing_ourselves_in_the_middle_of_attaches_leaves_the_process_running(rounds: int) -> None:
    need_ptrace()
    py_spy = find_py_spy()
    assert py_spy is not None
    moments = random.Random(4711)
    with running(ANSWERER, "60") as process:
        for _ in range(rounds):
            kill_a_driver(process.pid, py_spy, None, moments.uniform(0, 0.15))
            assert answers(process)
        assert within(10, lambda: not guard_script.tracer_of(process.pid))
        assert answers(process)


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_guard_ends_what_a_killed_process_left_and_continues_its_target(tmp_path: Path, stubborn: bool) -> None:
    need_ptrace()
    bad = stopper(tmp_path, stubborn=stubborn)
    with running(ANSWERER, "3") as process:
        kill_a_driver(process.pid, bad, lambda: state(process.pid) == "T", 0)
        assert within(20, lambda: state(process.pid) != "T")
        assert answers(process)
        assert within(5, lambda: not [p for p in Path("/proc").glob("[0-9]*/cmdline") if _runs(p, bad)])


def _runs(cmdline: Path, program: str) -> bool:
    try:
        return program.encode() in cmdline.read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            "Error: Failed to suspend process\n\nCaused by:\n    EPERM: Operation not permitted\n\nStack backtrace:\n"
            "   0: anyhow::error::<impl anyhow::Error>::msg\n   1: py_spy::main\n",
            "Failed to suspend process: EPERM: Operation not permitted",
        ),
        (
            "Error: Failed to read\n\nCaused by:\n    0: the maps\n    1: No such process\n",
            "Failed to read: the maps: No such process",
        ),
        (
            "Error: Failed to find python version from target process\n\nStack backtrace:\n   0: main\n",
            "py-spy finds no Python in it",
        ),
        ("no answer within 10 s", "no answer within 10 s"),
    ],
)
def test_what_py_spy_says_is_told_in_one_line_without_its_backtrace(error: str, told: str) -> None:
    assert in_one_line(error) == told


def test_a_backtrace_of_the_dumper_is_kept_nowhere(guard: Guard, tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text(
        "#!/bin/sh\nprintf 'Error: no\\n\\nStack backtrace:\\n   0: main\\n' >&2; exit 1\n", encoding="utf-8"
    )
    program.chmod(0o700)
    assert run_guarded([str(program)], os.getpid(), guard, timeout_s=60).error == "Error: no"
