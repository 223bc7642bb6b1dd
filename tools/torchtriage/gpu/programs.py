"""Running a program of the system under a time limit and a size limit, with its whole process group ended afterwards.

A program that asks a sick driver may never return and may not even die when killed; the caller goes on all the same.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_OUTPUT_BYTES = 32 << 20
MAX_ERROR_BYTES = 8192
_PIECE_BYTES = 1 << 16
_REAP_S = 1.0
_LOOK_S = 0.1


@dataclass(frozen=True)
class Ran:
    """How a program ended. ``code`` is None when it did not end by itself or could not be started."""

    output: bytes = b""
    code: int | None = None
    error: str = ""
    """What it said on standard error, or why it could not be started; cleaned, one line."""
    missing: bool = False
    timed_out: bool = False
    unkillable: bool = False
    """It was killed and is still there: it waits inside the kernel."""
    cut: bool = False


def run_program(
    command: Sequence[str], *, timeout_s: float, limit_bytes: int = MAX_OUTPUT_BYTES, keep_end: bool = False
) -> Ran:
    """Run a program to its end or to a limit; never raises for what the program does.

    Args:
        command: program and arguments; no shell is involved.
        timeout_s: after this it and its children are killed.
        limit_bytes: how much of its output is kept.
        keep_end: keep the end of the output and not its beginning, reading all of it.
    """
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return Ran(missing=True, error=f"{command[0]}: not found")
    except (OSError, ValueError) as error:
        return Ran(error=clean_text(str(error)))
    deadline = time.monotonic() + timeout_s
    try:
        output, errors, cut, timed_out = _read(process, deadline, limit_bytes, keep_end)
    finally:
        unkillable = not _end(process, deadline)
    said = clean_text(errors.decode("utf-8", errors="replace").strip())
    if cut and not keep_end:
        # It was ended for saying too much; how it would have ended is not known.
        return Ran(output, None, said, cut=True, unkillable=unkillable)
    code = None if timed_out or unkillable else process.returncode
    return Ran(output, code, said, timed_out=timed_out or unkillable, unkillable=unkillable, cut=cut)


def _read(
    process: subprocess.Popen[bytes], deadline: float, limit_bytes: int, keep_end: bool
) -> tuple[bytes, bytes, bool, bool]:
    """(standard output, standard error, whether output was cut, whether time ran out)."""
    kept: dict[str, bytearray] = {"out": bytearray(), "err": bytearray()}
    cut = False
    with selectors.DefaultSelector() as selector:
        for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return bytes(kept["out"]), bytes(kept["err"]), cut, True
            ready = selector.select(min(_LOOK_S, left_s))
            if not ready and _ended(process):
                break  # it ended; a child of it still holds the pipe
            for key, _ in ready:
                piece = os.read(key.fd, _PIECE_BYTES)
                if not piece:
                    selector.unregister(key.fileobj)
                    continue
                buffer = kept[key.data]
                buffer += piece
                limit = limit_bytes if key.data == "out" else MAX_ERROR_BYTES
                if len(buffer) > limit and key.data == "out":
                    cut = True
                    if not keep_end:
                        del buffer[limit:]
                        return bytes(buffer), bytes(kept["err"]), True, False
                    del buffer[: len(buffer) - limit]
                del buffer[limit:]
    return bytes(kept["out"]), bytes(kept["err"]), cut, False


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ended; it is not reaped, so that its number still names its group and nobody else's."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _end(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Give the program until the deadline, at most a second, then kill its group; False when it survives even that."""
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    deadline = min(deadline, time.monotonic() + _REAP_S)
    while not _ended(process) and time.monotonic() < deadline:
        time.sleep(_LOOK_S / 10)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        return False
    return True
