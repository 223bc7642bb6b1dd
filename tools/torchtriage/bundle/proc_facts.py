"""What the kernel says of one process: state, the call it waits in and for which file, CPU time, memory, limits.

Read without stopping it and without touching a file of its: a path on a dead file system would hold us as it holds the
process. Threads' wait channels and calls need the right to trace it; without, they are None, which says nothing.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle import proc_files
from torchtriage.bundle.files import write_new
from torchtriage.bundle.manifest import Item
from torchtriage.bundle.memory_limits import memory_of
from torchtriage.bundle.proc_model import ProcFacts, ThreadFacts
from torchtriage.bundle.wait_calls import command_and_call, shown_path
from torchtriage.stacks.probe import process_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.bundle.processes import JobProcess

MAX_THREADS = 4096
MAX_LISTED_THREADS = 32
TIMEOUT_S = 1.0
MAX_FILES = 4096
_OURS_TRIES = 25
_OURS_WAIT_S = 0.02


def facts_of(pid: int, proc: Path = Path("/proc"), *, timeout_s: float = TIMEOUT_S) -> ProcFacts | None:
    """Read the facts of a process; None when it is gone.

    Args:
        pid: the process.
        proc: where the process file system is mounted.
        timeout_s: for what needs a lock of the process's memory, which may be held for ever.
    """
    folder = f"{proc}/{pid}"
    now = time.time()
    stat = proc_files.parse_stat(proc_files.read(f"{folder}/stat", 4096))
    if stat is None:
        return None
    facts = ProcFacts(
        pid=pid,
        start_ticks=stat.start_ticks,
        ppid=stat.ppid,
        name=clean_text(stat.name, 64),
        time_s=now,
        state=stat.state,
        cpu_s=_seconds(stat.user_ticks + stat.system_ticks),
        n_threads=stat.n_threads,
        wchan=_wchan(f"{folder}/wchan"),
        memory=memory_of(folder),
        oom_score=_integer(proc_files.read_text(f"{folder}/oom_score", 64)),
        executable=shown_path(proc_files.link(f"{folder}/exe")),
    )
    uptime = (proc_files.read_text(f"{proc}/uptime", 128) or "").split()
    if uptime and uptime[0].replace(".", "", 1).isdigit():
        facts.runs_since_s = round(float(uptime[0]) - _seconds(stat.start_ticks), 2)
    _add_status(facts, folder)
    _add_threads(facts, folder)
    done, stuck = proc_files.each([folder], lambda each: command_and_call(each, facts.wchan), timeout_s)
    if stuck:
        facts.notes.append("reading its memory map did not return: a thread holds the lock of it while it waits")
    else:
        facts.command, facts.call, notes = done[folder]
        facts.notes.extend(notes)
    if facts.wchan is None and facts.call is None and stat.state in "SD":
        facts.notes.append("what it waits for is not shown: that needs the right to trace it (same user or root)")
    return facts


def cpu_used_s(first: ProcFacts, second: ProcFacts) -> float | None:
    """CPU seconds used between two looks; None when they are of two processes (a pid is given again)."""
    if (first.pid, first.start_ticks) != (second.pid, second.start_ticks):
        return None
    return round(max(0.0, second.cpu_s - first.cpu_s), 2)


def write_facts(
    processes: Sequence[JobProcess], folder: Path, *, host: str, proc: Path = Path("/proc"), root: Path | None = None
) -> list[Item]:
    """Write the facts of each process as ``rankNN-pidP.json`` below ``folder``; a failure is an item too.

    Args:
        processes: ranks, their children, launchers.
        folder: ``proc/`` in a host's folder, or ``proc/again/`` for the second look.
        host: its name.
        proc: where the process file system is mounted.
        root: the bundle, to which paths in items are relative; by default what ``folder`` is in as described.
    """
    root = root or (folder.parents[2] if folder.name == "again" else folder.parents[1])
    items: list[Item] = []
    for process in processes[:MAX_FILES]:
        pid = process.pid
        names = ("stat", "status", "wchan", "syscall", "cgroup", "mountinfo", "task/*/stat")
        item = Item(
            path="", kind="proc_facts", rank=process.rank, pid=pid, host=host, ok=False, redacted=True,
            command=["cat", *(f"{proc}/{pid}/{name}" for name in names)],
        )  # fmt: skip
        items.append(item)
        facts = _free_of_us(pid, proc)
        if facts is None or facts.start_ticks != process.start_ticks:
            item.error, item.reason = "no such process", "it ended before it could be looked at"
            continue
        facts.rank, facts.local_rank, facts.host = process.rank, process.local_rank, host
        facts.role, facts.rank_pid, facts.job = process.role, process.rank_pid, process.job
        path = folder / f"{_file_name(process)}.json"
        try:
            write_new(path, facts.model_dump_json(indent=1).encode("utf-8"))
        except OSError as error:
            item.error, item.reason = clean_text(str(error)), "the bundle's folder cannot be written"
            continue
        item.path, item.ok, item.reason = path.relative_to(root).as_posix(), True, "; ".join(facts.notes) or None
    return items


def _file_name(process: JobProcess) -> str:
    if process.role == "rank":
        return process_name(process.rank, process.pid)
    if process.rank_pid is not None:
        return f"{process_name(process.rank, process.rank_pid)}-child{process.pid}"
    return f"{process.role.split()[-1]}-pid{process.pid}"


def _free_of_us(pid: int, proc: Path) -> ProcFacts | None:
    """The facts at a moment when no dumper of ours holds the process, as those stop it for a short time."""
    for _ in range(_OURS_TRIES):
        facts = facts_of(pid, proc)
        if facts is None or not facts.tracer_is_ours:
            return facts
        threading.Event().wait(_OURS_WAIT_S)
    return facts_of(pid, proc)


def _add_status(facts: ProcFacts, folder: str) -> None:
    fields: dict[str, str] = {}
    for line in (proc_files.read_text(f"{folder}/status", 8192) or "").split("\n")[:128]:
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name, value.strip())
    facts.tracer_pid = _integer(fields.get("TracerPid"))
    if facts.tracer_pid:
        _add_tracer(facts, folder)
    facts.seccomp = _integer(fields.get("Seccomp"))
    no_new = _integer(fields.get("NoNewPrivs"))
    facts.no_new_privs = None if no_new is None else bool(no_new)
    facts.rss_bytes = _kib(fields.get("VmRSS"))
    facts.swap_bytes = _kib(fields.get("VmSwap"))


def _add_tracer(facts: ProcFacts, folder: str) -> None:
    """Who traces it; ours if this process started the tracer, over however many steps."""
    proc, here = folder.rpartition("/")[0], facts.tracer_pid
    for _ in range(16):
        stat = proc_files.parse_stat(proc_files.read(f"{proc}/{here}/stat", 4096))
        if stat is None:
            return
        facts.tracer_name = facts.tracer_name or clean_text(stat.name, 64)
        if here == os.getpid() or stat.ppid == os.getpid():
            facts.tracer_is_ours = True
            return
        here = stat.ppid


def _add_threads(facts: ProcFacts, folder: str) -> None:
    threads: list[ThreadFacts] = []
    for tid in proc_files.numbers_in(f"{folder}/task", MAX_THREADS):
        stat = proc_files.parse_stat(proc_files.read(f"{folder}/task/{tid}/stat", 4096))
        if stat is None:
            continue
        cpu_s = _seconds(stat.user_ticks + stat.system_ticks)
        facts.thread_states[stat.state] = facts.thread_states.get(stat.state, 0) + 1
        threads.append(ThreadFacts(tid=tid, name=clean_text(stat.name, 32), state=stat.state, cpu_s=cpu_s))
        if tid == facts.pid:
            facts.main_thread_cpu_s = cpu_s
    threads.sort(key=lambda thread: (thread.state != "D", -thread.cpu_s, thread.tid))
    facts.threads = threads[:MAX_LISTED_THREADS]
    for thread in facts.threads:
        thread.wchan = _wchan(f"{folder}/task/{thread.tid}/wchan")


def _wchan(path: str) -> str | None:
    """The kernel hides it as "0" from who may not trace the process, and where it does not wait."""
    text = proc_files.read_text(path, 256)
    return clean_text(text, 64) if text and text.strip() not in ("", "0") else None


def _seconds(ticks: int) -> float:
    return round(ticks / os.sysconf("SC_CLK_TCK"), 2)


def _integer(text: str | None) -> int | None:
    word = (text or "").strip()
    return int(word) if word.lstrip("-").isdigit() and word.isascii() and len(word) <= 18 else None


def _kib(text: str | None) -> int | None:
    number = _integer((text or "").removesuffix(" kB"))
    return None if number is None else number * 1024
