"""The isolated worker: a small process that opens structured artefacts under limits of memory, time and files.

It is started by path with ``python -I -S`` and imports the standard library and stdlib-only readers alone. It gets one
JSON object per line on stdin (a job) and answers one JSON object per line on stdout. It can write no file and its
address space is bounded, so a file that asks for gigabytes ends as an error of that one file.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any

# What may run here. Each function takes (path: str, compression: str | None, args: dict) and returns JSON-able data.
TASKS = {
    "view": "torchtriage.artefacts.view:view_task",
    "flight": "torchtriage.flight.read:summarise_task",
    "gpu": "torchtriage.gpu.read:read_task",
    "kernel": "torchtriage.nvlink.kernel_read:read_task",
    "links": "torchtriage.nvlink.read:read_task",
    "memory": "torchtriage.memory.read:summarise_task",
    "gpu_unanswered": "torchtriage.gpu.read:failures_task",
    "proc": "torchtriage.bundle.proc_read:read_task",
    "ras": "torchtriage.ras.read:read_task",
    "sift": "torchtriage.logs.scan.sift:sift_task",
    "stacks": "torchtriage.stacks.read:read_task",
    "trace": "torchtriage.trace.read:summarise_task",
    "versions": "torchtriage.bundle.version_read:versions_task",
}

CPU_SECONDS_BASE = 4
CPU_SECONDS_PER_MB = 4


def _limit(address_space: int, size_bytes: int, n_files: int) -> None:
    import resource

    cpu_seconds = CPU_SECONDS_BASE * max(1, n_files) + CPU_SECONDS_PER_MB * (size_bytes * n_files >> 20)
    for what, value in (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        _, hard = resource.getrlimit(what)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        try:
            resource.setrlimit(what, (value, hard if what == resource.RLIMIT_AS else value))
        except (OSError, ValueError):  # a platform that does not know this limit still has the others
            continue


def _run(job: dict[str, Any]) -> dict[str, Any]:
    module_name, _, function_name = TASKS[job["task"]].partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        return {"ok": True, "result": function(job["path"], job["compression"], job["args"])}
    except MemoryError:
        return {"ok": False, "error": "reading it takes more memory than its size allows; it was given up"}
    except RecursionError:
        return {"ok": False, "error": "it is nested too deep to be read; it was given up"}
    except Exception as error:  # the boundary: whatever a hostile file causes is that file's error
        return {"ok": False, "error": f"{_words(error)}"[:400]}


def _words(error: Exception) -> str:
    text = str(error)
    known = type(error).__module__.startswith("torchtriage")
    return text if known and text else f"not readable ({type(error).__name__}: {text[:200]})"


def main() -> None:
    """Serve jobs until stdin ends."""
    sys.path.extend(sys.argv[1:])
    limited = False
    gc.disable()  # plain data has no cycles that matter in the life of one file
    out = sys.stdout
    for line in sys.stdin:
        job = json.loads(line)
        if not limited:
            _limit(int(job["memory_limit"]), int(job["size_limit"]), int(job["n_files"]))
            limited = True
        try:
            answer = json.dumps(_run(job), separators=(",", ":"), ensure_ascii=True)
        except (MemoryError, RecursionError, ValueError, TypeError) as error:
            answer = json.dumps({"ok": False, "error": f"its content cannot be passed on ({type(error).__name__})"})
        out.write(answer)
        out.write("\n")
        out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
