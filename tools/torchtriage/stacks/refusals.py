"""What py-spy and pystack write instead of a dump, what that says of the process, and what to do then.

Texts of py-spy 0.4.3 and pystack 1.7.2, and our own for a process that was stopped before. Stdlib only: runs inside the
isolated worker.
"""

from __future__ import annotations

import re
from typing import Any

MAX_REFUSAL_LINES = 40
_STARTS = ("Error: ", "Permission Denied", "\N{POLICE CARS REVOLVING LIGHT}")
# Of anyhow and of a panic in Rust.
_BACKTRACE = re.compile(r"^\s{0,8}(?:Stack backtrace|stack backtrace):", re.MULTILINE)
NO_PYTHON = "Failed to find python version from target process"
_MAX_TOLD_CHARS = 240
_NUMBERED = re.compile(r"^\d{1,2}: ")
_PID = re.compile(r"\bPid\((\d{1,10})\)|\bpid[ =:]{1,2}(\d{1,10})\b")

NOT_SUSPENDED = "Error: not suspended, for it was stopped already: "
"""How the dump of a process begins that was stopped and was therefore not attached to; its state in /proc follows."""

NOT_HAD = "Error: no stack could be had of pid "
"""How the file of a process begins that could not be dumped; its number and the reason follow."""
THE_PROCESS_HAS_ENDED = "the process has ended"

_NO_CAPABILITY = "the dumper may not trace this process: run it as root or with CAP_SYS_PTRACE"
_ENDED = "the process had ended before it was dumped"

# (words that must all stand in the message, the state of the process, whether no other way of dumping would do better,
# what it means and what works instead); the first that fits counts.
_REFUSALS: tuple[tuple[tuple[str, ...], str, bool, str], ...] = (
    (
        (NOT_SUSPENDED, "State:"),
        "stopped",
        True,
        "a signal or a debugger had stopped the process before it was looked at; it was left as it was",
    ),
    (
        ("Failed to suspend process", "SIGSTOP"),
        "stopped",
        False,
        "the process was already stopped; `py-spy dump --nonblocking` or `pystack remote --no-block` can read it",
    ),
    (("Permission Denied: Try running again with elevated permissions",), "unreadable", True, _NO_CAPABILITY),
    (
        ("Failed to get process executable name", "Permission denied"),
        "unreadable",
        True,
        "the dumper lacks a capability that the process has: run it with CAP_SYS_PTRACE",
    ),
    (
        ("Failed to get process executable name", "No such file or directory (os error 2)"),
        "exited",
        True,
        _ENDED,
    ),
    (
        ("Failed to suspend process",),
        "unreadable",
        False,
        "the process is already traced: use `py-spy dump --nonblocking` or `pystack remote --no-block`",
    ),
    (
        (NO_PYTHON,),
        "unreadable",
        True,
        "it is no Python process, or one that this py-spy does not know",
    ),
    (
        ("gil_thread_id",),
        "unreadable",
        True,
        "a free-threaded build of Python, which this py-spy cannot read: use `pystack remote PID`",
    ),
    (
        ("Unsupported version of Python",),
        "unreadable",
        True,
        "this py-spy does not know that version of Python: install a newer py-spy, or use `pystack remote PID`",
    ),
    ((NOT_HAD, THE_PROCESS_HAS_ENDED), "exited", True, _ENDED),
    (("Operation not permitted",), "unreadable", False, _NO_CAPABILITY),
    (("No such process",), "exited", True, _ENDED),
    (("No such file or directory (os error 2)",), "exited", True, _ENDED),
)


def without_backtrace(error: str) -> str:
    """A dumper's message without where in the dumper it arose, which says nothing of the process."""
    return _BACKTRACE.split(error, maxsplit=1)[0].strip()


def in_one_line(error: str) -> str:
    """What a dumper's message says, without its decoration: ``Failed to suspend process: EPERM``."""
    if NO_PYTHON in error:
        return "py-spy finds no Python in it"
    lines = [line.strip() for line in without_backtrace(error).splitlines()[:MAX_REFUSAL_LINES]]
    told = [line.removeprefix("Error: ") for line in lines if line and line != "Caused by:"]
    return ": ".join(_NUMBERED.sub("", line) for line in told)[:_MAX_TOLD_CHARS]


def refusal_in(lines: list[str]) -> dict[str, Any] | None:
    """What a dumper's error message says of the process, or None when the lines hold no such message.

    Returns:
        ``{"state", "final", "meaning", "pid", "where", "text"}``; ``final`` when no other way of dumping would do
        better; ``where`` is the number of the line that tells it.
    """
    if not lines or not lines[0].startswith(_STARTS):
        return None
    text = "\n".join(lines)
    for words, state, final, meaning in _REFUSALS:
        if not all(word in text for word in words):
            continue
        number = next(n for n in range(len(lines), 0, -1) if words[-1] in lines[n - 1])
        pid = _PID.search(text)
        return {
            "state": state,
            "final": final,
            "meaning": meaning,
            "pid": int(pid[1] or pid[2]) if pid else None,
            "where": str(number),
            "text": lines[number - 1][:400],
        }
    if lines[0].startswith(NOT_HAD):
        pid_text, _, why = lines[0].removeprefix(NOT_HAD).partition(": ")
        return {
            "state": "unreadable",
            "final": True,
            "meaning": f"the stack could not be had: {why[:_MAX_TOLD_CHARS] or 'no reason is told'}",
            "pid": int(pid_text) if pid_text.isascii() and pid_text.isdigit() and len(pid_text) <= 10 else None,
            "where": "1",
            "text": lines[0][:400],
        }
    return None
