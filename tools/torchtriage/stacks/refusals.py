"""What py-spy and pystack write instead of a dump, what that says of the process, and what to do then.

Texts of py-spy 0.4.3 and pystack 1.7.2. Stdlib only: runs inside the isolated worker.
"""

from __future__ import annotations

import re
from typing import Any

MAX_REFUSAL_LINES = 40
_STARTS = ("Error: ", "Permission Denied", "\N{POLICE CARS REVOLVING LIGHT}")
_PID = re.compile(r"\bPid\((\d{1,10})\)|\bpid[ =:]{1,2}(\d{1,10})\b")

# (words that must all stand in the message, the state of the process, what it means and what works instead); the first
# that fits counts.
_REFUSALS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("Failed to suspend process", "SIGSTOP"),
        "stopped",
        "the process was already stopped; `py-spy dump --nonblocking` or `pystack remote --no-block` can read it",
    ),
    (
        ("Permission Denied: Try running again with elevated permissions",),
        "unreadable",
        "the dumper may not trace this process: run it as root or with CAP_SYS_PTRACE",
    ),
    (
        ("Failed to get process executable name",),
        "unreadable",
        "the dumper lacks a capability that the process has: run it with CAP_SYS_PTRACE",
    ),
    (
        ("Failed to suspend process",),
        "unreadable",
        "the process is already traced: use `py-spy dump --nonblocking` or `pystack remote --no-block`",
    ),
    (
        ("Failed to find python version from target process",),
        "unreadable",
        "it is no Python process, or one that this py-spy does not know",
    ),
    (
        ("Operation not permitted",),
        "unreadable",
        "the dumper may not trace this process: run it as root or with CAP_SYS_PTRACE",
    ),
    (("No such process",), "exited", "the process had ended before it was dumped"),
    (("No such file or directory (os error 2)",), "exited", "the process had ended before it was dumped"),
)


def refusal_in(lines: list[str]) -> dict[str, Any] | None:
    """What a dumper's error message says of the process, or None when the lines hold no such message.

    Returns:
        ``{"state", "meaning", "pid", "where", "text"}``; ``where`` is the number of the line that tells it.
    """
    if not lines or not lines[0].startswith(_STARTS):
        return None
    text = "\n".join(lines)
    for words, state, meaning in _REFUSALS:
        if not all(word in text for word in words):
            continue
        number = next(n for n in range(len(lines), 0, -1) if words[-1] in lines[n - 1])
        pid = _PID.search(text)
        return {
            "state": state,
            "meaning": meaning,
            "pid": int(pid[1] or pid[2]) if pid else None,
            "where": str(number),
            "text": lines[number - 1][:400],
        }
    return None
