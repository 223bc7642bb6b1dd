"""The lines of gdb's ``bt`` and ``thread apply all bt`` (gdb 8 to 16), one at a time; values of arguments are dropped.

Stdlib only: runs inside the isolated worker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchtriage.stacks.brackets import opening_of_last_group

_THREAD = re.compile(
    r"Thread (\d{1,6}) \((?:Thread 0x[0-9a-fA-F]{1,16} \()?(?:LWP|process) (\d{1,10})\)?(?: \"([^\"]{0,64})\")?\)+:"
)
_FRAME = re.compile(r"#(\d{1,4}) {1,4}(0x[0-9a-fA-F]{1,16} in )?(\S.*)")
_PLACE = re.compile(r" (?:from ([^\s()]{1,1000})|at ([^\s()]{1,1000}):(\d{1,9}))\s*$")


@dataclass(frozen=True)
class GdbThread:
    """The header of a thread: gdb's own number (the main thread has 1), the kernel's id, the name."""

    number: str
    os_thread_id: int
    name: str | None


@dataclass(frozen=True)
class GdbFrame:
    """One frame: what is called, and the library or the source line it lies in."""

    depth: int
    function: str
    file: str
    line_number: int | None


def gdb_thread(line: str) -> GdbThread | None:
    """The header of a thread; None for any other line."""
    found = _THREAD.match(line)
    return GdbThread(found[1], int(found[2]), found[3]) if found else None


def gdb_frame(line: str) -> GdbFrame | None:
    """One frame; None for any other line."""
    found = _FRAME.match(line)
    if found is None:
        return None
    call = found[3].rstrip()
    place = _PLACE.search(call)
    if place is not None:
        call = call[: place.start()]
    opening = opening_of_last_group(call)
    function = call[: opening - 1] if opening > 0 else call.partition(" (")[0]
    if not found[2] and opening < 0 and place is None and " (" not in call and not call.startswith("<"):
        return None  # a heading or an item of a list; of a long frame the rest may stand in the next line
    file = (place[1] or place[2]) if place else ""
    return GdbFrame(int(found[1]), function, file, int(place[3]) if place and place[3] else None)
