"""Running a program of the system under limits of time and size, with its whole process group ended afterwards.

A program that asks a sick driver may never return and may not even die when killed; the caller goes on all the same.
What a program prints is hostile: it is bounded here, and masked by whoever keeps it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torchtriage.artefacts.clean import clean_text

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

MAX_OUTPUT_BYTES = 32 << 20
MAX_ERROR_BYTES = 64 << 10
_PIECE_BYTES = 1 << 16
_LOOK_S = 0.1
_REAP_S = 1.0
_PATIENCE_S = 0.5

_Stop = Literal["", "time", "size", "cancelled"]


@dataclass(frozen=True)
class Ran:
    """How a program ended. ``code`` is None when it did not end by itself or could not be started."""

    output: bytes = b""
    code: int | None = None
    said: str = ""
    """What it said on standard error, as it stands, or why it could not be started."""
    missing: bool = False
    timed_out: bool = False
    unkillable: bool = False
    """It was killed and is still there: it waits inside the kernel."""
    cut: bool = False
    cancelled: bool = False

    @property
    def error(self) -> str:
        """What it said, cleaned, in one line."""
        return clean_text(self.said)


def run_program(
    command: Sequence[str],
    *,
    timeout_s: float,
    limit_bytes: int = MAX_OUTPUT_BYTES,
    keep_end: bool = False,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    end_with: signal.Signals = signal.SIGKILL,
    cancelled: threading.Event | None = None,
) -> Ran:
    """Run a program to its end or to a limit; never raises for what the program does.

    Args:
        command: program and arguments; no shell is involved.
        timeout_s: after this it and its children are ended.
        limit_bytes: how much of its output is kept.
        keep_end: keep the end of the output and not its beginning, reading all of it.
        environment: its environment; this process's, with messages in English, when None.
        pass_fds: descriptors that it inherits.
        end_with: what asks it to end before it is killed; for a program that must leave something in order.
        cancelled: set by another thread to end it before its time; where it is set already, nothing is started.
    """
    if cancelled is not None and cancelled.is_set():
        return Ran(cancelled=True)
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(environment) if environment is not None else {**os.environ, "LC_ALL": "C"},
            pass_fds=tuple(pass_fds),
        )
    except OSError as error:
        return Ran(said=f"{command[0]}: {error.strerror}", missing=isinstance(error, FileNotFoundError))
    except ValueError as error:
        return Ran(said=f"{command[0][:200]}: {error}")
    deadline = time.monotonic() + timeout_s
    output, errors = bytearray(), bytearray()
    stop: _Stop = ""
    cut = False
    try:
        with process.stdout or contextlib.nullcontext(), process.stderr or contextlib.nullcontext():
            stop, cut = _read(process, (output, errors), deadline, limit_bytes, keep_end, cancelled)
        if not stop:
            stop = _wait(process, deadline, cancelled)
    finally:
        gone = _end(process, end_with)
    return Ran(
        bytes(output),
        # Where it was ended by us, how it would have ended is not known.
        process.returncode if gone and not stop else None,
        errors.decode("utf-8", errors="replace").strip(),
        timed_out=stop == "time" or not gone,
        unkillable=not gone,
        cut=cut,
        cancelled=stop == "cancelled",
    )


def _read(
    process: subprocess.Popen[bytes],
    kept: tuple[bytearray, bytearray],
    deadline: float,
    limit_bytes: int,
    keep_end: bool,
    cancelled: threading.Event | None,
) -> tuple[_Stop, bool]:
    """Read until the program is silent for good; (why it must be ended, whether output was cut)."""
    output, errors = kept
    cut = False
    with selectors.DefaultSelector() as selector:
        for stream, buffer in ((process.stdout, output), (process.stderr, errors)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, buffer)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if cancelled is not None and cancelled.is_set():
                return "cancelled", cut
            if left_s <= 0:
                return "time", cut
            ready = selector.select(min(_LOOK_S, left_s))
            if not ready and _ended(process):
                break  # it ended; a child of it still holds the pipe
            for key, _ in ready:
                piece = os.read(key.fd, _PIECE_BYTES)
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.data is errors:
                    errors += piece[: max(0, MAX_ERROR_BYTES - len(errors))]
                else:
                    output += piece
                    if len(output) > limit_bytes:
                        cut = True
                        if not keep_end:
                            del output[limit_bytes:]
                            return "size", True
                        del output[: len(output) - limit_bytes]
    return "", cut


def _wait(process: subprocess.Popen[bytes], deadline: float, cancelled: threading.Event | None) -> _Stop:
    """Wait for a program that says nothing more."""
    while not _ended(process):
        if cancelled is not None and cancelled.is_set():
            return "cancelled"
        if time.monotonic() >= deadline:
            return "time"
        time.sleep(0.005)
    return ""


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ended; it is not reaped, so that its number still names its group and nobody else's."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _end(process: subprocess.Popen[bytes], end_with: signal.Signals) -> bool:
    """Ask what still runs to end, then kill what is left of its group; False when it survives even that."""
    if not _ended(process) and end_with != signal.SIGKILL:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, end_with)
        _wait(process, time.monotonic() + _PATIENCE_S, None)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        return False
    return True
