"""Real Python processes to attach to, and whether this machine lets tests attach at all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchtriage.stacks.attach import find_py_spy
from torchtriage.stacks.guard import stat_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Where only a parent may trace (Yama's default) a process may still allow everybody of its user (PR_SET_PTRACER).
_MAY_BE_TRACED = "import ctypes; ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)\n"
SLEEPER = """
import sys, threading

def waits_for_ever(say=False):
    if say:
        print("ready", flush=True)
    event.wait()

event = threading.Event()
for number in range(int(sys.argv[1])):
    threading.Thread(target=waits_for_ever, name=f"helper-{number}", daemon=True).start()
waits_for_ever(say=True)
"""
# Answers on standard output whoever asks on standard input, as long as it runs.
ANSWERER = """
import sys, threading

def waits_for_ever():
    event.wait()

event = threading.Event()
for number in range(int(sys.argv[1])):
    threading.Thread(target=waits_for_ever, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    print("here", flush=True)
"""
WORKER = """
import sys

def squares(n):
    total = 0
    for i in range(n):
        total += i * i
    return total

def sums(n):
    total = 0
    for i in range(n):
        total += i
    return total

print("ready", flush=True)
first, second = (squares, sums) if sys.argv[1] == "squares" else (sums, squares)
while True:
    first(200_000)
    second(10_000)
"""

# Waits for a child that shares nothing with it, as vfork does: state D, out of which only SIGKILL gets it.
SLEEPS_DEEPLY = """
import ctypes, os, platform, time

def in_the_kernel():
    print("ready", flush=True)
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    if libc.syscall(number, 0x4000 | 17, 0, 0, 0, 0) == 0:  # clone(CLONE_VFORK | SIGCHLD)
        libc.prctl(1, 9, 0, 0, 0)  # the child goes when its parent does
        while True:
            time.sleep(60)

libc = ctypes.CDLL(None)
in_the_kernel()
"""


@dataclass(frozen=True)
class Process:
    """What the probes need of a job's process."""

    pid: int
    role: str = "rank"
    rank: int | None = 0
    rank_pid: int | None = None

    @property
    def start_ticks(self) -> int:
        stat = stat_of(self.pid)
        return stat[1] if stat is not None else 0


@contextmanager
def running(source: str, *arguments: str, program: str = sys.executable) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs a source; it has said that it is ready, and is killed at the end."""
    process = subprocess.Popen(
        [program, "-c", _MAY_BE_TRACED + source, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def answers(process: subprocess.Popen[bytes]) -> bool:
    """Whether an ANSWERER runs: a stopped one would keep the test waiting, so its state is asked first."""
    assert process.stdin is not None
    assert process.stdout is not None
    if not within(5, lambda: state(process.pid) not in "Tt"):
        return False
    process.stdin.write(b"?\n")
    process.stdin.flush()
    return process.stdout.readline() == b"here\n"


def state(pid: int) -> str:
    """The letter of a process's state."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether something becomes true before a deadline."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


@cache
def _why_not() -> str | None:
    if not sys.platform.startswith("linux"):
        return "processes are looked at on Linux alone"
    py_spy = find_py_spy()
    if py_spy is None:
        return "py-spy is not installed"
    with running(SLEEPER, "0") as process:
        done = subprocess.run([py_spy, "dump", "--pid", str(process.pid)], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"ptrace is not permitted here: {done.stderr.strip()[:100]}"


def need_ptrace() -> None:
    """Skip the test where nothing can be attached to."""
    if (why := _why_not()) is not None:
        pytest.skip(why)


def environment_of_tests() -> dict[str, str]:
    """For a Python process that imports the package and these helpers."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
