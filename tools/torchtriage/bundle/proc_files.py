"""Bounded reading below /proc. Nothing here raises for what a process does: it may end, change or be somebody else's.

Some files (cmdline, environ, maps, mem, syscall) need a lock of the process's memory. While a thread of it is stuck in
a page fault on a dead file system, such a read may never return, as ``ps`` knows. :func:`each` gives those reads a time
limit in a thread that is left behind when it does not come back.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_PIECE_BYTES = 1 << 16
MAX_ABANDONED = 8
MAX_MAPS_BYTES = 16 << 20
_MAPS_S = 1.0
_PF_KTHREAD = 0x00200000  # include/linux/sched.h, the same since Linux 2.6.17

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Stat:
    """What /proc/PID/stat says; times in clock ticks."""

    name: str
    state: str
    ppid: int
    user_ticks: int
    system_ticks: int
    n_threads: int
    start_ticks: int
    flags: int = 0

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it is a thread of the kernel itself, which has neither command line nor environment."""
        return bool(self.flags & _PF_KTHREAD)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs; one whose main thread alone has ended is shown as a zombie too."""
        return self.state == "X" or (self.state == "Z" and self.n_threads <= 1)


@dataclass(frozen=True)
class Ids:
    """Who started a process, whatever it has become since by a set-user-ID program."""

    uid: int
    gids: frozenset[int]


def read(path: str, limit: int) -> bytes | None:
    """At most ``limit`` bytes of a file; None when it cannot be read, for whatever reason."""
    try:
        return read_or_raise(path, limit)
    except (OSError, ValueError):
        return None


def read_or_raise(path: str, limit: int) -> bytes:
    """Like :func:`read`, for callers to whom the reason matters.

    Raises:
        OSError: it cannot be read; ValueError: no file can have that name.
    """
    # Without O_NONBLOCK a FIFO in the place of a file would hold us here.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        pieces: list[bytes] = []
        left = limit
        while left > 0 and (piece := os.read(descriptor, min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    finally:
        os.close(descriptor)


def read_text(path: str, limit: int) -> str | None:
    """Like :func:`read`, as text."""
    data = read(path, limit)
    return None if data is None else data.decode("utf-8", errors="replace")


def link(path: str) -> str | None:
    """Where a link points to, without touching that; None when it cannot be read."""
    try:
        return os.readlink(path)  # noqa: PTH115  # thousands of them; a Path each would cost more than the call
    except (OSError, ValueError):
        return None


def numbers_in(folder: str, limit: int) -> list[int]:
    """The entries of a folder that are numbers (processes, threads, descriptors), in order, at most ``limit``."""
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.isascii() and name.isdigit() and len(name) <= 10:
                found.append(int(name))
                if len(found) >= limit:
                    break
    return sorted(found)


def names_in(folder: Path, limit: int) -> list[str]:
    """The names in a folder, at most ``limit``; none when it cannot be read."""
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) >= limit:
                break
    return names


def maps_of(root: str | Path, pid: int) -> str | None:
    """What a process has mapped, as /proc/PID/maps says it; None when it cannot be read, or not in time."""
    texts, _ = each([f"{root}/{pid}/maps"], lambda path: read_text(path, MAX_MAPS_BYTES), _MAPS_S)
    return next(iter(texts.values()), None)


def parse_stat(data: bytes | None) -> Stat | None:
    """Read a stat file; the name may hold blanks and parentheses, so the last parenthesis ends it."""
    if data is None:
        return None
    start, end = data.find(b"("), data.rfind(b")")
    fields = data[end + 1 :].split()
    if start < 0 or end < start or len(fields) < 20:
        return None
    try:
        ppid, flags, user, system, threads, begun = (int(fields[i]) for i in (1, 6, 11, 12, 17, 19))
    except ValueError:
        return None
    name = data[start + 1 : end].decode("utf-8", errors="replace")
    return Stat(name, fields[0][:1].decode("ascii", errors="replace"), ppid, user, system, threads, begun, flags)


def ids_of(root: str, pid: int) -> Ids | None:
    """The real user and groups of a process; None when it is gone.

    Not the owner of its folder: that is root for every process that may not be dumped, as any may choose to be.
    """
    uid: int | None = None
    gids: set[int] = set()
    for line in (read(f"{root}/{pid}/status", 1 << 20) or b"").splitlines():
        name, _, rest = line.partition(b":")
        words = rest.split()
        if name == b"Uid" and words and words[0].isdigit():
            uid = int(words[0])
        elif name in (b"Gid", b"Groups"):
            gids.update(int(word) for word in (words[:1] if name == b"Gid" else words) if word.isdigit())
    return Ids(uid, frozenset(gids)) if uid is not None else None


def each(keys: Sequence[K], function: Callable[[K], V], timeout_s: float) -> tuple[dict[K, V], list[K]]:
    """Apply a function that must not raise to every key; a call that takes longer than ``timeout_s`` is given up.

    Returns:
        The results, and the keys whose call did not return. After ``MAX_ABANDONED`` of those the rest is not tried.
    """
    results: dict[K, V] = {}
    stuck: list[K] = []
    left = list(keys)
    while left:
        if len(stuck) >= MAX_ABANDONED:
            stuck.extend(left)
            break
        run = _Run(left, function)
        at = run.run(timeout_s)
        results.update(run.done[:at])
        if at < len(left):
            stuck.append(left[at])
        left = left[at + 1 :]
    return results, stuck


class _Run(Generic[K, V]):
    """One thread on its way through the keys."""

    def __init__(self, keys: list[K], function: Callable[[K], V]) -> None:
        self.done: list[tuple[K, V]] = []
        self._keys = keys
        self._function = function
        self._given_up = False
        # A daemon, so that a read that never returns does not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name="proc-reader", daemon=True)

    def _work(self) -> None:
        for key in self._keys:
            result = self._function(key)
            if self._given_up:
                return
            self.done.append((key, result))

    def run(self, timeout_s: float) -> int:
        """Work, and say how many keys were done when the thread ended or stopped getting on."""
        self._thread.start()
        seen = -1
        while self._thread.is_alive() and len(self.done) > seen:
            seen = len(self.done)
            self._thread.join(timeout_s)
        self._given_up = True
        return len(self.done)
