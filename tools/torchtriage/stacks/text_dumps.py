"""The text forms of stack dumps, line by line: py-spy 0.4, CPython's faulthandler (3.8 to 3.15), pystack 1.7 and gdb.

Stdlib only: runs inside the isolated worker. It keeps function, file and line of each frame; values of variables
(``py-spy --locals``, ``pystack --locals``) and source lines are dropped where they are met.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.stacks.brackets import opening_of_last_group
from torchtriage.stacks.gdb_text import gdb_frame, gdb_thread

MAX_PROCESSES = 4096
MAX_THREADS = 2000
MAX_FRAMES = 400
MAX_TOTAL_FRAMES = 500_000
MAX_CHARS = 400

_PROCESS = re.compile(r"Process (\d{1,10}): ?(.*)")
_PARENT = re.compile(r"Parent Process (\d{1,10}): ")
_PYSPY_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]{1,16}|\d{1,10}) \(([a-z+]{1,24})\)(?:: "(.{0,1000})")?\s*$')
_FAULT_THREAD = re.compile(
    r"(?:Current thread|Thread) (0x[0-9A-Fa-f]{1,16})(?: \[(.{0,200})\])? \(most recent call first\):"
)
# The second is what gdb's py-bt prints.
_FAULT_SINGLE = ("Stack (most recent call first):", "Traceback (most recent call first):")
_FAULT_C_STACK = "Current thread's C stack trace (most recent call first):"
_FAULT_STARTS = ("Timeout (", "Fatal Python error: ")
_FAULT_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?),? in (.*)')
_FAULT_C_FRAME = re.compile(r'  Binary file "(.*)", at (.*?)\+0x[0-9a-fA-F]{1,16} \[(0x[0-9a-fA-F]{1,16})\]')
_PYSTACK_THREAD = re.compile(
    r"Traceback for thread (\d{1,10})(?: \(([^()]{0,64})\))?(?: \[([^\]]{0,200})\])? \(most recent call last\):"
)
_PYSTACK_FRAME = re.compile(r'\s{1,16}\((Python|C)\) File "(.*)", line (\d{1,9}), in (.*)')
# How a header begins that is not whole: the file ends inside it.
_CUT_HEADERS = ("Thread ", "Current thread", "Process ", "Traceback for thread", "Stack (most")
_FILE_LINE = re.compile(r":(\d{1,9})$")
_SOURCE_FILE = re.compile(r"\.(?:py|pyw|pyx|ipynb)$|^<|<.{0,80}>")


class TextDumps:
    """Collects the processes of one text file; of several dumps of one process the last one stays."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self.processes: dict[str, dict[str, Any]] = {}
        self.n_dumps: dict[str, int] = {}
        self.n_frames = 0
        self.n_cut = 0
        self._process: dict[str, Any] | None = None
        self._thread: dict[str, Any] | None = None
        self._current: dict[str, Any] | None = None
        self._c_stack: list[dict[str, Any]] | None = None

    def feed(self, number: int, line: str) -> bool:
        """Take one line (numbered from 1); say whether it was understood."""
        if "\x1b" in line:
            line = re.sub(r"\x1b\[[0-9;]{0,16}m", "", line)
        if not line.strip():
            return True
        if line[0] in " \t":
            return self._inner(number, line)
        return self._header(number, line)

    def finish(self) -> None:
        """Close the dump that is open at the end of the file."""
        self._end_process()

    def _header(self, number: int, line: str) -> bool:
        if found := _PYSPY_THREAD.match(line):
            self._start_thread("py-spy", found[1], found[3], number, line)
            self._flags(active=not found[2].startswith("idle"), owns_gil=found[2].endswith("+gil"))
            if not found[1].startswith("0x"):
                self._set("os_thread_id", int(found[1]))
        elif found := _PROCESS.match(line):
            self._start_process("py-spy", int(found[1]), clean_text(found[2], MAX_CHARS))
        elif found := _PARENT.match(line):
            if self._process is not None:
                self._process["parent"] = int(found[1])
        elif found := _FAULT_THREAD.match(line):
            self._start_thread("faulthandler", found[1].lower(), found[2], number, line)
            if line.startswith("Current"):
                self._current = self._thread
        elif found := _PYSTACK_THREAD.match(line):
            status = (found[3] or "").lower()
            self._start_thread("pystack", found[1], found[2], number, line)
            self._flags(active=None, owns_gil="has the gil" in status)
            self._set("os_thread_id", int(found[1]))
            if "garbage" in status:
                self._set("gc_note", frame("Garbage collecting", "", None, True, str(number), line))
        elif line.startswith(("Thread ", "#")) and self._gdb(number, line):
            return True
        elif line.startswith(_FAULT_C_STACK):
            self._thread = None
            self._c_stack = []
        elif line.startswith(_FAULT_SINGLE):
            self._start_process("faulthandler", None, None)
            self._start_thread("faulthandler", "stack", None, number, line)
            self._current = self._thread
        elif line.startswith(_FAULT_STARTS):
            self._start_process("faulthandler", None, None)
            if line.startswith("Fatal") and self._process is not None:
                self._process["fatal"] = _clean(line)
        else:
            # Program output between dumps ends the thread, so that its indented lines are not taken for frames.
            if not line.startswith("Python v"):
                self._thread = None
            return not line.startswith(_CUT_HEADERS)
        return True

    def _gdb(self, number: int, line: str) -> bool:
        """Take a line of gdb's; say whether it was one."""
        if (thread := gdb_thread(line)) is not None:
            self._start_thread("gdb", thread.number, thread.name, number, line)
            self._set("os_thread_id", thread.os_thread_id)
            return True
        found = gdb_frame(line)
        if found is None:
            return False
        of_gdb = self._thread is not None and self._process is not None and self._process["tool"] == "gdb"
        if found.depth == 0 and (not of_gdb or (self._thread is not None and self._thread["frames"])):
            self._start_thread("gdb", "bt", None, number, line)
        elif not of_gdb:
            return False
        self._add(frame(found.function, found.file, found.line_number, True, str(number), line))
        return True

    def _inner(self, number: int, line: str) -> bool:
        if self._c_stack is not None and (found := _FAULT_C_FRAME.match(line)):
            if len(self._c_stack) < MAX_FRAMES:
                self._c_stack.append(frame(found[2] or found[3], found[1], None, True, str(number), line))
            return True
        thread, process = self._thread, self._process
        if thread is None or process is None:
            return False
        tool = process["tool"]
        if tool == "py-spy":
            return self._pyspy_frame(number, line)
        if tool == "gdb":
            return True  # the rest of a long line, or a variable
        if tool == "faulthandler":
            if found := _FAULT_FRAME.match(line):
                function = found[3].partition(" (")[0]
                self._add(frame(function, found[1], _int(found[2]), False, str(number), line))
            elif line.strip() == "Garbage-collecting":
                self._add(frame("Garbage-collecting", "", None, True, str(number), line))
            return found is not None or line.lstrip().startswith(("Garbage", "<", "..."))
        if found := _PYSTACK_FRAME.match(line):
            self._add(_pystack_frame(found, number, line))
        return found is not None or not line.lstrip().startswith(("(Python) ", "(C) "))

    def _pyspy_frame(self, number: int, line: str) -> bool:
        if line[:4] != "    " or line[4:5] in ("", " ", "\t"):
            return line.startswith("        ")
        body = line.rstrip()
        opening = opening_of_last_group(body)
        if opening < 6:
            return False
        function, place = body[4 : opening - 1], body[opening + 1 : -1]
        found = _FILE_LINE.search(place)
        file, line_number = (place[: found.start()], int(found[1])) if found else (place, None)
        self._add(frame(function, file, line_number, is_native(function, file, line_number), str(number), line))
        return True

    def _start_process(self, tool: str, pid: int | None, command: str | None) -> None:
        self._end_process()
        self._process = {**new_process(tool, pid, command), "seen": set()}

    def _start_thread(self, tool: str, ident: str, name: str | None, number: int, line: str) -> None:
        process = self._process
        if process is None or process["tool"] != tool or ident in process["seen"]:
            self._start_process(tool, None, None)
            process = self._process
        assert process is not None  # noqa: S101  # for the type checker: _start_process sets it
        process["seen"].add(ident)
        self._c_stack = None
        self._thread = {
            "name": clean_text(name, MAX_CHARS) if name else None,
            "os_thread_id": None,
            "active": None,
            "owns_gil": None,
            "main": False,
            "frames": [],
            "where": str(number),
            "text": clean_text(line, MAX_CHARS),
            "ident": ident,
        }
        if len(process["threads"]) < MAX_THREADS:
            process["threads"].append(self._thread)
        else:
            self.n_cut += 1

    def _flags(self, *, active: bool | None, owns_gil: bool) -> None:
        self._set("active", active)
        self._set("owns_gil", owns_gil)

    def _set(self, key: str, value: object) -> None:
        if self._thread is not None:
            self._thread[key] = value

    def _add(self, new: dict[str, Any]) -> None:
        if self._thread is None:
            return
        frames = self._thread["frames"]
        # pystack prints outermost first: there the last ones are the innermost, which matter.
        if len(frames) >= MAX_FRAMES or self.n_frames >= MAX_TOTAL_FRAMES:
            self.n_cut += 1
            if self._process is not None and self._process["tool"] == "pystack" and frames:
                # Half at a time, so that a long stack costs linear time.
                if len(frames) >= 2 * MAX_FRAMES:
                    del frames[:MAX_FRAMES]
                frames.append(new)
            return
        self.n_frames += 1
        frames.append(new)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        self._thread = None
        if process is None or not process["threads"]:
            self._current, self._c_stack = None, None
            return
        for thread in process["threads"]:
            if process["tool"] == "pystack":
                thread["frames"] = thread["frames"][-MAX_FRAMES:][::-1]
            if note := thread.pop("gc_note", None):
                thread["frames"].insert(0, note)
        if self._c_stack and self._current is not None:
            self._current["frames"][:0] = _inside_interpreter(self._c_stack)
        self._current, self._c_stack = None, None
        del process["seen"]
        mark_main(process)
        main = next(thread for thread in process["threads"] if thread["main"])
        key = f"pid {process['pid']}" if process["pid"] is not None else f"thread {main['ident']}"
        for thread in process["threads"]:
            del thread["ident"]
        if key not in self.processes and len(self.processes) >= MAX_PROCESSES:
            self.n_cut += 1
            return
        self.processes[key] = process
        self.n_dumps[key] = self.n_dumps.get(key, 0) + 1


def new_process(tool: str, pid: int | None, command: str | None) -> dict[str, Any]:
    """A process without threads, as readers hand it on."""
    return {"pid": pid, "command": command, "tool": tool, "parent": None, "fatal": None, "threads": []}


def frame(function: str, file: str, line_number: int | None, native: bool, where: str, text: str) -> dict[str, Any]:
    """One frame as readers hand it on; strings are cleaned and cut at :data:`MAX_CHARS`."""
    return {
        "function": _clean(function),
        "file": _clean(file),
        "line": line_number,
        "native": native,
        "where": where,
        "text": _clean(text),
    }


def _clean(text: str) -> str:
    # Frames of one job repeat, and cleaning is most of the reader's time; long ones would fill the worker's memory.
    return _clean_short(text) if len(text) <= MAX_CHARS else clean_text(text, MAX_CHARS)


@lru_cache(maxsize=16384)
def _clean_short(text: str) -> str:
    return clean_text(text, MAX_CHARS)


def is_native(function: str, file: str, line_number: int | None) -> bool:
    """Say whether a py-spy frame is native code: a library, an address or a C / C++ source file."""
    if _SOURCE_FILE.search(file):
        return False
    return line_number is None or function.startswith("0x") or "." in file


def mark_main(process: dict[str, Any]) -> None:
    """Mark the main thread: by its name, by its id, by where its stack begins, else by the order of the tool.

    A process whose dump gave no pid gets the kernel's id of its main thread, which is the pid on Linux.
    """
    threads: list[dict[str, Any]] = process["threads"]
    # gdb numbers the threads in the order in which they began.
    first = next((t for t in threads if t.get("ident") == "1"), None) if process["tool"] == "gdb" else None
    named = next((t for t in threads if t["name"] == "MainThread"), None)
    by_id = next((t for t in threads if t["os_thread_id"] is not None and t["os_thread_id"] == process["pid"]), None)
    by_stack = next((t for t in threads if _begins_program(t["frames"])), None)
    # faulthandler and pystack list the newest thread first.
    by_order = threads[0] if process["tool"] == "py-spy" else threads[-1]
    main = named or by_id or first or by_stack or by_order
    main["main"] = True
    if process["pid"] is None and (named or first or by_stack) and main["os_thread_id"] is not None:
        process["pid"] = main["os_thread_id"]


def _begins_program(frames: list[dict[str, Any]]) -> bool:
    outermost = next((f for f in reversed(frames) if not f["native"]), None)
    return outermost is not None and outermost["function"] in ("<module>", "_run_module_as_main")


def _inside_interpreter(c_stack: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The C frames that lie inside the innermost Python frame: those before the interpreter's loop."""
    for index, each in enumerate(c_stack):
        if "PyEval_EvalFrame" in each["function"]:
            return c_stack[:index]
    return []


def _pystack_frame(found: re.Match[str], number: int, line: str) -> dict[str, Any]:
    function = found[4].rstrip()
    if found[1] == "Python":
        return frame(function, found[2], int(found[3]), False, str(number), line)
    library = found[2]
    opening = opening_of_last_group(function)
    if opening > 0 and "/" in function[opening:]:
        library = function[opening + 1 : -1]
        function = function[: opening - 1]
    return frame(function.removesuffix(" (inlined)"), library, None, True, str(number), line)


def _int(text: str) -> int | None:
    return int(text) if text.isdigit() else None
