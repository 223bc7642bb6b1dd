"""Python tracebacks, put together from lines that other ranks' lines interrupt.

Knows the interpreter's formats (chained exceptions, exception groups, caret lines), and tracebacks of other processes
that stand inside a message: of DataLoader workers, Ray tasks, process pools, and in torchelastic's failure table. Does
not say whose fault it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.crashes.memory_phases import phase_of
from torchtriage.logs.crashes.out_of_memory import is_cut

if TYPE_CHECKING:
    from torchtriage.logs.records import Line, Owner

_FRAME = lazy_re(
    r"^\s{1,40}File \\?\"(?P<file>[^\"\\]{1,1024})\\?\", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,200}))?"
)
_EXCEPTION = lazy_re(r"^(?P<type>[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,100}\))?)(?::(?:\s(?P<message>.*))?)?$", re.DOTALL)
_CAUSE = "The above exception was the direct cause of the following exception"
_CONTEXT = "During handling of the above exception, another exception occurred"
_GROUP_MARK = lazy_re(r"^\s{0,64}(?:[|+](?:-\+-{1,20})?\s?)")
_GROUP_RULE = lazy_re(r"^\s{0,64}\+?-?\+-{4,}")
_LIBRARY_FILE = lazy_re(
    r"site-packages|dist-packages|/lib/python\d|/torch/|^<frozen|^<string>|importlib|/runpy\.py|_inductor|/tmp/torchinductor"
)
_LAUNCHER_FILE = lazy_re(
    r"torch/distributed/(?:run|launch|launcher|elastic)\b|accelerate/commands/|deepspeed/launcher|bin/(?:torchrun|accelerate|deepspeed)"
)
# torch's ExceptionWrapper ("Caught ValueError in DataLoader worker process 0.")
_ORIGINAL = lazy_re(r"^\s{0,8}Original Traceback \(most recent call last\):")
_REMOTE_CALL = lazy_re(r"^ray::[^\n]{1,400}?\(pid=(?P<pid>\d{1,10})")
_TABLE_INDENT = 2
MAX_MESSAGE_LINES = 40
MAX_MESSAGE_CHARS = 4000
MAX_JUNK_LINES = 50
MAX_CHAIN = 32
_MAX_TRACEBACK_LINES = 20_000
_MAX_BARE_LINES = 12


@dataclass
class Frame:
    """One "File ..., line ..., in ..." line."""

    line: Line
    file: str
    number: int
    function: str

    @property
    def where(self) -> str:
        """function (file:line)."""
        return f"{self.function} ({self.file}:{self.number})"


@dataclass(frozen=True)
class Phase:
    """What the process was doing, as one frame of the traceback shows."""

    tier: int
    name: str
    frame: Frame


@dataclass
class ExceptionRecord:
    """One exception of a chain: its type, its message and where it came from."""

    type: str
    message: str
    line: Line
    user_frame: Frame | None = None
    last_frame: Frame | None = None
    in_launcher: bool = False
    wraps: bool = False
    """Its message is the traceback of another process, whose exception stands before it in the chain."""
    phase: Phase | None = None


@dataclass
class TracebackRecord:
    """A whole traceback: the chain of exceptions, first cause first; the last one is what ended (or was caught)."""

    owner: Owner
    start: Line
    exceptions: list[ExceptionRecord]
    style: str
    is_group: bool = False
    bare: bool = False
    """Only the exception line was printed (or pasted), without frames."""
    end: Line | None = None
    rank: int | None = None

    @property
    def final(self) -> ExceptionRecord:
        """The exception that left the program, or was logged."""
        return self.exceptions[0] if self.is_group else self.exceptions[-1]

    @property
    def first_cause(self) -> ExceptionRecord:
        """The exception that came first."""
        return self.exceptions[1] if self.is_group and len(self.exceptions) > 1 else self.exceptions[0]


@dataclass
class OpenTraceback:
    """A traceback that is being read from one stream of lines."""

    owner: Owner
    start: Line
    style: str
    is_group: bool = False
    in_table: bool = False
    """It is part of torchelastic's failure table, and indented as such."""
    bare: bool = False
    """Only the exception line was printed; its message goes on in the next lines."""
    exceptions: list[ExceptionRecord] = field(default_factory=list[ExceptionRecord])
    _wrapper: ExceptionRecord | None = None
    _current: ExceptionRecord | None = None
    _user: Frame | None = None
    _last: Frame | None = None
    _phase: Phase | None = None
    _launcher: bool = False
    _state: Literal["frames", "message", "linked", "remote"] = "frames"
    _message_lines: int = 0
    _junk: int = 0
    _n_lines: int = 0
    _end: Line | None = None

    def feed(self, text: str, line: Line, *, starts_traceback: bool) -> Literal["taken", "seen", "closed"]:
        """Read one line of the stream.

        Returns:
            "taken": it belongs to the traceback alone; "seen": it may also be read as something else;
            "closed": the traceback ended before this line.
        """
        self._n_lines += 1
        if self._n_lines > _MAX_TRACEBACK_LINES:
            return "closed"
        if self.bare:
            return "closed" if starts_traceback else self._in_bare(text, line)
        if self.is_group:
            if _GROUP_RULE.match(text):
                self._state = "linked"
                return "taken"
            text = _GROUP_MARK.sub("", text, count=1) if text.lstrip()[:1] in ("|", "+") else text
            text = text if not text.startswith((" |", "|")) else text.lstrip(" |")
        elif self.in_table:
            if not text.startswith(" " * _TABLE_INDENT):
                return "closed"
            text = text[_TABLE_INDENT:]
        if starts_traceback:
            return self._start_again()
        if self._state in ("frames", "remote"):
            return self._in_frames(text, line)
        return self._in_message(text, line)

    def _start_again(self) -> Literal["taken", "closed"]:
        # Without a link in between, a second header is another traceback, unless the first had no end yet.
        if self._state == "message":
            return "closed"
        self._enter("frames")
        return "taken"

    def _enter(self, state: Literal["frames", "remote"]) -> None:
        """Begin with the frames of another exception."""
        self._state = state
        self._user = self._last = self._phase = None
        self._launcher = False
        if state == "frames":
            self._wrapper = None

    def _in_frames(self, text: str, line: Line) -> Literal["taken", "seen", "closed"]:
        if match := _FRAME.match(text):
            self._last = Frame(line, match["file"], int(match["line"]), (match["function"] or "<module>").strip())
            if _LAUNCHER_FILE.search(match["file"]):
                self._launcher = True
            if not _LIBRARY_FILE.search(match["file"]):
                self._user = self._last
            if (shown := phase_of(self._last.file, self._last.function)) is not None and (
                self._phase is None or shown[0] <= self._phase.tier
            ):
                self._phase = Phase(*shown, self._last)
            return "taken"
        if text[:1] in (" ", "\t"):
            return "taken"
        match = _EXCEPTION.match(text)
        if match is None or self._last is None or not _is_type(match["type"]):
            self._junk += 1
            return "closed" if self._junk > MAX_JUNK_LINES else "seen"
        if len(self.exceptions) < MAX_CHAIN:
            self._current = ExceptionRecord(
                short_type(match["type"]),
                (match["message"] or "")[:MAX_MESSAGE_CHARS],
                line,
                self._user,
                self._last,
                self._launcher,
                phase=self._phase,
            )
            # What another process raised came before the exception that passes it on.
            at = len(self.exceptions) if self._wrapper is None else self.exceptions.index(self._wrapper)
            self.exceptions.insert(at, self._current)
        self._state = "message"
        self._message_lines = 0
        self._end = line
        return "taken"

    def _in_message(self, text: str, line: Line) -> Literal["taken", "seen", "closed"]:
        if text.startswith((_CAUSE, _CONTEXT)):
            self._state = "linked"
            return "taken"
        if self._is_remote(text):
            self._wrapper = self._wrapper or self._current
            if self._wrapper is not None:
                self._wrapper.wraps = True
                self._enter("remote")
                return self._in_frames(text, line) if _FRAME.match(text) else "taken"
        self._message_lines += 1
        if self._message_lines > MAX_MESSAGE_LINES:
            return "closed"
        last = self._current
        # Process pools put the traceback that they pass on into triple quotes.
        quotes = text.strip() == '"""'
        if last is not None and self._state == "message" and len(last.message) < MAX_MESSAGE_CHARS and not quotes:
            last.message += "\n" + text[: MAX_MESSAGE_CHARS - len(last.message)]
            self._end = line
        return "taken" if self.style else "seen"

    def _in_bare(self, text: str, line: Line) -> Literal["seen", "closed"]:
        """Go on with a message that a narrow window broke; what follows it may as well be read as something else."""
        last = self.exceptions[-1]
        if self._n_lines > _MAX_BARE_LINES or not text.strip() or not is_cut(last.message):
            return "closed"
        last.message += "\n" + text[: MAX_MESSAGE_CHARS - len(last.message)]
        self._end = line
        return "seen"

    def _is_remote(self, text: str) -> bool:
        """Whether the traceback of another process begins here, inside the message of an exception."""
        if _ORIGINAL.match(text):
            return True
        if self._state == "linked":
            return self._wrapper is not None and _REMOTE_CALL.match(text) is not None
        current = self._current
        return current is not None and _FRAME.match(text) is not None and current.message.startswith("ray::")

    def _owner_of_all(self) -> Owner:
        """The process that raised first: what a driver prints of a task is the task's."""
        for exception in self.exceptions:
            if self.owner is None and exception.wraps and (call := _REMOTE_CALL.match(exception.message)):
                return f"pid:{int(call['pid'])}"
        return self.owner

    def record(self) -> TracebackRecord | None:
        """What was read, or None when no exception line came."""
        if not self.exceptions:
            return None
        return TracebackRecord(
            self._owner_of_all(),
            self.start,
            self.exceptions,
            self.style,
            is_group=self.is_group,
            bare=self.bare,
            end=self._end or self.exceptions[-1].line,
        )


def bare_exception(owner: Owner, line: Line, text: str, style: str) -> TracebackRecord | None:
    """An exception line that stands alone, as reports quote it."""
    match = _EXCEPTION.match(text)
    if match is None:
        return None
    record = ExceptionRecord(short_type(match["type"]), (match["message"] or "")[:MAX_MESSAGE_CHARS], line)
    return TracebackRecord(owner, line, [record], style, bare=True, end=line)


def open_bare(found: TracebackRecord) -> OpenTraceback | None:
    """What goes on reading an exception line whose message is cut; None where it is whole."""
    if not is_cut(found.final.message):
        return None
    return OpenTraceback(found.owner, found.start, found.style, bare=True, exceptions=found.exceptions)


def is_frame(text: str) -> bool:
    """Whether a line is one of a traceback's frames."""
    return _FRAME.match(text) is not None


def short_type(name: str) -> str:
    """The class name without its module; Ray's ``RayTaskError(ValueError)`` is a ValueError."""
    if name.endswith(")") and "(" in name:
        name = name[name.index("(") + 1 : -1]
    return name.rpartition(".")[2][:120]


def _is_type(name: str) -> bool:
    last = short_type(name)
    return last[:1].isupper() or "." in name or last.endswith("error")
