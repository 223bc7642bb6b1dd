"""What the benchmarks share: running a command for wall time, for peak memory, and writing down where it was done.

Time and memory are never taken in the same run: watching a process tree costs a fraction of a core.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
WATCH_INTERVAL_S = 0.01
QUIET_WINDOW_S, MAX_QUIET_CHECKS = 0.1, 40
ENOUGH_S = 40.0
_patience = {"left_s": 120.0}
"""How long all waiting for a quiet machine may take in one run of a benchmark."""


@dataclass(frozen=True)
class Memory:
    """Peak resident memory of a command, in bytes."""

    tree: int
    """Largest sum over all processes at one moment; pages that processes share count once for each."""
    parent: int
    largest_child: int


@dataclass(frozen=True)
class Run:
    """One run of a command."""

    wall_s: float
    cpu_s: float
    """User and system time of the command and what it waited for."""
    disturbed: bool
    """Whether other programs took so much processor time meanwhile that the wall time is not its own."""


@dataclass(frozen=True)
class Timing:
    """Some runs of a command, and what the last one said."""

    runs: list[Run]
    output: str
    code: int


def timed(command: Sequence[str], environment: Mapping[str, str], repeat: int, limit_s: float) -> Timing:
    """Run a command until ``repeat`` runs were undisturbed, at most twice as often; from start to exit.

    Raises:
        subprocess.TimeoutExpired: one run took longer than ``limit_s`` seconds.
    """
    last: list[subprocess.CompletedProcess[bytes]] = []

    def once() -> float:
        start = time.perf_counter()
        done = subprocess.run(
            command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            timeout=limit_s,
        )  # fmt: skip
        took = time.perf_counter() - start
        last[:] = [done]
        return took

    runs = undisturbed(once, repeat)
    return Timing(runs, last[0].stdout.decode("utf-8", errors="replace"), last[0].returncode)


def undisturbed(once: Callable[[], float], repeat: int) -> list[Run]:
    """Call ``once`` (it returns the wall seconds of what it ran) until ``repeat`` calls were undisturbed.

    After twice as many calls, or once they took long enough, it gives up, and the calls with the least disturbance
    stand in, marked as disturbed.
    """
    clean: list[Run] = []
    others: list[tuple[float, Run]] = []
    spent = 0.0
    for attempt in range(2 * repeat):
        if attempt and spent > ENOUGH_S:
            break
        _wait_until_quiet()
        machine_before, own_before = _machine_busy_s(), _own_s()
        wall = once()
        cpu = _own_s() - own_before
        spent += wall
        foreign = _machine_busy_s() - machine_before - cpu
        # The kernel counts in steps of 10 ms, and never is there nothing else running.
        disturbed = foreign > 0.03 + 0.15 * wall
        run = Run(wall, cpu, disturbed)
        if not disturbed:
            clean.append(run)
            if len(clean) == repeat:
                return clean
        else:
            others.append((foreign / wall, run))
    others.sort(key=lambda item: item[0])
    return [*clean, *(run for _, run in others[: repeat - len(clean)])]


def _wait_until_quiet() -> None:
    """Wait for a moment in which other programs leave the machine alone, as long as there is patience left."""
    for _ in range(MAX_QUIET_CHECKS):
        before, start = _machine_busy_s(), time.perf_counter()
        time.sleep(QUIET_WINDOW_S)
        if _machine_busy_s() - before <= 0.2 * QUIET_WINDOW_S:
            return
        _patience["left_s"] -= time.perf_counter() - start
        if _patience["left_s"] <= 0:
            return


def _machine_busy_s() -> float:
    """Processor seconds that all programs of the machine have used since it started; 0 where /proc/stat is absent."""
    try:
        with Path("/proc/stat").open(encoding="ascii") as stat:
            ticks = [int(word) for word in stat.readline().split()[1:9]]
    except OSError:
        return 0.0
    idle, waiting = ticks[3], ticks[4]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Processor seconds of this process and of those it waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def peak_memory(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> Memory:
    """Run a command once and watch the resident memory of it and all its descendants (Linux, from /proc)."""
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    stop = threading.Event()
    tree = 0
    highest: dict[int, int] = {}

    def watch() -> None:
        nonlocal tree
        while not stop.wait(WATCH_INTERVAL_S):
            family = _family(process.pid)
            tree = max(tree, sum(_status_bytes(pid, "VmRSS:") for pid in family))
            for pid in family:
                highest[pid] = _status_bytes(pid, "VmHWM:") or highest.get(pid, 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        process.wait(limit_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        stop.set()
        watcher.join()
    parent = highest.pop(process.pid, 0)
    return Memory(tree, parent, max(highest.values(), default=0))


def _family(root: int) -> list[int]:
    """A process and its descendants; children come from each thread's list, which is cheaper than all of /proc."""
    found = [root]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found.extend(map(int, children.read_text(encoding="ascii").split()))
            except OSError:
                continue
    return found


def _status_bytes(pid: int, field: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def spread(runs: Sequence[Run]) -> dict[str, Any]:
    """Median, least and most of the wall times, in seconds, the median processor time, and how many were disturbed."""
    walls = [run.wall_s for run in runs]
    return {
        "median_s": round(statistics.median(walls), 3),
        "min_s": round(min(walls), 3),
        "max_s": round(max(walls), 3),
        "cpu_s": round(statistics.median(run.cpu_s for run in runs), 3),
        "runs": len(runs),
        "disturbed_runs": sum(run.disturbed for run in runs),
    }


def machine() -> dict[str, Any]:
    """Where and with what the figures were taken."""
    model = ""
    memory_kb = 0
    for path, field in (("/proc/cpuinfo", "model name"), ("/proc/meminfo", "MemTotal")):
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        value = next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
        if field == "MemTotal" and value:
            memory_kb = int(value.split()[0])
        elif field != "MemTotal":
            model = value
    return {
        "cpu": model,
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kb / (1 << 20), 1),
        "kernel": platform.release(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def versions(*names: str) -> dict[str, str]:
    """Python's version and those of installed packages; packages that are absent are left out."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_results(path: Path, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write rows with date and machine as one JSON document."""
    now = datetime.datetime.now(datetime.timezone.utc)
    document = {"date": now.strftime("%Y-%m-%d"), "machine": machine(), **facts, "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns padded, readable in a terminal too."""
    widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)
