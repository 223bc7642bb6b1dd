"""What crashing processes print, put together per process: the line that says so, ``what()``, and the stack below it.

Knows the words of libstdc++, glibc, glog, UCX, Open MPI, Python's faulthandler, torch's signal handlers and the Linux
kernel. Collects; whether it is a crash of native code is for ``native_crash`` to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.crashes.cpp_frames import NativeFrame, frame_of

if TYPE_CHECKING:
    from torchtriage.logs.records import Line, Owner

CRASH_TEXTS: tuple[str, ...] = (
    "terminate called ",
    "Fatal Python error: ",
    "*** Aborted at ",
    " received by PID ",
    "corrupted size vs. prev_size",
    "corrupted double-linked list",
    "free(): ",
    "double free or corruption",
    "malloc(): ",
    "malloc_consolidate(): ",
    "realloc(): ",
    "munmap_chunk(): ",
    "stack smashing detected",
    "Process received signal",
    "] Signal: ",
    "Caught signal ",
    "encountered in worker.",
    ": segfault at ",
    "general protection fault",
    "trap invalid opcode",
    "Segfault encountered",
    " received signal SIG",
)
MAX_BLOCKS = 2000
_MAX_OPEN = 2048
_MAX_FRAMES = 64
_MAX_LINES = 600
_MAX_OTHER_LINES = 8
_CHARS = 1000

_HEADERS = tuple(
    lazy_re(form)
    for form in (
        r"^terminate called after throwing an instance of '(?P<type>[^']{1,300})'",
        r"^terminate called (?P<what>recursively|without an active exception)",
        r"^Fatal Python error: (?P<word>[A-Z][\w \-]{2,60})",
        r"^\*\*\* (?P<signal>SIG[A-Z]{2,8}) .{0,60}?received by PID (?P<pid>\d{1,10})",
        r"^(?P<heap>(?:corrupted size vs\. prev_size|corrupted double-linked list|free\(\): |double free or corruption|"
        r"malloc\(\): |malloc_consolidate\(\): |realloc\(\): |munmap_chunk\(\): ).{0,80})$",
        r"^(?P<heap>\*\*\* stack smashing detected \*\*\*.{0,60})",
        r"^(?:\[[\w.\-]{1,100}:\d{1,10}\] )?Signal: (?P<word>[A-Z][\w \-]{2,40}?) \((?P<number>\d{1,2})\)",
        r"Caught signal (?P<number>\d{1,2}) \((?P<what>[^)]{1,200})\)",
        r"ERROR: Unexpected (?P<word>segmentation fault|bus error|floating-point exception) encountered in worker\.",
        r"(?P<program>[\w.\-:/]{1,64})\[(?P<pid>\d{1,10})\]: (?P<what>segfault at [0-9a-f]{1,16} .{0,120}?)"
        r"(?: in (?P<library>[\w.+\-]{1,200})\[|$)",
        r"traps: (?P<program>[\w.\-:/]{1,64})\[(?P<pid>\d{1,10})\] (?P<what>general protection fault|trap invalid op)"
        r".{0,120}?(?: in (?P<library>[\w.+\-]{1,200})\[|$)",
        r"!+ (?P<word>Segfault) encountered !+",
        r"^Thread \d{1,6} .{0,100}?received signal (?P<signal>SIG[A-Z]{2,8})",
    )
)
_NUMBERS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}
_WORDS = {
    "segmentation fault": "SIGSEGV", "segfault": "SIGSEGV", "bus error": "SIGBUS", "floating": "SIGFPE",
    "aborted": "SIGABRT", "illegal instruction": "SIGILL", "general protection fault": "SIGSEGV",
    "trap invalid op": "SIGILL",
}  # fmt: skip
_WHAT = lazy_re(r"^\s{0,8}what\(\):\s{1,4}(?P<what>.{1,600})")
_CURRENT = lazy_re(r"^Current thread(?: 0x[0-9a-f]{1,16}|'s C stack trace)")
_OTHER_THREAD = lazy_re(r"^Thread 0x[0-9a-f]{1,16} ")
_RAISED = lazy_re(r"^Exception raised from ")


@dataclass
class CrashBlock:
    """What one process printed about one crash."""

    owner: Owner
    start: Line
    signal: str | None = None
    exception: str | None = None
    """The C++ type that was thrown and not caught."""
    what: str | None = None
    heap: bool = False
    """The allocator found its own structures damaged."""
    library: str | None = None
    pid: int | None = None
    frames: list[NativeFrame] = field(default_factory=list[NativeFrame])
    _other_thread: bool = False
    _n_lines: int = 0
    _n_other: int = 0

    def feed(self, text: str, line: Line) -> bool:
        """Read one more line of the process; False when the block has ended."""
        self._n_lines += 1
        if not text.strip() or _RAISED.match(text):
            return self._n_lines < _MAX_LINES
        if match := _WHAT.match(text):
            self.what = self.what or match["what"].strip()
        elif _CURRENT.match(text):
            self._other_thread = False
        elif _OTHER_THREAD.match(text):
            self._other_thread = True
        elif (frame := frame_of(text, line)) is not None:
            if not self._other_thread and len(self.frames) < _MAX_FRAMES:
                self.frames.append(frame)
        else:
            self._n_other += 1
        return self._n_other <= _MAX_OTHER_LINES and self._n_lines < _MAX_LINES


@dataclass
class CrashReader:
    """Collects the crashes of one source after another."""

    blocks: list[CrashBlock] = field(default_factory=list[CrashBlock])
    open: dict[tuple[Owner, str], CrashBlock] = field(default_factory=dict[tuple["Owner", str], CrashBlock])
    """By owner and form of the prefix, as long as lines may follow."""

    def start(self, key: tuple[Owner, str], text: str, line: Line) -> None:
        """Read a line that holds one of :data:`CRASH_TEXTS`."""
        block = _header(text[:_CHARS], line, key[0])
        if block is None or len(self.blocks) >= MAX_BLOCKS:
            return
        self.blocks.append(block)
        if key in self.open or len(self.open) < _MAX_OPEN:
            self.open[key] = block

    def feed(self, key: tuple[Owner, str], text: str, line: Line) -> None:
        """Read a line of a process that has begun to tell of a crash."""
        block = self.open.get(key)
        if block is not None and not block.feed(text[:_CHARS], line):
            del self.open[key]

    def end_source(self) -> None:
        """Nothing goes on from one file to the next."""
        self.open.clear()


def _header(text: str, line: Line, owner: Owner) -> CrashBlock | None:
    for form in _HEADERS:
        match = form.search(text)
        if match is None:
            continue
        found = {name: value for name, value in match.groupdict().items() if value is not None}
        block = CrashBlock(owner, line, exception=found.get("type"), library=found.get("library"))
        block.heap = "heap" in found
        block.what = found.get("heap") or found.get("what")
        block.pid = int(found["pid"]) if "pid" in found else None
        block.signal = found.get("signal") or _signal_of(found)
        return block
    return None


def _signal_of(found: dict[str, str]) -> str | None:
    if "number" in found:
        return _NUMBERS.get(int(found["number"]))
    said = (found.get("word") or found.get("what") or "").lower()
    by_word = next((signal for word, signal in _WORDS.items() if said.startswith(word)), None)
    aborts = "type" in found or "heap" in found or said in ("recursively", "without an active exception")
    return by_word or ("SIGABRT" if aborts else None)
