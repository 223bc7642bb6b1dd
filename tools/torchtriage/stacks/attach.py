"""One look at one process with py-spy: from the way that shows most to the one that disturbs least.

Native and Python frames of a process that is stopped for the moment; then Python frames alone; then Python frames read
while it runs on. Each step has a time limit, and no process stays stopped for it (:mod:`torchtriage.stacks.guard`).
Values of variables are never read. What py-spy prints is hostile: bounded here, masked by the caller.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from torchtriage.bundle.programs import run_program
from torchtriage.stacks import guard as guard_script
from torchtriage.stacks.obstacles import DEEP_SLEEP, obstacle, without_stack
from torchtriage.stacks.refusals import refusal_in, without_backtrace

if TYPE_CHECKING:
    from torchtriage.bundle.programs import Ran

MAX_BYTES = 16 << 20
MORE_S = 2.0
"""After the time of one step, for all other steps together."""
_LADDER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("native", ("--native",)),
    ("python", ()),
    # Twice: what is read while it changes may be torn.
    *(("nonblocking", ("--nonblocking",)),) * 2,
)
_MAX_THREADS = 4096
# A tracing stop by another dumper lasts milliseconds; by a debugger it lasts.
_SETTLE_S = 0.3


@dataclass(frozen=True)
class Look:
    """What one look at a process gave."""

    command: list[str]
    """The command of the step that worked, else of the last one that was tried."""
    output: bytes | None
    """py-spy's JSON; None when no step worked."""
    how: str = ""
    """``native``, ``python`` or ``nonblocking``."""
    error: str | None = None
    """Why the first step that failed did, in py-spy's words (with an output: why it shows less than was asked)."""
    reason: str | None = None
    """What that means here, and what to do."""
    stopped: str | None = None
    """``T (stopped)`` or ``t (tracing stop)`` when it was found so: it was then left as it was."""
    timed_out: bool = False
    """Whether a step did not end within its time."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    returncode: int | None
    """None: it was ended for its time limit, or for its output."""
    output: bytes
    error: str
    """Why it was ended, else what it said, without a backtrace of its own."""
    cut: bool = False
    """It was ended for its output."""


class Guard:
    """Holds a process of its own beside this one (see :mod:`torchtriage.stacks.guard`) while processes are attached to.

    Args:
        grace_s: how long dumpers may go on by themselves when this process dies.
        cancelled: set, here or by another thread, to end all dumpers at once; set at the end in any case.
    """

    def __init__(self, grace_s: float = 2.0, cancelled: threading.Event | None = None) -> None:
        """See the class."""
        self.cancelled = cancelled or threading.Event()
        self.environment = {**os.environ, guard_script.MARK: secrets.token_hex(16)}
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Guard:
        read, self._control = os.pipe()
        alive, self.alive = os.pipe()
        token = self.environment[guard_script.MARK]
        command = [sys.executable, "-I", "-S", guard_script.__file__, str(alive), token, str(self._grace_s)]
        command.append(str(os.getpid()))
        try:
            self._process = subprocess.Popen(
                command,
                stdin=read,
                pass_fds=[alive],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            # Then this process alone looks after its targets.
            self._process = None
        finally:
            os.close(read)
            os.close(alive)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.cancelled.set()
        if kind is None:
            self._tell("done")
        os.close(self._control)
        os.close(self.alive)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace_s + 6)

    def hold(self, pid: int) -> dict[int, int]:
        """Before a dumper may stop this process: the targets to hand to :meth:`free`, without those stopped already."""
        before = guard_script.stat_of(pid)
        if before is None or before[0] == "T" or guard_script.tracer_of(pid):
            return {}
        self._tell(f"hold {pid} {before[1]}")
        return {pid: before[1]}

    def free(self, targets: dict[int, int], *, orderly: bool) -> None:
        """The dumper has ended: what it left stopped is continued; after a disorderly end, watched for a while."""
        guard_script.watch(targets, 0.0 if orderly else guard_script.WATCH_S)
        for pid in targets:
            self._tell(f"free {pid}")

    def _tell(self, line: str) -> None:
        # Without its guard this process still looks after its targets itself.
        with self._lock, contextlib.suppress(OSError):
            os.write(self._control, f"{line}\n".encode())


def find_py_spy() -> str | None:
    """py-spy's program: beside this interpreter, else on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else which("py-spy")


def look_at(
    pid: int,
    guard: Guard,
    *,
    py_spy: str,
    native: bool = True,
    timeout_s: float = 10.0,
    start_ticks: int | None = None,
) -> Look:
    """Dump the stacks of one process, by the first step of the ladder that works.

    Args:
        pid: the process.
        guard: entered before.
        py_spy: :func:`find_py_spy`.
        native: begin with native frames.
        timeout_s: for each step, and with :data:`MORE_S` for all of them together.
        start_ticks: when the process that is meant began; another one that has its number now is left alone.
    """
    if start_ticks is not None and (guard_script.stat_of(pid) or ("", -1))[1] != start_ticks:
        return Look([], None, "", "the process has ended", "it ended after it was found and before it was looked at")
    if (nothing := without_stack(pid)) is not None:
        return Look([], None, "", *nothing)
    stopped = _stopped(pid)
    steps = list(_LADDER)
    if stopped is not None or guard_script.tracer_of(pid):
        steps = _without_stopping(steps)
    elif not native:
        steps = steps[1:]
    first_error: str | None = None
    reason: str | None = None
    if steps[0][0] != "nonblocking" and _sleeps_deeply(pid):
        # Stopping it would wait for ever, with its other threads stopped meanwhile.
        steps = _without_stopping(steps)
        first_error, reason = "not stopped: a thread of it sleeps in the kernel (state D)", DEEP_SLEEP
    command: list[str] = []
    timed_out = False
    end = time.monotonic() + timeout_s + MORE_S
    while steps and (left_s := end - time.monotonic()) > 0:
        how, flags = steps.pop(0)
        command = [py_spy, "dump", "--json", *flags, "--pid", str(pid)]
        ended = run_guarded(command, pid, guard, timeout_s=min(timeout_s, left_s))
        if ended.returncode == 0 and ended.output.lstrip()[:1] == b"[":
            return Look(command, ended.output, how, first_error, reason, stopped, timed_out)
        error = ended.error or f"exit status {ended.returncode} without a dump"
        refusal = refusal_in(error.splitlines())
        if first_error is None:
            first_error = error
            reason = obstacle(pid, error, timed_out=ended.returncode is None, cut=ended.cut)
            if guard.cancelled.is_set():
                reason = "the collector was stopped before"
        if guard_script.stat_of(pid) is None or (refusal is not None and refusal["final"]) or guard.cancelled.is_set():
            break
        if ended.returncode is None:
            # It hangs, or writes without end, and would do so again: one other way is tried, with less to do.
            deep = _sleeps_deeply(pid)
            if timed_out or (how != "native" and not deep):
                timed_out = True
                break
            timed_out = True
            steps = (_without_stopping(steps) if deep else steps)[:1]
    return Look(command, None, "", first_error, reason, stopped, timed_out)


def _without_stopping(steps: list[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    return [step for step in steps if step[0] == "nonblocking"]


def run_guarded(
    command: list[str], pid: int, guard: Guard, *, timeout_s: float, end_with: signal.Signals = signal.SIGTERM
) -> Ended:
    """Run a command that may stop process ``pid``; afterwards its whole process group is gone and ``pid`` runs on.

    Args:
        command: an argument list.
        pid: its target.
        guard: entered before.
        timeout_s: then it is sent ``end_with``, and SIGKILL if that does not help.
        end_with: what asks it to end.
    """
    targets = guard.hold(pid)
    orderly = False
    try:
        ran = run_program(
            command,
            timeout_s=timeout_s,
            limit_bytes=MAX_BYTES,
            environment=guard.environment,
            pass_fds=[guard.alive],
            end_with=end_with,
            cancelled=guard.cancelled,
        )
        orderly = ran.code is not None and ran.code >= 0
    finally:
        guard.free(targets, orderly=orderly)
    why = _why_ended(ran, timeout_s)
    code = 127 if ran.code is None and why is None else ran.code  # not found, as a shell says it
    return Ended(code, ran.output, why or without_backtrace(ran.said), ran.cut)


def _why_ended(ran: Ran, timeout_s: float) -> str | None:
    """Why a dumper was ended before its time; it had asked for one, so what it said then does not matter."""
    if ran.cancelled:
        return "cancelled"
    if ran.cut:
        return f"more than {MAX_BYTES >> 20} MiB of output"
    return f"no answer within {timeout_s:g} s" if ran.timed_out else None


def _stopped(pid: int) -> str | None:
    end = time.monotonic() + _SETTLE_S
    while True:
        stat = guard_script.stat_of(pid)
        if stat is None or stat[0] not in "Tt":
            return None
        if stat[0] == "T":
            return "T (stopped)"
        if time.monotonic() >= end:
            return "t (tracing stop)"
        time.sleep(0.01)


def _sleeps_deeply(pid: int) -> bool:
    """Whether a thread stays in a sleep that nothing interrupts; waiting for a disk lasts milliseconds."""
    end = time.monotonic() + _SETTLE_S
    while _threads_in_deep_sleep(pid):
        if time.monotonic() >= end:
            return True
        time.sleep(0.02)
    return False


def _threads_in_deep_sleep(pid: int) -> int:
    n = 0
    with contextlib.suppress(OSError):
        for task in list(Path(f"/proc/{pid}/task").iterdir())[:_MAX_THREADS]:
            with contextlib.suppress(OSError):
                n += (task / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:1] == ["D"]
    return n
