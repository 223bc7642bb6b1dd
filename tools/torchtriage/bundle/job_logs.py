"""Copy the ends of the files that a job's processes write their output to: the log that nobody has to look for."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text, mask_secrets
from torchtriage.bundle.files import write_new
from torchtriage.bundle.manifest import Item

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.bundle.processes import JobProcess

MAX_LOG_BYTES = 8 << 20
MAX_LOGS = 512
_STREAMS = {1: "stdout", 2: "stderr"}


def copy_logs(
    processes: Sequence[JobProcess], folder: Path, *, host: str, proc: Path = Path("/proc"), root: Path | None = None
) -> list[Item]:
    """Copy the last part of each regular file that is standard output or error of a rank or a launcher, once.

    Secrets are masked. A terminal, a pipe or a socket cannot be read again and is left out without a word: what goes
    there is in the file of whoever reads it, usually the launcher.
    """
    root = root or folder.parent.parent
    items: list[Item] = []
    seen: set[tuple[int, int]] = set()
    for process in processes:
        if process.role not in ("rank", "launcher"):
            continue
        for number, stream in _STREAMS.items():
            if len(items) >= MAX_LOGS:
                return items
            item = _copy(process, proc / str(process.pid) / "fd" / str(number), stream, folder, host, root, seen)
            if item is not None:
                items.append(item)
    return items


def _copy(
    process: JobProcess, link: Path, stream: str, folder: Path, host: str, root: Path, seen: set[tuple[int, int]]
) -> Item | None:
    """One stream's file; None where it is no file, is a copy of one that was taken, or is not to be seen."""
    try:
        if not stat.S_ISREG(link.stat().st_mode):  # to open a pipe could be felt at its other end
            return None
        target = str(link.readlink())
        # By way of /proc, so that it is the very file that the process has open, whatever its name stands for here.
        descriptor = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in seen:
            return None
        seen.add((status.st_dev, status.st_ino))
        start = max(0, status.st_size - MAX_LOG_BYTES)
        text = os.pread(descriptor, MAX_LOG_BYTES, start).decode("utf-8", errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if start:
        text = text.partition("\n")[2]
    who = f"rank{process.rank:02d}-pid{process.pid}" if process.rank is not None else f"{process.role}-pid{process.pid}"
    path = folder / f"{who}.{stream}.log"
    data = "\n".join(mask_secrets(line) for line in text.split("\n")).encode("utf-8")
    command = ["tail", "-c", str(MAX_LOG_BYTES), clean_text(target)]
    try:
        write_new(path, data, mtime_ns=status.st_mtime_ns)
    except OSError as error:
        return Item(
            path="", kind="log", rank=process.rank, pid=process.pid, host=host, command=command, ok=False,
            error=clean_text(str(error)), reason="the bundle's folder cannot be written", redacted=False,
        )  # fmt: skip
    return Item(
        path=path.relative_to(root).as_posix(), kind="log", rank=process.rank, pid=process.pid, host=host,
        command=command, ok=True, reason=f"the last {MAX_LOG_BYTES >> 20} MiB" if start else None, redacted=True,
    )  # fmt: skip
