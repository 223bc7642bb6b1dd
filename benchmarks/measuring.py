"""What the benchmarks share: running a command for wall time, for peak memory, and writing down where it was done.

Time and memory are never taken in the same run: watching a process tree costs a fraction of a core.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
WATCH_INTERVAL_S = 0.01


@dataclass(frozen=True)
class Memory:
    """Peak resident memory of a command, in bytes."""

    tree: int
    """Largest sum over all processes at one moment; pages that processes share count once for each."""
    parent: int
    largest_child: int


def wall_times(
    command: Sequence[str], environment: Mapping[str, str], repeat: int, limit_s: float
) -> tuple[list[float], str, int]:
    """Run a command ``repeat`` times; wall seconds of each run from process start to exit, last output, exit code.

    Raises:
        subprocess.TimeoutExpired: one run took longer than ``limit_s`` seconds.
    """
    times: list[float] = []
    output, code = "", 0
    for _ in range(repeat):
        start = time.perf_counter()
        done = subprocess.run(
            command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            timeout=limit_s,
        )  # fmt: skip
        times.append(time.perf_counter() - start)
        output, code = done.stdout.decode("utf-8", errors="replace"), done.returncode
    return times, output, code


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
                highest[pid] = max(highest.get(pid, 0), _status_bytes(pid, "VmHWM:"))

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


def spread(times_s: Sequence[float]) -> dict[str, Any]:
    """Median, least and most of some wall times, in seconds."""
    return {
        "median_s": round(statistics.median(times_s), 3),
        "min_s": round(min(times_s), 3),
        "max_s": round(max(times_s), 3),
        "runs": len(times_s),
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
