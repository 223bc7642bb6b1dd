"""Copy the ends of the files that a job's processes write their output to: the log that nobody has to look for."""

from __future__ import annotations

import math
import os
import re
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.files import write_new
from torchtriage.bundle.log_secrets import LINE_END, mask_lines
from torchtriage.bundle.manifest import Item
from torchtriage.bundle.stream_rights import why_not_copied

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from torchtriage.bundle.processes import JobProcess

MAX_LOG_BYTES = 2 << 20
MAX_LOGS = 512
LIMIT_S = 10.0
"""For all logs together; masking is what takes time."""
# A file that was cut while it was open is filled up with them at the next write.
_ZEROS = re.compile(r"\0{16,}")
# Of a log that is one endless line: more than the longest secret that could have been cut in two.
_CUT_CHARS = 8192
_STREAMS = {1: "stdout", 2: "stderr"}


def copy_logs(
    processes: Sequence[JobProcess],
    folder: Path,
    *,
    host: str,
    proc: Path = Path("/proc"),
    root: Path | None = None,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
    cancelled: threading.Event | None = None,
) -> list[Item]:
    """Copy the last part of each regular file that is standard output or error of a rank or a launcher, once.

    Secrets are masked, the newest lines first: each log has its share of the time that is left, and what there was no
    time for is left out. A terminal, a pipe or a socket cannot be read again and is left out without a word: what goes
    there is in the file of whoever reads it, usually the launcher.
    """
    root = root or folder.parent.parent
    items: list[Item] = []
    seen: set[tuple[int, int]] = set()

    def now() -> float:
        """No time is left once it is cancelled: then of each log its last line is taken."""
        return math.inf if cancelled is not None and cancelled.is_set() else clock()

    deadline = clock() + limit_s
    streams = [(p, number) for p in processes if p.role in ("rank", "launcher") for number in _STREAMS]
    for done, (process, number) in enumerate(streams):
        if len(items) >= MAX_LOGS:
            break
        link = proc / str(process.pid) / "fd" / str(number)
        share_s = max(0.0, deadline - now()) / min(len(streams) - done, MAX_LOGS - len(items))
        item = _copy(process, proc, link, _STREAMS[number], folder, host, root, seen, share_s, now)
        if item is not None:
            items.append(item)
    return items


def _left_out(process: JobProcess, host: str, stream: str, why: str) -> Item:
    return Item(
        path="", kind="log", rank=process.rank, pid=process.pid, host=host, ok=False,
        error=f"{stream} was not copied", reason=why, redacted=False,
    )  # fmt: skip


def _copy(
    process: JobProcess,
    proc: Path,
    link: Path,
    stream: str,
    folder: Path,
    host: str,
    root: Path,
    seen: set[tuple[int, int]],
    limit_s: float,
    clock: Callable[[], float],
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
        if (why := why_not_copied(proc, process.pid, int(link.name), process.uid, descriptor)) is not None:
            return _left_out(process, host, stream, why)
        seen.add((status.st_dev, status.st_ino))
        start = max(0, status.st_size - MAX_LOG_BYTES)
        text = os.pread(descriptor, MAX_LOG_BYTES, start).decode("utf-8", errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
    begins_anew = text.startswith("\0")  # what follows a hole was written by itself
    text = _ZEROS.sub("", text)
    before = ""
    if start and not begins_anew:
        first = LINE_END.search(text)
        before = text[: first.start()] if first is not None else ""
        text = text[first.end() if first is not None else _CUT_CHARS :]
    text, whole = mask_lines(text, clock() + limit_s, clock, before)
    who = f"rank{process.rank:02d}-pid{process.pid}" if process.rank is not None else f"{process.role}-pid{process.pid}"
    path = folder / f"{who}.{stream}.log"
    data = text.encode("utf-8")
    reason = f"the last {MAX_LOG_BYTES >> 20} MiB" if start else None
    if not whole:
        reason = f"only the last {len(data) >> 10} KiB: there was no time to mask the secrets of more"
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
        command=command, ok=True, reason=reason, redacted=True,
    )  # fmt: skip
