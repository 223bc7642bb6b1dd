"""No process that is looked at stays stopped: a second process that outlives this one, and what both do about it.

A dumper stops a process through ptrace. When the dumper dies, the kernel lets its tracees go; a SIGSTOP that older
ways of attaching sent, or that was on its way, may stay behind, and then the process hangs for ever for our doing. The
guard holds a pipe of the process that attaches. When that closes before it said that all is done, the guard ends the
dumpers that are left and continues those of their targets that are stopped, were not before, and have no tracer.

Run as a script it must start at once: it imports the standard library alone, and nothing of this package.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

MARK = "TORCHTRIAGE_GUARD"
"""Stands in the environment of every dumper, with the guard's own token: how those left behind are found."""

WATCH_S = 0.3
"""How long a target of a dumper that was killed is watched: a signal may be on its way when the dumper is gone."""

_SIGSTOP_BIT = 1 << (signal.SIGSTOP - 1)
_MAX_THREADS = 8192
_POLL_S = 0.01


def stat_of(pid: int) -> tuple[str, int] | None:
    """State letter and start time (clock ticks since boot) of a process; None when it is gone."""
    text = _text(f"/proc/{pid}/stat")
    # The name in brackets may hold anything, brackets too.
    fields = text.rpartition(")")[2].split()
    return (fields[0], int(fields[19])) if len(fields) > 19 else None


def tracer_of(pid: int) -> int:
    """The process that traces this one, or 0."""
    return _number(_status(f"/proc/{pid}/status").get("TracerPid"))


def is_held(pid: int) -> bool:
    """Whether a process is stopped, or about to be, with nobody left who would continue it."""
    held = False
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  (pathlib starts slowly)
    except OSError:
        return False
    for thread in threads[:_MAX_THREADS]:
        status = _status(f"/proc/{pid}/task/{thread}/status")
        if _number(status.get("TracerPid")):
            return False
        pending = _number(status.get("SigPnd"), 16) | _number(status.get("ShdPnd"), 16)
        held = held or status.get("State", "")[:1] == "T" or bool(pending & _SIGSTOP_BIT)
    return held


def continue_held(pid: int, start_ticks: int) -> bool:
    """Continue a process that :func:`is_held`; the one that was meant, never another with its number."""
    if not is_held(pid):
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        stat = stat_of(pid)
        if stat is None or stat[1] != start_ticks:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def watch(targets: dict[int, int], seconds: float = WATCH_S) -> None:
    """Continue those of the targets (pid: start ticks) that turn out to be held within the next seconds."""
    end = time.monotonic() + seconds
    while targets:
        for pid, start_ticks in targets.items():
            continue_held(pid, start_ticks)
        if time.monotonic() >= end:
            return
        time.sleep(_POLL_S)


def _main(alive: int, token: str, grace_s: float, owner: int) -> None:
    targets: dict[int, int] = {}
    rest = b""
    while True:
        # The owner's forks may hold the pipe open after its death, so that its end alone is not waited for. Asked
        # before reading, so that all it wrote is read.
        orphaned = os.getppid() != owner
        if not select.select([0], [], [], 0.0 if orphaned else 0.2)[0]:
            if orphaned:
                break
            continue
        data = os.read(0, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            word, *numbers = line.split()
            if word == b"done":
                return
            if word == b"hold":
                targets[int(numbers[0])] = int(numbers[1])
            else:
                targets.pop(int(numbers[0]), None)
    _end_dumpers(alive, token, grace_s)
    watch(targets, 1.0)


def _end_dumpers(alive: int, token: str, grace_s: float) -> None:
    """Let dumpers end by themselves, as they do within milliseconds; then ask them to, then kill them."""
    if _all_ended(alive, grace_s):
        return
    for number, patience_s in ((signal.SIGINT, 1.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 2.0)):
        for pid in _marked(f"{MARK}={token}".encode()):
            try:
                os.kill(pid, number)
            except OSError:
                continue
        if _all_ended(alive, patience_s):
            return


def _all_ended(alive: int, seconds: float) -> bool:
    """The dumpers hold the other end of a pipe that nobody writes to: it ends with the last of them."""
    return bool(select.select([alive], [], [], seconds)[0])


def _marked(mark: bytes) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123  (pathlib starts slowly)
                if mark in file.read(1 << 20).split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


def _status(path: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(path).splitlines())
    return {key: value.strip() for key, _, value in pairs}


def _number(text: str | None, base: int = 10) -> int:
    try:
        return int(text or "0", base)
    except ValueError:
        return 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  (pathlib starts slowly)
            return file.read(65536)
    except OSError:
        return ""


if __name__ == "__main__":
    # A terminal's interrupt is for the owner; a request to end must not keep the guard from its work.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    _main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
