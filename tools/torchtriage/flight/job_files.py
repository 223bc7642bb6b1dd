"""The files that a process names, found as that process sees them: in its container, relative to its folder.

Only regular files and FIFOs of the job's own user are opened, and no link is followed at the last step: whoever runs
the collector may be allowed more than the job is, and the job chose the names.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.bundle import proc_files
from torchtriage.bundle.environment import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

_MAX_ENVIRON_BYTES = 1 << 20
_MAX_LINKS = 40
_MAX_PARTS = 256
_MAX_DESCRIPTORS = 4096
_READ_S = 1.0


class NotTheJobsError(OSError):
    """What lies at a path is of another kind than it should be, or another user's."""


@dataclass(frozen=True)
class Signature:
    """Tells whether a file was written again."""

    inode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Content:
    """What was read of a file."""

    data: bytes
    """From its beginning on, as far as something was ever written there, and not more than was asked for."""
    size: int
    """Of the whole file as it says itself; a hole counts, though nothing was written there."""
    mtime_ns: int


def variables_of(pid: int, names: tuple[str, ...], proc: Path) -> dict[str, str]:
    """These variables as the process was started with them; what it set itself later is not seen."""
    data, _ = proc_files.each([f"{proc}/{pid}/environ"], _read_environ, _READ_S)
    variables = parse(next(iter(data.values()), None) or b"")
    wanted = {name: variables.get(name.encode("ascii")) for name in names}
    return {name: os.fsdecode(value) for name, value in wanted.items() if value is not None and len(value) < 4096}


def _read_environ(path: str) -> bytes | None:
    return proc_files.read(path, _MAX_ENVIRON_BYTES)


def open_fifos_of(pid: int, proc: Path) -> list[str]:
    """Paths ending in ``.pipe`` that the process holds open: also those that the program named itself."""
    folder = f"{proc}/{pid}/fd"
    links = (proc_files.link(f"{folder}/{number}") for number in proc_files.numbers_in(folder, _MAX_DESCRIPTORS))
    return sorted({link for link in links if link is not None and link.startswith("/") and link.endswith(".pipe")})


def as_seen_here(path: str, pid: int, proc: Path) -> str:
    """Where a path that a process names lies for us.

    Raises:
        OSError: it cannot be told, or leads round in circles.
    """
    if not path.startswith("/"):
        folder = proc_files.link(f"{proc}/{pid}/cwd")
        if folder is None:
            raise PermissionError(13, "the process's working folder cannot be read")
        path = f"{folder}/{path}"
    root = f"{proc}/{pid}/root"
    mine, its = proc_files.link(f"{proc}/self/ns/mnt"), proc_files.link(f"{proc}/{pid}/ns/mnt")
    if (mine == its or its is None) and proc_files.link(root) in ("/", None):
        return path
    return _below(root, path)


def _below(root: str, path: str) -> str:
    """Follow links as the process would, whose "/" is ``root``; the last step is not followed."""
    left = [part for part in path.split("/") if part not in ("", ".")][::-1]
    done: list[str] = []
    n_links = 0
    while left:
        part = left.pop()
        if part == "..":
            del done[-1:]
            continue
        here = "/".join([root, *done, part])
        target = proc_files.link(here) if left else None
        if target is None:
            done.append(part)
            continue
        n_links += 1
        parts = [part for part in target.split("/") if part not in ("", ".")]
        if n_links > _MAX_LINKS or len(left) + len(parts) > _MAX_PARTS:
            raise OSError(40, "too many links")
        if target.startswith("/"):
            done.clear()
        left.extend(parts[::-1])
    return "/".join([root, *done])


def check_owned(descriptor: int, is_kind: Callable[[int], bool], kind: str, owners: Collection[int]) -> os.stat_result:
    """The status of what is open there, which must be of a kind and one of these users' own.

    Raises:
        NotTheJobsError: it is something else, or another user's.
    """
    status = os.fstat(descriptor)
    if not is_kind(status.st_mode):
        raise NotTheJobsError(f"it is not a {kind}")
    if status.st_uid not in owners:
        raise NotTheJobsError(f"it belongs to uid {status.st_uid}, not to the job's user")
    return status


def signature_of(path: str) -> Signature | None:
    """What a path's file looks like now; None when there is none."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    return Signature(status.st_ino, status.st_size, status.st_mtime_ns)


def read_owned(path: str, owners: Collection[int], limit_bytes: int) -> Content:
    """A regular file of one of the users ``owners``, at most ``limit_bytes`` of it, up to its first hole.

    A hole reads as zeros that nobody wrote, so that a file of no size on the disk could fill a bundle with them.

    Raises:
        NotTheJobsError: it is no regular file, or another user's.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = check_owned(descriptor, stat.S_ISREG, "regular file", owners)
        data = file.read(min(limit_bytes, _first_hole(descriptor, status.st_size)))
    return Content(data, max(len(data), status.st_size), status.st_mtime_ns)


def _first_hole(descriptor: int, size: int) -> int:
    """Where the first part of a file begins that was never written; its size, or more while it grows, without one."""
    try:
        at = os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError:  # this file system does not tell, or the file is empty
        return size
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return at


def write_to_fifo(path: str, uid: int, data: bytes) -> None:
    """Write to a FIFO of the user ``uid`` that somebody reads, without ever waiting.

    Raises:
        NotTheJobsError: it is no FIFO, or another user's.
        OSError: it cannot be opened or written; ENXIO when nobody reads it.
    """
    # Looked at first and opened for writing through the same descriptor: opening a device can do something by itself.
    seen = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        check_owned(seen, stat.S_ISFIFO, "FIFO", (uid,))
        descriptor = os.open(f"/proc/self/fd/{seen}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(seen)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def started_ns(start_ticks: int, proc: Path) -> int | None:
    """When a process started, in nanoseconds since 1970; the kernel tells its own start in whole seconds."""
    text = proc_files.read_text(f"{proc}/stat", 1 << 20) or ""
    for line in text.split("\n"):
        if line.startswith("btime ") and line[6:].strip().isdigit():
            return int(line[6:]) * 10**9 + start_ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return None


def first_set(variables: Mapping[str, str], environment: Mapping[str, str], name: str) -> str | None:
    """A variable as read from the process, or else as the job's description has it."""
    return variables.get(name) or environment.get(name) or None
