"""Takes from the kernel's log the lines that matter to a job: GPU, NVLink, memory, hung tasks, network, storage.

Sources in turn: dmesg, the journal, /dev/kmsg. Only lines of those kinds are kept, in one form whatever the source
(``2026-11-30T06:29:08+00:00 host kernel: message``), as the rest of a kernel log is nobody's business here.
"""

from __future__ import annotations

import errno
import os
import re
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.files import path_in_bundle, write_new
from torchtriage.bundle.manifest import Item
from torchtriage.bundle.programs import run_program

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Sequence

KIND = "kernel_log"
FILE = "kernel/dmesg.txt"
MAX_READ_BYTES = 16 << 20
MAX_LINES = 4000
MAX_LINE_CHARS = 1000
SINCE = "-2days"
_KEPT = re.compile(
    r"(?i)\bNVRM\b|\bS?Xid\b|nvidia[-_]?(?:nvswitch|uvm|modeset|peermem|fs)\b|nvlink|nvswitch|amdgpu"
    r"|out of memory|oom[-_]?kill|oom_reaper|killed process|page allocation failure"
    r"|blocked for more than|hung_task|soft lockup|hard lockup|rcu: INFO|self-detected stall"
    r"|segfault|general protection|bad page|BUG: |kernel panic|Oops"
    r"|mlx[45]_|infiniband|link is down|NETDEV WATCHDOG|\befa\b|irdma"
    r"|\bnfs4?\b|lustre|\bLNet\b|beegfs|gpfs|mmfs|\bceph|not responding"
    r"|I/O error|EXT4-fs error|XFS .{0,80}(?:error|shut)|remounting .{0,80}read-only"
    r"|\bmce\b|Machine check|Hardware Error|EDAC .{0,80}error|AER: |PCIe Bus Error"
)
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\s(.*)", re.DOTALL)
_HOST = re.compile(r"[\w.\-]{1,255} kernel: ")
_BRACKET = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}\] ")
_KMSG = re.compile(r"\d{1,6},\d{1,20},(\d{1,20}),[^;]{0,40};(.*)")
_REFUSED = re.compile(r"(?i)not permitted|permission denied|insufficient permissions|not in the .{0,40}group")
_RESTRICT = "proc/sys/kernel/dmesg_restrict"
_HELP = (
    "the kernel log is closed to this user (kernel.dmesg_restrict): run the collector as root, add the user to the "
    "group systemd-journal or adm, or have an administrator run `dmesg --time-format iso` and add the file"
)
_SOURCES: tuple[tuple[str, ...], ...] = (
    ("dmesg", "--time-format", "iso"),
    ("dmesg", "-T"),
    ("journalctl", "-k", "-q", "--no-pager", "-o", "short-iso", "--since", SINCE),
)


def probe_kernel(
    folder: Path,
    *,
    host: str,
    timeout_s: float = 5.0,
    kmsg: Path = Path("/dev/kmsg"),
    root: Path = Path("/"),
    cancelled: threading.Event | None = None,
) -> list[Item]:
    """Write the telling lines of the kernel log to ``folder/kernel/dmesg.txt``.

    Args:
        folder: this host's folder in the bundle.
        host: its name, for the manifest and the lines.
        timeout_s: limit of each source.
        kmsg: the kernel's device of its log, read without blocking.
        root: where /proc lies.
        cancelled: set by another thread to end it before its time.

    Returns:
        One item. ``ok`` without a path says that the log was read and holds no such line.
    """
    problems: list[str] = []
    for command in _SOURCES:
        ran = run_program(command, timeout_s=timeout_s, limit_bytes=MAX_READ_BYTES, keep_end=True, cancelled=cancelled)
        # Some versions of journalctl end with 0 when they were allowed to see nothing.
        refused = bool(_REFUSED.search(ran.error)) and not ran.output.strip()
        if ran.code == 0 and not refused:
            return [_keep(ran.output.decode("utf-8", errors="replace").split("\n"), command, folder, host)]
        said = "no answer in time" if ran.timed_out else ran.error or f"exit code {ran.code}"
        problems.append(f"{command[0]}: {said}")
    lines, problem = _read_kmsg(kmsg, timeout_s, root)
    if problem is None:
        return [_keep(lines, ("cat", str(kmsg)), folder, host)]
    problems.append(f"{kmsg}: {problem}")
    closed = any(_REFUSED.search(text) for text in problems) or _restricted(root)
    reason = _HELP if closed else "no source of the kernel log works here: look at it on the node itself"
    error = clean_text("; ".join(problems))
    return [
        Item(
            path="",
            kind=KIND,
            host=host,
            command=list(_SOURCES[0]),
            ok=False,
            error=error,
            reason=reason,
            redacted=False,
        )
    ]


def _keep(lines: Sequence[str], command: Sequence[str], folder: Path, host: str) -> Item:
    kept, n_lines = _telling(lines, host)
    item = Item(path="", kind=KIND, host=host, command=list(command), ok=True, redacted=True)
    if not kept:
        item.reason = f"none of the {n_lines} lines of the kernel log speaks of GPUs, memory, hung tasks or I/O errors"
        return item
    try:
        write_new(folder / FILE, ("\n".join(kept) + "\n").encode("utf-8", errors="replace"))
    except OSError as problem:
        item.ok, item.error, item.reason = (
            False,
            clean_text(str(problem)),
            "the lines could not be written to the bundle",
        )
        return item
    item.path = path_in_bundle(folder, FILE)
    if len(kept) == MAX_LINES:
        item.reason = f"only the last {MAX_LINES} such lines were kept"
    return item


def _telling(lines: Iterable[str], host: str) -> tuple[list[str], int]:
    """(the last lines that matter, in one form; how many lines there were)."""
    kept: list[str] = []
    n_lines = 0
    for line in lines:
        n_lines += bool(line.strip())
        line = line[:MAX_LINE_CHARS]
        if _KEPT.search(line):
            kept.append(line)
            if len(kept) > 2 * MAX_LINES:
                del kept[:MAX_LINES]
    return [_one_form(clean_text(line, MAX_LINE_CHARS), host) for line in kept[-MAX_LINES:]], n_lines


def _one_form(line: str, host: str) -> str:
    if (iso := _ISO.match(line)) is not None and not _HOST.match(iso[2]):
        return f"{iso[1]} {_word(host)} kernel: {iso[2]}"
    return line  # the journal's own form, or dmesg -T's: [Mon Nov 30 06:29:08 2026]


def _word(host: str) -> str:
    return re.sub(r"[^\w.\-]", "_", host)[:255] or "localhost"


def _read_kmsg(kmsg: Path, timeout_s: float, root: Path) -> tuple[list[str], str | None]:
    """(lines with their times, why it could not be read). Each read of the device gives one record."""
    try:
        descriptor = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return [], clean_text(error.strerror or str(error))
    lines: list[str] = []
    boot_s = _boot_time_s(root)
    deadline, n_bytes = time.monotonic() + timeout_s, 0
    try:
        while n_bytes < MAX_READ_BYTES and time.monotonic() < deadline:
            try:
                piece = os.read(descriptor, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:  # the record was overwritten meanwhile; the next read goes on
                    continue
                if error.errno == errno.EAGAIN:
                    break
                return lines, None if lines else clean_text(error.strerror or str(error))
            if not piece:
                break
            n_bytes += len(piece)
            lines.extend(_kmsg_lines(piece.decode("utf-8", errors="replace"), boot_s))
    finally:
        os.close(descriptor)
    return lines, None


def _kmsg_lines(text: str, boot_s: float | None) -> list[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        record = _KMSG.match(line)
        if record is None:
            continue  # properties of the record before, or its empty end
        seconds = int(record[1]) / 1e6
        if boot_s is None or seconds > 1e9:
            lines.append(f"[{seconds:12.6f}] {record[2]}")
        else:
            when = datetime.fromtimestamp(boot_s + seconds, tz=timezone.utc)
            lines.append(f"{when.isoformat(timespec='microseconds')} {record[2]}")
    return lines


def _boot_time_s(root: Path) -> float | None:
    try:
        stat = (root / "proc/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(r"(?m)^btime (\d{1,12})$", stat)
    return float(found[1]) if found else None


def _restricted(root: Path) -> bool:
    try:
        return (root / _RESTRICT).read_text(encoding="ascii", errors="replace").strip() not in ("", "0")
    except OSError:
        return False
