"""What py-spy and pystack write instead of a dump, and what to do then (py-spy 0.4.3, pystack 1.7.2)."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from torchtriage.artefacts.text import read_lines
from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from torchtriage.artefacts.inputs import Artefact

MAX_REFUSAL_BYTES = 4096
_MAX_LINES = 16

# (words of the message, what they mean and what works instead); the first that fits counts.
_REFUSALS: tuple[tuple[str, str], ...] = (
    (
        "Permission Denied: Try running again with elevated permissions",
        "the dumper may not trace this process: run it as root or with CAP_SYS_PTRACE",
    ),
    (
        "Failed to get process executable name",
        "the dumper lacks a capability that the process has: run it with CAP_SYS_PTRACE",
    ),
    (
        "Failed to suspend process",
        "the process is stopped or already traced: use `py-spy dump --nonblocking` or `pystack remote --no-block`",
    ),
    (
        "Failed to find python version from target process",
        "it is no Python process, or one that this py-spy does not know",
    ),
    ("Operation not permitted", "the dumper may not trace this process: run it as root or with CAP_SYS_PTRACE"),
    ("No such process", "the process had ended before it was dumped"),
    ("No such file or directory (os error 2)", "the process had ended before it was dumped"),
)


def refusal_in(artefact: Artefact) -> str | None:
    """The meaning of a dumper's error message when the file holds one instead of a dump, else None."""
    if artefact.kind not in ("text", "log") or artefact.size_bytes > MAX_REFUSAL_BYTES:
        return None
    try:
        lines = [line for line in islice(read_lines(artefact), _MAX_LINES) if line.strip()]
    except UnreadableError:
        return None
    if not lines or not lines[0].startswith(("Error: ", "Permission Denied", "\N{POLICE CARS REVOLVING LIGHT}")):
        return None
    text = "\n".join(lines)
    return next((meaning for words, meaning in _REFUSALS if words in text), None)
