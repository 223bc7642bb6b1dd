"""One statement about the end of a process, and how statuses are counted; shared by all that read such statements."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtriage.logs.records import Line


@dataclass
class LauncherRecord:
    """One statement about the end of one process, or of processes that are not named."""

    kind: str
    line: Line
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    exitcode: int | None = None
    host: str | None = None
    first_observed: bool = False
    reason: str | None = None
    is_order: bool = False
    """The launcher ended the process; it did not end by itself."""
    task: int | None = None
    """The number that the scheduler gave to the process: its rank, unless each task is a node."""
    error_file: str | None = None
    node: str | None = None
    """The machine of a container whose own name is ``host``."""
    detail: str | None = None
    """What the platform says about the reason, in its words."""
    memory: dict[str, int | float | str] = field(default_factory=dict[str, "int | float | str"])
    """What the statement tells of the host's memory: facts of :mod:`~torchtriage.logs.ends.host_memory`."""

    def __post_init__(self) -> None:
        """A statement that names no host is of the host whose line it is."""
        self.host = self.host or self.line.host


def status_of(text: str | None) -> int | None:
    """A process status as Python counts it: shells report a signal as 128 + its number."""
    if text is None:
        return None
    code = int(text)
    return 128 - code if 128 < code <= 192 else code


def status_of_signal(name: str) -> int | None:
    """``SIGSEGV``, ``SEGV`` or ``11`` as a status."""
    if name.isdigit():
        return -int(name)
    number = getattr(signals, name if name.startswith("SIG") else f"SIG{name}", None)
    return -int(number) if isinstance(number, int) else None


def signal_name(exitcode: int | None) -> str | None:
    """The name of the signal behind a negative exit code."""
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signals.Signals(-exitcode).name
    except ValueError:
        return None


_WORDS = {
    "Killed": -9, "Out Of Memory": -9, "Segmentation fault": -11, "Aborted": -6, "Terminated": -15, "Bus error": -7,
    "Floating point exception": -8, "Illegal instruction": -4,
}  # fmt: skip


def status_of_words(words: str) -> int | None:
    """The status behind a shell's or Slurm's words for a signal."""
    return next((code for text, code in _WORDS.items() if text in words), None)
