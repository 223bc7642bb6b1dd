"""Stack dumps inside a text that tells more: cut out, read as recorded dumps are, their lines numbered as in the text.

A heading right above a dump ("rank 3:"), or the mark of a rank before each of its lines, says whose it is; where that
is not plain, nobody's. A process that crashed did not wait where it stood, so its dump is left to the log reader.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchtriage.stacks.text_dumps import TextDumps

MAX_LINES = 100_000
MAX_LINE_CHARS = 4000
MAX_BLOCKS = 256
_MAX_HEADING_CHARS = 120
_MAX_STREAMS = 4096

_MAY_HOLD = lazy_re(
    r"(?:Thread|Process) (?:0x)?[0-9a-fA-F]{1,16}|\(most recent call first\):|Traceback for thread |^.{0,40}?#0 ",
    flags=re.MULTILINE,
)
# Quotation marks of Markdown and mail, then whoever printed the line.
_BEFORE = lazy_re(r"(?:> ?){0,4}(?:(?:\[rank(?P<rank>\d{1,6})\]:? ?)|(?P<local>\[default\d{1,6}\]):)?")
_START = lazy_re(
    r"Process \d{1,10}: |Thread (?:0x[0-9A-Fa-f]{1,16}|\d{1,10}) \((?:active|idle)"
    r"|(?:Current thread|Thread) 0x[0-9A-Fa-f]{1,16} .{0,210}\(most recent call first\):"
    r"|(?:Stack|Traceback) \(most recent call first\):|Timeout \(\d{1,3}:\d\d:\d\d|Fatal Python error: "
    r"|Traceback for thread \d{1,10}|Thread \d{1,6} \((?:Thread 0x|LWP |process )"
    r"|#0 {1,4}(?:0x[0-9a-fA-F]{1,16} in |\S{1,200} \()"
)
_BESIDE = lazy_re(
    r"Python v\d|Parent Process \d|Extension modules:|Current thread's C stack trace|\(gdb\)"
    r"|\[(?:Switching|New |Current)|--Type <RET>|#\d{1,4} {1,4}\S|```|~~~|\$ |(?:Reading|Attaching|Using host|warning:)"
)
_NEXT_FRAME = lazy_re(r"#[1-9]\d{0,3} {1,4}(?:0x|\S{1,200} \()")
_RANK = lazy_re(r"\b(?:global )?rank[ _#:=-]{0,2}(\d{1,6})\b(?!\s?(?:[-,/&+\u2013]|and|or|to)\s?\d)", re.IGNORECASE)
_OF_OTHERS = lazy_re(r"\b(?:other|others|all|every|each|except|but|not|ranks|rest|local)\b", re.IGNORECASE)
_CRASHES = ("Segmentation fault", "Bus error", "Illegal instruction", "Floating point exception", "Floating-point")


def pasted_dumps(text: str) -> list[dict[str, Any]]:
    """The dumps in a text, in the form of :func:`torchtriage.stacks.read.read_task`, one for each block of lines."""
    if not _MAY_HOLD.search(text):
        return []
    found: list[dict[str, Any]] = []
    streams: dict[str | None, _Stream] = {}
    lines = text.split("\n", MAX_LINES)[:MAX_LINES]
    for number, raw in enumerate(lines, start=1):
        line = raw[:MAX_LINE_CHARS].rstrip("\r")
        before = _BEFORE.match(line)
        key = (before["rank"] or before["local"]) if before else None
        if key not in streams and len(streams) >= _MAX_STREAMS:
            continue
        stream = streams.setdefault(key, _Stream(int(before["rank"]) if before and before["rank"] else None))
        body = line[before.end() :] if before else line
        following = lines[number][:MAX_LINE_CHARS].lstrip("> ") if number < len(lines) else ""
        found += stream.feed(number, body, wrapped=_NEXT_FRAME.match(following) is not None)
        if len(found) >= MAX_BLOCKS:
            return found
    for stream in streams.values():
        found += stream.end()
    return found[:MAX_BLOCKS]


class _Stream:
    """The lines of one writer, and the block that is open in them."""

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._heading: int | None = None
        self._dumps: TextDumps | None = None
        self._indent = 0

    def feed(self, number: int, body: str, *, wrapped: bool) -> list[dict[str, Any]]:
        """Take a line; give the block that it ends."""
        stripped = body.lstrip(" ")
        indent = len(body) - len(stripped)
        if not stripped.strip():
            return []
        if _START.match(stripped):
            if self._dumps is None:
                # Most texts hold no stack, and need none of the readers.
                from torchtriage.stacks.text_dumps import TextDumps

                self._dumps = TextDumps()
            self._indent = indent
            self._dumps.feed(number, stripped)
            return []
        inside = self._dumps is not None and (indent > self._indent or stripped.startswith("\t"))
        heading = rank_in_heading(stripped)
        if heading is None and (inside or _BESIDE.match(stripped)):
            if self._dumps is not None and not stripped.startswith(("```", "~~~", "$ ", "(gdb)")):
                self._dumps.feed(number, body[min(indent, self._indent) :])
            return []
        if heading is None and wrapped and self._dumps is not None:
            return []
        ended = list(self.end())
        self._heading = heading
        return ended

    def end(self) -> Iterator[dict[str, Any]]:
        """Close the block; give it where it holds a stack."""
        dumps, self._dumps = self._dumps, None
        if dumps is None:
            return
        dumps.finish()
        processes = [p for p in dumps.processes.values() if not _crashed(p) and any(t["frames"] for t in p["threads"])]
        rank = self._rank if self._rank is not None else self._heading
        if rank is not None and len(processes) == 1:
            processes[0]["rank"] = rank
        if processes:
            yield {"processes": processes, "notes": _left_out(dumps), "choices": []}


def rank_in_heading(line: str) -> int | None:
    """The one rank that a short line names, where it speaks of no others."""
    if len(line) > _MAX_HEADING_CHARS or _OF_OTHERS.search(line):
        return None
    ranks = set(_RANK.findall(line))
    return int(ranks.pop()) if len(ranks) == 1 else None


def _crashed(process: dict[str, Any]) -> bool:
    return any(word in (process["fatal"] or "") for word in _CRASHES)


def _left_out(dumps: TextDumps) -> list[str]:
    if not dumps.n_cut:
        return []
    return [f"larger than what is read: {dumps.n_cut} frames, threads or processes were left out"]
