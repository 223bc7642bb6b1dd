"""Dump the stacks of all processes of a job on this node at once, into a bundle's ``stacks`` folder.

Ranks with native frames, their DataLoader workers and helpers without; a second look some seconds later tells who
moves. A process that cannot be read leaves its reason. Files are py-spy's JSON, masked, with the CPU seconds of each
thread and the time of the look; one such dump holds the Python and the native frames.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.files import write_new
from torchtriage.bundle.manifest import Item
from torchtriage.stacks.attach import Guard, Look, find_py_spy, look_at
from torchtriage.stacks.refusals import NOT_HAD, NOT_SUSPENDED, in_one_line

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

BASE = "halo_diag_stacks"
"""The folder below ``$TMPDIR`` where dumps land when nobody says otherwise."""
AGAIN = "again"
MAX_CHILDREN = 256
MAX_CHILDREN_OF_A_RANK = 16
_MAX_CHARS = 400
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_MAX_FILE_BYTES = 3500  # what is larger is not recognised as the dump of a process that could not be read
_OUR_FAULT = "a fault of torchtriage itself; the other processes are looked at all the same"
# What py-spy 0.3 and 0.4 write, by type; whatever else stands there is dropped, values of variables among it.
_THREAD: dict[str, type] = {
    "pid": int, "thread_id": int, "thread_name": str, "os_thread_id": int, "active": bool, "owns_gil": bool,
}  # fmt: skip
_FRAME: dict[str, type] = {
    "name": str, "filename": str, "module": str, "short_filename": str, "line": int, "is_entry": bool,
    "is_shim_entry": bool,
}  # fmt: skip
HOW_TO_GET_IT = "`pip install 'py-spy>=0.4.1'` on the node, which must run Linux"


class Target(Protocol):
    """What is needed of a :class:`torchtriage.bundle.processes.JobProcess`."""

    @property
    def pid(self) -> int: ...  # noqa: D102
    @property
    def start_ticks(self) -> int: ...  # noqa: D102
    @property
    def role(self) -> str: ...  # noqa: D102
    @property
    def rank(self) -> int | None: ...  # noqa: D102
    @property
    def rank_pid(self) -> int | None: ...  # noqa: D102


def dump_processes(
    processes: Sequence[Target],
    folder: Path,
    *,
    host: str,
    native: bool = True,
    timeout_s: float = 10.0,
    limit: int | None = None,
    again_after_s: float | None = None,
    root: Path | None = None,
    cancelled: threading.Event | None = None,
) -> list[Item]:
    """Dump the stacks of processes in parallel; never raises for what they or the node do.

    Args:
        processes: the processes of a job; the ranks are dumped first.
        folder: the ``stacks`` folder of a host in a bundle; a second look goes to ``again`` in it.
        host: its name, for the manifest.
        native: dump native frames of ranks too.
        timeout_s: for one way of reading a process; :data:`torchtriage.stacks.attach.MORE_S` more for all others.
        limit: how many are attached to at a time; when None, as many as :func:`attach_limit` says.
        again_after_s: look a second time at every rank so many seconds after the first look began.
        root: the bundle's root, to which paths in the manifest are relative; two folders up when None.
        cancelled: set by another thread to end all dumpers before their time; what was dumped is kept. Set at the end.
    """
    write = _Writer(folder, root or folder.parent.parent, host)
    py_spy, missing = py_spy_here()
    if py_spy is None:
        return [write.nothing(None, missing, HOW_TO_GET_IT)] if processes else []
    chosen, n_left_out = _choose(processes)
    names = _names(chosen)
    items: list[Item] = []
    hung: set[int] = set()  # a second look at these would cost its time again and show nothing
    began = time.monotonic()
    with Guard(cancelled=cancelled) as guard, ThreadPoolExecutor(limit or attach_limit()) as pool:

        def look(process: Target, with_native: bool) -> Look:
            if guard.cancelled.is_set():
                return Look([], None, "", "not looked at", "the collector was stopped before")
            return look_at(
                process.pid,
                guard,
                py_spy=py_spy,
                native=with_native,
                timeout_s=timeout_s,
                start_ticks=process.start_ticks,
            )

        def first(process: Target) -> list[Item]:
            with_native = native and process.role == "rank"
            seen = look(process, with_native)
            if seen.output is None and seen.timed_out:
                hung.add(process.pid)
            return write.look(process, names[process.pid], seen)

        def second(process: Target) -> list[Item]:
            return write.look(process, f"{AGAIN}/{names[process.pid]}", look(process, with_native=False))

        def each_alone(work: Callable[[Target], list[Item]], process: Target) -> list[Item]:
            try:
                return work(process)
            except Exception as error:  # what one process makes us do wrong must not cost the stacks of the others
                return [write.nothing(process, f"{type(error).__name__}: {error}", _OUR_FAULT)]

        try:
            items += _all(pool, partial(each_alone, first), chosen)
            left_s = max(0.0, began + (again_after_s or 0.0) - time.monotonic())
            if again_after_s is not None and not guard.cancelled.wait(left_s):
                again = [process for process in chosen if process.role == "rank" and process.pid not in hung]
                items += _all(pool, partial(each_alone, second), again)
        except BaseException:
            # An interrupt: dumpers that run are ended at once, none is started any more.
            guard.cancelled.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    if n_left_out:
        items.append(
            write.nothing(
                None,
                f"{n_left_out} DataLoader workers and helpers were not dumped",
                f"at most {MAX_CHILDREN_OF_A_RANK} of a rank and {MAX_CHILDREN} of a node are: give their pids instead",
            )
        )
    return items


def py_spy_here() -> tuple[str | None, str]:
    """py-spy's program, or what is missing for looking at processes here."""
    if not sys.platform.startswith("linux"):
        return None, f"processes are looked at on Linux alone, and this is {sys.platform}"
    return find_py_spy(), "py-spy is not installed, neither beside this interpreter nor on PATH"


def attach_limit() -> int:
    """How many processes are attached to at a time: a dumper waits for its target's threads more than it computes."""
    return max(16, 4 * (os.cpu_count() or 1))


def _all(pool: ThreadPoolExecutor, work: Callable[[Target], list[Item]], processes: Sequence[Target]) -> list[Item]:
    return [item for items in pool.map(work, processes) for item in items]


def _choose(processes: Sequence[Target]) -> tuple[list[Target], int]:
    """Ranks first, then their children as far as they are Python and few enough, then launchers."""
    ranks = [each for each in processes if each.role == "rank"]
    chosen: list[Target] = []
    of_rank: dict[int | None, int] = {}
    n_left_out = 0
    for each in processes:
        if each.role == "rank" or not _is_python(each.pid):
            continue
        if each.role != "launcher":
            of_rank[each.rank_pid] = of_rank.get(each.rank_pid, 0) + 1
            if of_rank[each.rank_pid] > MAX_CHILDREN_OF_A_RANK or len(chosen) >= MAX_CHILDREN:
                n_left_out += 1
                continue
        chosen.append(each)
    return [*ranks, *chosen], n_left_out


def _is_python(pid: int) -> bool:
    """Whether a child is worth trying: a compiler or a shell is not. What cannot be told is tried."""
    try:
        if Path(f"/proc/{pid}/exe").readlink().name.startswith(("python", "pypy")):
            return True
        with Path(f"/proc/{pid}/maps").open("rb") as maps:
            return b"libpython" in maps.read(4 << 20)
    except PermissionError:
        return True
    except OSError:
        return False


def _names(processes: Sequence[Target]) -> dict[int, str]:
    ranks = {each.pid: each for each in processes if each.role == "rank"}
    names: dict[int, str] = {}
    for each in processes:
        if each.role == "rank":
            names[each.pid] = process_name(each.rank, each.pid)
        elif each.rank_pid is not None:
            owner = ranks.get(each.rank_pid)
            rank = owner.rank if owner is not None else each.rank
            names[each.pid] = f"{process_name(rank, each.rank_pid)}-child{each.pid}"
        else:
            names[each.pid] = f"{each.role.split()[-1]}-pid{each.pid}"
    return names


def process_name(rank: int | None, pid: int) -> str:
    """How the files of a rank's process are called: ``rank03-pid4711``, or ``pid4711`` where no rank is known."""
    return f"rank{rank:02d}-pid{pid}" if rank is not None else f"pid{pid}"


class _Writer:
    """Writes what looks gave, and says so for the manifest."""

    def __init__(self, folder: Path, root: Path, host: str) -> None:
        self._folder, self._host = folder, host
        self._inside = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else folder.name

    def look(self, process: Target, name: str, look: Look) -> list[Item]:
        items: list[Item] = []
        if look.stopped is not None:
            text = f"{NOT_SUSPENDED}process {process.pid}\nState:\t{look.stopped}\n"
            items.append(self._file(process, look, f"{name}.stopped.txt", text.encode()))
        if look.output is not None:
            data = dump_file(look.output, thread_cpu_seconds(process.pid), time.time())
            if data is not None:
                return [*items, self._file(process, look, f"{name}.json", data)]
        error = in_one_line(look.error or "what py-spy wrote is no list of threads")
        path = ""
        if look.stopped is None and process.role == "rank":
            path = self._file(process, look, f"{name}.txt", _told(process.pid, error, look)).path
        return [*items, self.nothing(process, error, look.reason, command=look.command, path=path)]

    def nothing(
        self,
        process: Target | None,
        error: str,
        reason: str | None,
        *,
        command: Sequence[str] = (),
        path: str = "",
    ) -> Item:
        return Item(
            path=path,
            kind="stack_dump",
            rank=process.rank if process else None,
            pid=process.pid if process else None,
            host=self._host,
            command=list(command),
            ok=False,
            error=clean_text(error, _MAX_CHARS),
            reason=reason,
            redacted=True,
        )

    def _file(self, process: Target, look: Look, name: str, data: bytes) -> Item:
        item = self.nothing(process, "", None, command=look.command)
        try:
            write_new(self._folder / name, data)
        except OSError as error:
            reason = "the bundle's folder cannot be written: name another one"
            return item.model_copy(update={"error": f"{name}: {error.strerror}", "reason": reason})
        # A look that shows less than was asked for is still one, and says why.
        less = clean_text(in_one_line(look.error), _MAX_CHARS) if look.error else None
        path = f"{self._inside}/{name}"
        return item.model_copy(update={"path": path, "ok": True, "error": less, "reason": look.reason})


def _told(pid: int, error: str, look: Look) -> bytes:
    """Why there is no stack, as a file: in one line that the reader of dumps knows, then what py-spy said."""
    lines = [f"{NOT_HAD}{pid}: {error}", *([look.reason] if look.reason else []), *(look.error or "").splitlines()[:40]]
    text = "\n".join(clean_text(line, _MAX_CHARS) for line in lines) + "\n"
    return text.encode("utf-8", "replace")[:_MAX_FILE_BYTES]


def thread_cpu_seconds(pid: int) -> dict[int, float]:
    """CPU seconds of each thread of a process so far, by the kernel's thread id."""
    seconds: dict[int, float] = {}
    try:
        names = [task.name for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return seconds
    for name in names[:4096]:
        try:
            fields = Path(f"/proc/{pid}/task/{name}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            seconds[int(name)] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        except (OSError, ValueError, IndexError):
            continue
    return seconds


def dump_file(output: bytes, cpu_seconds: Mapping[int, float], time_s: float) -> bytes | None:
    """py-spy's JSON as it goes into a bundle: masked, with each thread's CPU seconds and the time; None for no dump.

    An entry that is no thread, or a frame without a name, is dropped, and so is a value of another type than py-spy's.
    """
    try:
        raw = json.loads(output)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, list):
        return None
    masked: dict[str, str] = {}
    threads: list[dict[str, Any]] = []
    for each in cast("list[Any]", raw):
        if not isinstance(each, dict) or not isinstance(cast("dict[str, Any]", each).get("frames"), list):
            continue
        given = cast("dict[str, Any]", each)
        thread = _typed(given, _THREAD, masked)
        frames = [_typed(cast("dict[str, Any]", f), _FRAME, masked) for f in given["frames"] if isinstance(f, dict)]
        thread["frames"] = [frame for frame in frames if "name" in frame]
        thread["cpu_seconds"] = cpu_seconds.get(thread.get("os_thread_id", -1))
        thread["time_s"] = round(time_s, 3)
        threads.append(thread)
    if not threads:
        return None
    return json.dumps(threads, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _typed(data: Mapping[str, Any], types: Mapping[str, type], masked: dict[str, str]) -> dict[str, Any]:
    """The values that are of their type or absent (null), texts masked."""
    kept: dict[str, Any] = {}
    for key, kind in types.items():
        value = data.get(key)
        if value is None and key in data and key != "name":
            kept[key] = None
        elif type(value) is kind:
            kept[key] = _masked(value, masked) if isinstance(value, str) else value
    return kept


def _masked(text: str, masked: dict[str, str]) -> str:
    shown = masked.get(text)
    if shown is None:
        shown = masked[text] = clean_text(text, _MAX_CHARS)
    return shown
