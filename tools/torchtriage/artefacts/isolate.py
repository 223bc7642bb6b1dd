"""Run readers of structured artefacts in isolated workers, in parallel, one outcome per file.

A file that makes its worker die, stall or swell costs that file alone: a fresh worker takes the rest.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchtriage.artefacts.inputs import Artefact

WALL_SECONDS_BASE = 6.0
WALL_SECONDS_PER_MB = 4.0
# What is left of it for the next ones when files of the same call were given up.
MIN_WALL_SECONDS_BASE = 1.5
MIN_WALL_SECONDS_PER_MB = 1.0
# For all files of one call together.
TOTAL_WALL_SECONDS_BASE = 40.0
MAX_FILE_BYTES = 2 << 30
MAX_PICKLE_BYTES = 1 << 30
MAX_ANSWER_CHARS = 256 << 20
BASE_BYTES = 160 << 20
BYTES_PER_FILE_BYTE = 40
BASE_BYTES_COMPRESSED = 256 << 20
BYTES_PER_COMPRESSED_BYTE = 600
CEILING_BYTES = 2 << 30
CEILING_BYTES_PER_FILE_BYTE = 8
_TELL_EVERY_S = 1.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Outcome:
    """What reading one artefact gave: a result, or the reason why there is none."""

    artefact: Artefact
    result: Any = None
    error: str | None = None


@dataclass(frozen=True)
class Job:
    """One artefact for one of the worker's tasks."""

    task: str
    artefact: Artefact
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    part_bytes: int | None = None
    """How much of the file the job reads, when it is a part of it."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that the job reads."""
        return self.artefact.size_bytes if self.part_bytes is None else self.part_bytes


def read_isolated(
    task: str, artefacts: Sequence[Artefact], progress: Callable[[int, int], None] | None = None
) -> list[Outcome]:
    """Run one task on each artefact; outcomes come in the order of ``artefacts``."""
    return run_jobs([Job(task, artefact) for artefact in artefacts], progress)


def run_jobs(jobs: Sequence[Job], progress: Callable[[int, int], None] | None = None) -> list[Outcome]:
    """Run jobs, in parallel and isolated; outcomes come in the order of ``jobs``.

    ``progress(done, total)`` is called, also from other threads, as files are finished, and each second while none is.
    """
    outcomes: list[Outcome | None] = [None] * len(jobs)
    small: list[int] = []
    for index, job in enumerate(jobs):
        limit = MAX_PICKLE_BYTES if job.artefact.format == "pickle" else MAX_FILE_BYTES
        if job.size_bytes > limit:
            outcomes[index] = Outcome(job.artefact, error=f"larger than {limit >> 30} GiB; not read")
        else:
            small.append(index)
    # Contiguous runs keep a worker's memory that of one file; two cores are enough, more are used.
    n_workers = max(1, min(len(small), os.cpu_count() or 1, 16))
    shares = [small[k::n_workers] for k in range(n_workers)]
    done = 0
    lock = threading.Lock()
    clock = _Clock(sum(jobs[i].size_bytes for i in small) / (1 << 20) / n_workers)

    def finish(index: int, outcome: Outcome) -> None:
        nonlocal done
        outcomes[index] = outcome
        with lock:
            done += 1
            if progress is not None:
                progress(done, len(jobs))

    if small:
        with ThreadPoolExecutor(n_workers) as pool:
            served = [pool.submit(_serve, jobs, share, finish, clock) for share in shares]
            while wait(served, _TELL_EVERY_S).not_done:
                with lock:
                    if progress is not None:
                        progress(done, len(jobs))
            for one in served:
                one.result()
    return [outcome for outcome in outcomes if outcome is not None]


class _Clock:
    """Time for all files of one call: each one that was given up leaves the others less to waste."""

    def __init__(self, mb_per_worker: float) -> None:
        self._end = time.monotonic() + TOTAL_WALL_SECONDS_BASE + WALL_SECONDS_PER_MB * mb_per_worker
        self._n_lost = 0

    def lost_one(self) -> None:
        self._n_lost += 1

    def seconds_for(self, job: Job) -> float:
        """Seconds that reading this file may take now; not positive when there is no time left."""
        mb = job.size_bytes / (1 << 20)
        wanted = (WALL_SECONDS_BASE + WALL_SECONDS_PER_MB * mb) / (1 + self._n_lost)
        wanted = max(wanted, MIN_WALL_SECONDS_BASE + MIN_WALL_SECONDS_PER_MB * mb)
        return min(wanted, self._end - time.monotonic())


def _serve(jobs: Sequence[Job], share: list[int], finish: Callable[[int, Outcome], None], clock: _Clock) -> None:
    """Take one share of the files through workers, a fresh one whenever the last one was lost."""
    pending = list(share)
    while pending:
        size_limit = max(_uncompressed_limit(jobs[i]) for i in pending)
        memory_limit = max(_memory_limit(jobs[i]) for i in pending)
        worker = subprocess.Popen(  # a fixed argument list: interpreter, our script, our package's folder
            [sys.executable, "-I", "-S", str(_WORKER), str(_PACKAGE_ROOT), *_library_folders(jobs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={"PATH": os.defpath},
            close_fds=True,
        )
        try:
            while pending:
                index = pending.pop(0)
                artefact = jobs[index].artefact
                request = {
                    "task": jobs[index].task,
                    "path": str(artefact.path),
                    "compression": artefact.compression,
                    "args": {**jobs[index].args, "format": artefact.format},
                    "size_limit": size_limit,
                    "memory_limit": memory_limit,
                    "n_files": len(share),
                }
                seconds = clock.seconds_for(jobs[index])
                if seconds <= 0:
                    finish(index, Outcome(artefact, error="not read: the other files took all the time there is"))
                    continue
                answer = _ask(worker, request, seconds)
                if answer is None:
                    clock.lost_one()
                    finish(index, Outcome(artefact, error=_reason(worker)))
                    break
                if answer["ok"]:
                    finish(index, Outcome(artefact, result=answer["result"]))
                else:
                    finish(index, Outcome(artefact, error=str(answer["error"])))
        finally:
            _end(worker)


def _library_folders(jobs: Sequence[Job]) -> list[str]:
    """Where the worker finds the few libraries that are not of the standard library; only those that a job needs."""
    needed: set[str] = set()
    for job in jobs:
        needed |= {"zstandard"} if job.artefact.compression == "zst" else set()
        needed |= {"ahocorasick_rs"} if job.task == "sift" else set()
    found = [importlib.util.find_spec(name) for name in sorted(needed)]
    return list(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin))


def _uncompressed_limit(job: Job) -> int:
    """How large the content may be: up to sixty times a compressed file, which real dumps do not reach."""
    return job.size_bytes * (60 if job.artefact.compression else 1)


def _memory_limit(job: Job) -> int:
    """Bytes of address space for reading one file: generous for small files, about what real dumps need for large ones.

    A compressed trace or dump of 1 MB has up to 20 to 50 MB of content, which takes some ten times that as objects.
    """
    size = job.size_bytes
    if job.artefact.compression:
        return min(BASE_BYTES_COMPRESSED + BYTES_PER_COMPRESSED_BYTE * size, CEILING_BYTES + 100 * size)
    return min(BASE_BYTES + BYTES_PER_FILE_BYTE * size, CEILING_BYTES + CEILING_BYTES_PER_FILE_BYTE * size)


def _ask(worker: subprocess.Popen[str], job: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    """Send one job and read its answer; None when the worker died or had to be ended."""
    stdin, stdout = worker.stdin, worker.stdout
    if stdin is None or stdout is None:
        return None
    timer = threading.Timer(seconds, worker.kill)
    timer.daemon = True
    timer.start()
    try:
        stdin.write(json.dumps(job) + "\n")
        stdin.flush()
        line = stdout.readline(MAX_ANSWER_CHARS)
        return json.loads(line) if line.endswith("\n") else None
    except (OSError, ValueError):
        return None
    finally:
        timer.cancel()


def _reason(worker: subprocess.Popen[str]) -> str:
    worker.kill()
    code = worker.wait()
    if code in (-24, -9):  # SIGXCPU, or our own SIGKILL at the wall-clock limit
        return "reading it takes more time than its size allows; it was given up"
    return f"reading it ended the reader (exit code {code}); it was given up"


def _end(worker: subprocess.Popen[str]) -> None:
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
    try:
        worker.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def view_value(artefact: Artefact, pointer: str) -> str:
    """The compact JSON at a pointer of a structured artefact, as its reader sees it.

    Raises:
        UnreadableError: the artefact cannot be read, or the pointer leads nowhere.
    """
    outcome = run_jobs([Job("view", artefact, {"pointer": pointer})])[0]
    if outcome.error is not None:
        raise UnreadableError(outcome.error)
    return str(outcome.result)
