"""One pass over /proc: every process with its parent, command line and what its environment says of a rank.

Knows what the kernel shows, which is the environment as it was when the program was started: what Python code put into
``os.environ`` later is not there. A program that rewrote its title (setproctitle, Ray, vLLM) has written over it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.bundle import environment, proc_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torchtriage.bundle.proc_files import Stat

MAX_PROCESSES = 200_000
MAX_ENVIRON_BYTES = 1 << 20
MAX_COMMAND_BYTES = 16_384
MAX_ARGUMENTS = 512
MAX_LEVELS = 256
READ_TIMEOUT_S = 1.0
# No variable that tells a rank or a job lacks all of these: the common environment costs three searches.
_HINTS = (b"RANK", b"PROCID", b"MASTER_ADDR")


@dataclass(frozen=True)
class Entry:
    """One process; ``variables`` is None when its environment could not be read or was written over."""

    pid: int
    stat: Stat
    command: tuple[str, ...] = ()
    variables: Mapping[bytes, bytes] | None = field(default_factory=dict[bytes, bytes])
    """Empty too where no variable tells a rank or a job."""


@dataclass
class Table:
    """All processes by pid, and the children of each."""

    root: str
    entries: dict[int, Entry]
    children: dict[int, list[int]]
    stuck: list[int]
    """Processes whose memory is locked by a thread that waits for something, so that reading them does not return."""

    def ancestors(self, pid: int) -> Iterator[Entry]:
        """From the parent up; ends at the first process that is not known, at a circle, and after ``MAX_LEVELS``."""
        seen = {pid}
        here = self.entries.get(pid)
        while here is not None and here.stat.ppid not in seen and len(seen) <= MAX_LEVELS:
            seen.add(here.stat.ppid)
            here = self.entries.get(here.stat.ppid)
            if here is not None:
                yield here

    def descendants(self, pid: int, stop: set[int]) -> Iterator[Entry]:
        """Children first, then theirs; processes of ``stop`` and what is below them are left out."""
        seen = {pid, *stop}
        level = [pid]
        while level:
            following: list[int] = []
            for parent in level:
                for child in self.children.get(parent, ()):
                    if child not in seen:
                        seen.add(child)
                        following.append(child)
                        yield self.entries[child]
            level = following


def read_table(proc: Path, timeout_s: float = READ_TIMEOUT_S) -> Table:
    """Read all processes; what ends meanwhile is left out."""
    root = str(proc)
    pids = proc_files.numbers_in(root, MAX_PROCESSES)
    found, stuck = proc_files.each(pids, lambda pid: _read(root, pid), timeout_s)
    entries = {pid: entry for pid, entry in found.items() if entry is not None}
    for pid in stuck:
        stat = proc_files.parse_stat(proc_files.read(f"{root}/{pid}/stat", 4096))
        if stat is not None:
            entries[pid] = Entry(pid, stat, (stat.name,), None)
    children: dict[int, list[int]] = {}
    for pid, entry in sorted(entries.items()):
        children.setdefault(entry.stat.ppid, []).append(pid)
    return Table(root, entries, children, stuck)


def _read(root: str, pid: int) -> Entry | None:
    folder = f"{root}/{pid}"
    stat = proc_files.parse_stat(proc_files.read(f"{folder}/stat", 4096))
    if stat is None:
        return None
    if stat.is_kernel_thread or stat.state in "ZX":
        return Entry(pid, stat)
    command = _command(proc_files.read(f"{folder}/cmdline", MAX_COMMAND_BYTES))
    try:
        data = proc_files.read_or_raise(f"{folder}/environ", MAX_ENVIRON_BYTES)
    except PermissionError:
        return Entry(pid, stat, command, None)
    except (OSError, ValueError):
        return Entry(pid, stat, command)
    if any(hint in data for hint in _HINTS):
        return Entry(pid, stat, command, environment.parse(data))
    if data and not data.strip(b"\0 "):
        return Entry(pid, stat, command, None)
    return Entry(pid, stat, command)


def _command(data: bytes | None) -> tuple[str, ...]:
    arguments = (data or b"").rstrip(b"\0 ").split(b"\0")[:MAX_ARGUMENTS]
    return tuple(argument.decode("utf-8", errors="replace") for argument in arguments) if arguments != [b""] else ()
