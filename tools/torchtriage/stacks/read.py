"""Read stack dumps into processes, threads and frames; believes nothing and judges nothing.

Stdlib only: runs inside the isolated worker. py-spy JSON is the list that ``py-spy dump --json`` prints (0.3 and 0.4:
pid, thread_name, os_thread_id, active, owns_gil, frames); the text forms are in :mod:`torchtriage.stacks.text_dumps`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.text import read_file_lines
from torchtriage.artefacts.view import load_view
from torchtriage.errors import UnreadableError
from torchtriage.stacks.refusals import MAX_REFUSAL_LINES, refusal_in
from torchtriage.stacks.text_dumps import (
    MAX_CHARS,
    MAX_FRAMES,
    MAX_PROCESSES,
    MAX_THREADS,
    MAX_TOTAL_FRAMES,
    TextDumps,
    frame,
    is_native,
    mark_main,
    new_process,
)

REFUSED = "holds an error instead of a stack"
_NOTHING = "holds no stack dump in a form that is known (py-spy text or JSON, faulthandler, pystack)"


def read_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: the processes of one dump file, frames innermost first; notes on what is lost, and on choices made.

    A process is ``{"pid", "command", "tool", "parent", "fatal", "threads"}`` (``fatal`` is the line of a faulthandler
    dump that says what ended the process), a thread ``{"name", "os_thread_id", "active",
    "owns_gil", "main", "frames", "where", "text"}`` (of a look at a live process also ``cpu_s``, its CPU seconds so
    far, and ``time_s``, when that was), a frame ``{"function", "file", "line", "native", "where",
    "text"}``; ``where`` is a line number or a JSON Pointer and ``text`` what stands there, cleaned.

    Raises:
        UnreadableError: there is no stack dump in it.
    """
    if args.get("format") == "json":
        processes, notes = _read_json(path, compression)
        choices: list[str] = []
    else:
        processes, notes, choices = _read_text(path, compression)
    if not processes:
        raise UnreadableError(_NOTHING)
    return {"processes": processes, "notes": notes, "choices": choices}


def _read_text(path: str, compression: str | None) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    dumps = TextDumps()
    understood = True
    head: list[str] = []
    notes: list[str] = []
    for number, line in enumerate(read_file_lines(Path(path), compression, notes), start=1):
        if number <= MAX_REFUSAL_LINES:
            head.append(line)
        understood = dumps.feed(number, line)
    dumps.finish()
    if not dumps.processes and (refusal := refusal_in(head)) is not None:
        process = new_process("py-spy", refusal["pid"], None) | {"refused": refusal}
        # That a process was stopped is what such a file tells; nothing of it is lost.
        lost = [] if refusal["state"] == "stopped" else [f"{REFUSED}: {refusal['meaning']}"]
        return [process], lost, []
    choices: list[str] = []
    repeated = {key: n for key, n in dumps.n_dumps.items() if n > 1}
    for key, n in list(repeated.items())[:8]:
        choices.append(f"holds {n} dumps of process {key.removeprefix('pid ')}; the last one was taken")
    if len(repeated) > 8:
        choices.append(f"holds several dumps of {len(repeated) - 8} more processes; the last ones were taken")
    if not understood:
        notes.append("ends in the middle of a dump; what was whole before that was read")
    if dumps.n_cut:
        notes.append(f"larger than what is read: {dumps.n_cut} frames, threads or processes were left out")
    return list(dumps.processes.values()), notes, choices


def _read_json(path: str, compression: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    view, note = load_view(path, compression, "json")
    notes = [note] if note else []
    entries: list[tuple[str, Any]]
    if isinstance(view, list):
        entries = [(f"/{index}", entry) for index, entry in enumerate(cast("list[Any]", view))]
    else:
        entries = [("", view)]
    processes: dict[int | None, dict[str, Any]] = {}
    n_cut = 0
    n_odd = 0
    budget = MAX_TOTAL_FRAMES
    for pointer, entry in entries:
        thread_data = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        if not isinstance(thread_data.get("frames"), list):
            n_odd += 1
            continue
        pid = _whole_number(thread_data.get("pid"))
        process = processes.get(pid)
        if process is None:
            if len(processes) >= MAX_PROCESSES:
                n_cut += 1
                continue
            process = new_process("py-spy", pid, None)
            processes[pid] = process
        if len(process["threads"]) >= MAX_THREADS:
            n_cut += 1
            continue
        thread, cut = _json_thread(thread_data, pointer, budget)
        n_cut += cut
        budget -= len(thread["frames"])
        process["threads"].append(thread)
    for process in processes.values():
        mark_main(process)
    if n_odd:
        notes.append(f"{n_odd} entries are not threads as py-spy writes them; they were left out")
    if n_cut:
        notes.append(f"larger than what is read: {n_cut} frames, threads or processes were left out")
    return list(processes.values()), notes


def _json_thread(data: dict[str, Any], pointer: str, budget: int) -> tuple[dict[str, Any], int]:
    raw: list[Any] = data["frames"]
    frames: list[dict[str, Any]] = []
    for index, each in enumerate(raw[: max(0, min(MAX_FRAMES, budget))]):
        if isinstance(each, dict) and isinstance(cast("dict[str, Any]", each).get("name"), str):
            frames.append(_json_frame(cast("dict[str, Any]", each), f"{pointer}/frames/{index}/name"))
    name = data.get("thread_name")
    thread = {
        "name": clean_text(name, MAX_CHARS) if isinstance(name, str) else None,
        "os_thread_id": _whole_number(data.get("os_thread_id")),
        "active": _flag(data.get("active")),
        "owns_gil": _flag(data.get("owns_gil")),
        "main": False,
        "cpu_s": _seconds(data.get("cpu_seconds")),
        "time_s": _seconds(data.get("time_s")),
        "frames": frames,
        "where": f"{pointer}/os_thread_id",
        "text": _quoted(data.get("os_thread_id")),
    }
    return thread, len(raw) - len(frames)


def _json_frame(data: dict[str, Any], pointer: str) -> dict[str, Any]:
    function: str = data["name"]
    short, full, module = data.get("short_filename"), data.get("filename"), data.get("module")
    file = short if isinstance(short, str) and short else full if isinstance(full, str) else ""
    line_number = _whole_number(data.get("line"))
    native = isinstance(module, str) or is_native(function, file, line_number or None)
    return frame(function, file, line_number or None, native, pointer, _quoted(function))


def _quoted(value: object) -> str:
    """A scalar as the evidence check sees it; anything else is not quoted."""
    if value is not None and not isinstance(value, (str, int, float)):
        return ""
    return json.dumps(value, ensure_ascii=False)[: 64 * 1024]


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _seconds(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < 1e12 else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
