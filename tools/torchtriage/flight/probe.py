"""Takes the flight-recorder dumps of a job on this node: those that lie there, and fresh ones where the job has pipes.

A process that was started with ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE`` writes a dump when something is written to its pipe.
The dump goes to the same file as the last one, so what lies there is copied first. The process does the writing in a
thread of its own and may need the interpreter's lock for it: where that is held, no dump comes, and waiting is bounded.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import os
import pwd
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.files import path_in_bundle, write_new
from torchtriage.bundle.manifest import Item
from torchtriage.flight import job_files, worker_server
from torchtriage.flight.prefix import PIPE_NAME, PREFIX_NAMES, default_prefixes
from torchtriage.ras.nccl_version import mapped_libraries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchtriage.bundle.processes import JobProcess

KIND = "flight_recorder"
MAX_DUMP_BYTES = 128 << 20
MAX_ALL_BYTES = 1 << 30
SERVER_S = 4.0
"""How long to wait for all worker servers together."""
_SERVERS_AT_ONCE = 32
_SERVED = {
    worker_server.CPU: "ondemand_fr_trace_rank_",
    worker_server.NCCL: "ondemand_nccl_trace_rank_",
}
_LOOK_S = 0.1
_PIPE_NUMBER = re.compile(r"(?<!\d)(\d{1,6})\.pipe$")
# What the name of a pipe says before the rank, for a pipe that a program named itself to be torch's beyond doubt.
_TORCHS_PIPE = re.compile(r"nccl|flight|debug|torch|(?<![a-z])fr(?![a-z])", re.IGNORECASE)
_CLOCK_SLACK_NS = 2 * 10**9
NAMES = (*PREFIX_NAMES, PIPE_NAME, worker_server.SOCKET_NAME, "XDG_CACHE_HOME", "HOME")
# A whole dump ends like this: pickle's STOP, or the end of a JSON object.
_ENDS = (b".", b"}", b"}\n")


@dataclass
class _Rank:
    """One process that is asked, and what is known of its files."""

    process: JobProcess
    rank: int
    pipes: list[str]
    files: list[str]
    """Where its dumps may be, as we see them."""
    configured: bool
    doubtful: list[str] = field(default_factory=list[str])
    """Pipes that may be torch's or the program's own, so that nothing is written to them."""
    items: list[Item] = field(default_factory=list[Item])
    before: dict[str, job_files.Signature | None] = field(default_factory=dict[str, "job_files.Signature | None"])
    asked: str | None = None
    server: str | None = None
    """The unix socket of its worker server, as the process names it."""
    with_nccl: bool = False
    looks: dict[str, tuple[job_files.Signature, int]] = field(
        default_factory=dict[str, "tuple[job_files.Signature, int]"]
    )


def probe_flight(
    processes: Sequence[JobProcess],
    folder: Path,
    *,
    host: str,
    timeout_s: float = 8.0,
    proc: Path = Path("/proc"),
    sleep: Callable[[float], None] = time.sleep,
    cancelled: threading.Event | None = None,
) -> list[Item]:
    """Copy the dumps of a job's ranks to ``folder/flight/`` and ask those with a pipe or a server for fresh ones.

    Args:
        processes: the job's processes on this node; only those with a rank are looked at.
        folder: this host's folder in the bundle.
        host: its name, for the manifest.
        timeout_s: how long to wait for the fresh dumps of all ranks together; torch looks at its pipe every second.
        proc: where /proc lies.
        sleep: waits between two looks.
        cancelled: set by another thread to end it before its time; nobody is asked then, or waited for.

    Returns:
        An item for each dump copied and each rank that could not be asked; one item, ``ok`` and without a path, when
        there is neither dump nor pipe.
    """
    looked = [_look_up(process, proc) for process in processes if process.role == "rank"]
    ranks = [rank for rank in looked if rank is not None]
    left_bytes = MAX_ALL_BYTES
    for rank in ranks:
        left_bytes -= _copy_present(rank, folder, host, left_bytes, proc)
        if cancelled is not None and cancelled.is_set():
            break
    stop = cancelled or threading.Event()
    for rank in ranks if not stop.is_set() else ():
        if rank.doubtful:
            rank.items.append(_not_asked(rank, host))
        _ask(rank, host, proc)
    asked = [rank for rank in ranks if rank.asked is not None]
    left_bytes -= _ask_servers(ranks, folder, host, left_bytes, stop, proc)
    _await(asked, folder, host, timeout_s, left_bytes, sleep, stop)
    items = [item for rank in ranks for item in rank.items]
    if ranks and not items and not stop.is_set():
        items.append(
            Item(
                path="", kind=KIND, host=host, ok=True, redacted=False,
                reason="no rank has written a dump or has a pipe to be asked through: start the job with "
                f"{PIPE_NAME} set to a file prefix to have dumps on demand; with gloo, in torch's worker_main() with "
                f"{worker_server.SOCKET_NAME} set",
            )
        )  # fmt: skip
    return items


def _look_up(process: JobProcess, proc: Path) -> _Rank | None:
    variables = job_files.variables_of(process.pid, NAMES, proc)
    prefixes, configured = prefixes_of(process, variables)
    stem = job_files.first_set(variables, process.environment, PIPE_NAME)
    held = job_files.open_fifos_of(process.pid, proc)
    # A program may have pipes of its own, and what is written there could make it do anything.
    with_nccl = stem is None and bool(held) and bool(mapped_libraries(process.pid, proc))
    ours = [pipe for pipe in held if (_has_stem(pipe, stem) if stem else with_nccl and _is_torchs(pipe))]
    rank = process.rank if process.rank is not None else _rank_by_pipes(ours, stem)
    if rank is None:
        return None
    ends = re.compile(rf"(?<!\d){rank}\.pipe$")
    pipes = [f"{stem}{rank}.pipe"] if stem else [pipe for pipe in ours if ends.search(pipe)]
    doubtful = [] if pipes else [pipe for pipe in held if ends.search(pipe)]
    # A program that names its files itself often gives the pipe and the dumps one stem.
    prefixes += [pipe.removesuffix(f"{rank}.pipe") for pipe in pipes]
    files: list[str] = []
    for prefix in dict.fromkeys(prefixes):
        with contextlib.suppress(OSError, ValueError):
            files.append(job_files.as_seen_here(f"{prefix}{rank}", process.pid, proc))
    found = _Rank(process, rank, pipes, list(dict.fromkeys(files)), configured, doubtful)
    found.server = variables.get(worker_server.SOCKET_NAME) or None
    found.with_nccl = found.server is not None and bool(mapped_libraries(process.pid, proc))
    return found


def _is_torchs(pipe: str) -> bool:
    """Whether the name alone, whose folder may be called anything, tells torch's pipe from one of the program's own."""
    name = _last_part(pipe)
    number = _PIPE_NUMBER.search(name)
    return number is not None and _TORCHS_PIPE.search(name[: number.start()]) is not None


def _has_stem(pipe: str, stem: str) -> bool:
    """Whether a pipe may be the configured one; folders may look different from where the process is."""
    name, start = _last_part(pipe), _last_part(stem)
    return name.startswith(start) and re.fullmatch(r"\d{1,6}\.pipe", name.removeprefix(start)) is not None


def _last_part(path: str) -> str:
    """What follows the last slash: nothing for a stem that ends in one, as the rank alone is then the file's name."""
    return path.rpartition("/")[2]


def _rank_by_pipes(held: Sequence[str], stem: str | None) -> int | None:
    """The rank of a process whose program set it: torch put it into the name of the pipe that the process reads."""
    names = [_last_part(pipe).removeprefix(_last_part(stem or "")) for pipe in held]
    found = {int(number[1]) for name in names if (number := _PIPE_NUMBER.search(name)) is not None}
    return found.pop() if len(found) == 1 else None


def prefixes_of(process: JobProcess, variables: dict[str, str]) -> tuple[list[str], bool]:
    """(prefixes of dumps, likeliest first; whether the job's variables give one)."""
    named = [v for n in PREFIX_NAMES if (v := job_files.first_set(variables, process.environment, n)) is not None]
    try:
        home = pwd.getpwuid(process.uid).pw_dir
    except (KeyError, OverflowError):
        home = None
    return [*named, *default_prefixes(variables, home)], bool(named)


def _copy_present(rank: _Rank, folder: Path, host: str, left_bytes: int, proc: Path) -> int:
    """Copy what lies at the rank's prefixes; the number of bytes taken."""
    started_ns = job_files.started_ns(rank.process.start_ticks, proc)
    taken = 0
    for number, path in enumerate(rank.files):
        before = rank.before[path] = job_files.signature_of(path)
        if before is None:
            continue
        limit_bytes = min(MAX_DUMP_BYTES, left_bytes - taken)
        if started_ns is None or before.mtime_ns >= started_ns - _CLOCK_SLACK_NS:
            name = _name("nccl_trace_rank_", rank.rank, number)
            item, n_bytes = _copy(rank, path, folder, name, host, limit_bytes)
        elif rank.pipes:
            # A dump of an earlier run must not speak for a rank of this one, and a fresh dump will overwrite it: it is
            # saved in a form that is not taken for a dump.
            name = _name("earlier_run_rank_", rank.rank, number) + ".bz2"
            item, n_bytes = _copy(rank, path, folder, name, host, limit_bytes, pack=bz2.compress)
            item.reason = item.reason or _EARLIER
        elif rank.configured and number == 0:
            item, n_bytes = _item(rank, host, ["cp", clean_text(path)], ok=True), 0
            item.reason = f"{_EARLIER}; it was left where it lies: {clean_text(path)}"
        else:
            continue
        rank.items.append(item)
        taken += n_bytes
    return taken


_EARLIER = "this dump was written before the process started, so it is of an earlier run"


def _item(rank: _Rank, host: str, command: list[str], *, ok: bool) -> Item:
    return Item(
        path="", kind=KIND, rank=rank.rank, pid=rank.process.pid, host=host, command=command, ok=ok, redacted=False
    )


def _not_asked(rank: _Rank, host: str) -> Item:
    item = _item(rank, host, [], ok=True)
    item.reason = (
        f"nothing was written to {clean_text(rank.doubtful[0])}, which may be the program's own pipe: start the job "
        f"with {PIPE_NAME} set to a file prefix (the rank and .pipe are added to it) to have dumps on demand"
    )
    return item


def _name(stem: str, rank: int, number: int) -> str:
    return f"flight/{stem}{rank}" + (f" ({number + 1})" if number else "")


def _copy(
    rank: _Rank,
    path: str,
    folder: Path,
    name: str,
    host: str,
    limit_bytes: int,
    pack: Callable[[bytes], bytes] = bytes,
) -> tuple[Item, int]:
    """(what came of it, how many bytes were read)."""
    command = ["cp", "--preserve=timestamps", clean_text(path), path_in_bundle(folder, name)]
    item = _item(rank, host, command, ok=False)
    limit_bytes = max(0, limit_bytes)
    try:
        content = job_files.read_owned(path, (rank.process.uid,), limit_bytes)
    except job_files.NotTheJobsError as error:
        item.error, item.reason = str(error), "what lies where this rank's dump should be was not opened"
        return item, 0
    except OSError as error:
        item.error = clean_text(error.strerror or str(error))
        item.reason = "run the collector as the job's user or as root, on the node of the job"
        if error.errno == errno.ELOOP:
            item.reason = "a link lies where this rank's dump should be; links are not followed"
        return item, 0
    try:
        write_new(folder / name, pack(content.data), mtime_ns=content.mtime_ns)
    except OSError as error:
        item.error, item.reason = clean_text(str(error)), "the dump could not be written to the bundle"
        return item, len(content.data)
    item.path, item.ok = path_in_bundle(folder, name), True
    n_kept = len(content.data)
    if content.size > n_kept >= limit_bytes:
        item.ok, item.error = False, f"the dump is larger than {limit_bytes} bytes"
        item.reason = "only its beginning was kept"
    elif content.size > n_kept:
        item.ok, item.error = False, f"of its {content.size} bytes those from {n_kept} on were never written"
        item.reason = "what is before that hole was kept; whoever wrote it was cut off, or it is no dump"
    return item, n_kept


def _ask(rank: _Rank, host: str, proc: Path) -> None:
    """Write to the first of the rank's pipes that takes it; what went wrong otherwise becomes an item."""
    problem: tuple[str, str] | None = None
    for pipe in rank.pipes:
        try:
            at = job_files.as_seen_here(pipe, rank.process.pid, proc)
            job_files.write_to_fifo(at, rank.process.uid, b"1\n")
        except job_files.NotTheJobsError as error:
            problem = (str(error), "only a pipe that the job itself made is written to")
        except OSError as error:
            said = clean_text(error.strerror or str(error))
            problem = (said, _PIPE_REASONS.get(error.errno or 0, "run the collector as the job's user or as root"))
        else:
            rank.asked = pipe
            return
    if problem is not None:
        rank.items.append(_no_dump(rank, host, rank.pipes[0], *problem))


_PIPE_REASONS = {
    errno.ENXIO: "nobody reads this pipe: the process has ended, or its NCCL group is not made yet",
    errno.ENOENT: "there is no such pipe: torch makes it with the first NCCL group, and never for gloo",
    errno.ELOOP: "a link lies where the pipe should be; links are not followed",
    errno.EAGAIN: "the pipe is full: the thread that should read it is stuck",
}
_NO_ANSWER = (
    "the process was asked and wrote no dump in time: it may be stopped, another thread may hold the interpreter's "
    "lock that the dump needs, or its monitor thread is off (TORCH_NCCL_ENABLE_MONITORING, TORCH_NCCL_DUMP_ON_TIMEOUT)"
)


def _no_dump(rank: _Rank, host: str, pipe: str, error: str, reason: str) -> Item:
    item = _item(rank, host, ["tee", clean_text(pipe)], ok=False)
    item.error, item.reason = error, reason
    return item


def _ask_servers(
    ranks: Sequence[_Rank], folder: Path, host: str, left_bytes: int, stop: threading.Event, proc: Path
) -> int:
    """Ask the worker servers, and write down what they hold; the number of bytes taken.

    One record of a rank counts, and records of NCCL and of the CPU's backends cannot be compared: the CPU's are asked
    for only where no rank of the job has one of NCCL.
    """
    served = [rank for rank in ranks if rank.server is not None]
    taken = 0
    # A pipe gives the same record of NCCL.
    if with_nccl := [rank for rank in served if rank.with_nccl and rank.asked is None]:
        taken = _ask_of(worker_server.NCCL, with_nccl, folder, host, left_bytes, stop, proc)
    others = any(rank.asked is not None or any(item.ok and item.path for item in rank.items) for rank in ranks)
    if served and not others:
        taken += _ask_of(worker_server.CPU, served, folder, host, left_bytes - taken, stop, proc)
    return taken


def _ask_of(
    handler: str,
    ranks: Sequence[_Rank],
    folder: Path,
    host: str,
    left_bytes: int,
    stop: threading.Event,
    proc: Path,
) -> int:
    """Put one question to all these ranks at a time; the number of bytes taken."""
    deadline = time.monotonic() + SERVER_S
    limit_bytes = max(0, min(MAX_DUMP_BYTES, left_bytes // len(ranks)))

    def ask(rank: _Rank) -> worker_server.Answer:
        try:
            at = job_files.as_seen_here(rank.server or "", rank.process.pid, proc)
        except OSError as error:
            said = clean_text(error.strerror or str(error))
            return worker_server.Answer(error=said, reason="where its socket is cannot be told")
        return worker_server.ask(
            at, handler, pid=rank.process.pid, uid=rank.process.uid, deadline=deadline, limit_bytes=limit_bytes,
            stop=stop,
        )  # fmt: skip

    taken = 0
    with ThreadPoolExecutor(min(len(ranks), _SERVERS_AT_ONCE)) as pool:
        for rank, answer in zip(ranks, pool.map(ask, ranks), strict=True):
            item = _item(rank, host, worker_server.command_of(rank.server or "", handler), ok=answer.error is None)
            item.error, item.reason = answer.error, answer.reason
            rank.items.append(item)
            if not answer.has_calls:
                item.reason = answer.reason or "the record holds no call, so that it was not kept"
                continue
            name = _name(_SERVED[handler], rank.rank, 0)
            try:
                write_new(folder / name, answer.data)
            except OSError as error:
                item.ok, item.error, item.reason = (
                    False,
                    clean_text(str(error)),
                    "it could not be written to the bundle",
                )
                continue
            item.path = path_in_bundle(folder, name)
            taken += len(answer.data)
    return taken


def _await(
    ranks: list[_Rank],
    folder: Path,
    host: str,
    timeout_s: float,
    left_bytes: int,
    sleep: Callable[[float], None],
    stop: threading.Event,
) -> None:
    """Take each fresh dump once it is whole and has stopped growing."""
    deadline = time.monotonic() + timeout_s
    while ranks:
        late = time.monotonic() >= deadline or stop.is_set()
        waiting: list[_Rank] = []
        for rank in ranks:
            fresh = _fresh(rank, even_if_cut=late)
            if fresh is None:
                waiting.append(rank)
                continue
            path, whole = fresh
            name = _name("ondemand_nccl_trace_rank_", rank.rank, 0)
            item, n_bytes = _copy(rank, path, folder, name, host, min(MAX_DUMP_BYTES, left_bytes))
            item.command = ["tee", clean_text(rank.asked or "")]
            left_bytes -= n_bytes
            if item.ok and not whole:
                item.ok, item.error = False, "the dump was still being written when time was up"
                item.reason = "what was there of it was kept"
            rank.items.append(item)
        ranks = waiting
        if late:
            break
        if ranks:
            sleep(_LOOK_S)
    reason = "the collector was stopped while it waited for the dump" if stop.is_set() else _NO_ANSWER
    for rank in ranks:
        rank.items.append(_no_dump(rank, host, rank.asked or "", "no dump came", reason))


def _fresh(rank: _Rank, *, even_if_cut: bool) -> tuple[str, bool] | None:
    """(path of a dump written since the rank was asked, whether it is whole)."""
    for path in rank.files:
        now = job_files.signature_of(path)
        if now is None or now == rank.before.get(path):
            continue
        known, times = rank.looks.get(path, (None, 0))
        times = times + 1 if now == known else 0
        rank.looks[path] = (now, times)
        whole = times > 1 and now.size > 0 and _ends_well(path, now.size)
        if whole or (even_if_cut and now.size > 0):
            return path, whole
    return None


def _ends_well(path: str, size: int) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True  # the copy will say why it cannot be read
    try:
        return os.pread(descriptor, 2, max(0, size - 2)).endswith(_ENDS)
    except OSError:
        return True
    finally:
        os.close(descriptor)
