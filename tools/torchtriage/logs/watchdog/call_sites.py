"""The Python stack that the watchdog prints of the call that timed out (torch >= 2.6 with a flight recorder).

It is the victim's call, so it says where a rank waits and not why. Frames come on lines of their own; they are believed
only where they follow their heading without a gap, since two ranks may write at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.logs.records import Line, Timeline
    from torchtriage.logs.watchdog.lines import Timeout

_FRAME = lazy_re(r"#(?P<n>\d{1,4}) (?P<function>[^\s]{1,120}) from (?P<file>[^\s:]{1,400}):(?P<line>\d{1,7})\s{0,4}$")
_LIBRARY = lazy_re(r"site-packages/|dist-packages/|/torch/|/lib/python\d|^<")
_MAX_FRAMES = 64


def add_call_sites(timeline: Timeline, timeouts: Sequence[Timeout]) -> None:
    """Give each time-out the frames of the stack that its rank printed next."""
    stacks = _stacks(timeline)
    if not stacks:
        return
    of_rank: dict[int | None, list[Timeout]] = {}
    for timeout in timeouts:
        if timeout.operation is not None:
            of_rank.setdefault(timeout.rank, []).append(timeout)
    for head, frames in stacks:
        waiting = [t for t in of_rank.get(head.rank, ()) if t.line.order < head.order and not t.frames]
        # Two groups' watchdogs write at once: of two time-outs before one stack nobody can tell whose it is.
        if len(waiting) == 1:
            waiting[0].frames = frames


def _stacks(timeline: Timeline) -> list[tuple[Line, list[Line]]]:
    heads = {(line.key[0], line.number): line for line in timeline.records.get("stack_head", ())}
    frames = {(line.key[0], line.number): line for line in timeline.records.get("stack_frame", ())}
    found: list[tuple[Line, list[Line]]] = []
    for (source, number), head in sorted(heads.items(), key=lambda item: item[1].order):
        stack: list[Line] = []
        while len(stack) < _MAX_FRAMES and (line := frames.get((source, number + 1 + len(stack)))) is not None:
            match = _FRAME.search(line.text)
            if match is None or int(match["n"]) != len(stack) or line.owner not in (None, head.owner):
                break
            stack.append(line)
        if stack:
            found.append((head, stack))
    return found


def call_of(timeout: Timeout) -> str | None:
    """The torch.distributed function that was called: ``barrier`` where the operation says ALLREDUCE."""
    match = _FRAME.search(timeout.frames[0].text) if timeout.frames else None
    return clean_text(match["function"], 80) if match else None


def site_of(timeout: Timeout) -> str | None:
    """The innermost frame of the job's own code, function (file:line)."""
    for line in timeout.frames:
        match = _FRAME.search(line.text)
        if match and not _LIBRARY.search(match["file"]):
            return clean_text(f"{match['function']} ({match['file']}:{match['line']})", 200)
    return None
