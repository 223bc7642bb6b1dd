"""Small stacks for tests: py-spy text from frames, read as the worker reads it."""

from __future__ import annotations

from typing import Any

from torchtriage.stacks.text_dumps import TextDumps


def dump_text(
    pid: int,
    frames: list[str],
    *,
    others: dict[str, list[str]] | None = None,
    status: str = "active",
    command: str = "python /workspace/train.py",
    parent: int | None = None,
) -> str:
    """py-spy's text for one process: its main thread and other threads by name ("" for a nameless one)."""
    head = [f"Process {pid}: {command}", "Python v3.12.3 (/usr/bin/python3.12)"]
    if parent is not None:
        head.append(f"Parent Process {parent}: python")
    lines = [*head, "", f'Thread {pid} ({status}): "MainThread"', *(f"    {f}" for f in frames)]
    for number, (name, inner) in enumerate((others or {}).items(), start=1):
        shown = f': "{name}"' if name else ""
        lines += [f"Thread {pid + 1000 * number} (active){shown}", *(f"    {f}" for f in inner)]
    return "\n".join(lines) + "\n"


def read_text(text: str) -> dict[str, Any]:
    """What the reader gives for a text."""
    dumps = TextDumps()
    for number, line in enumerate(text.split("\n"), start=1):
        dumps.feed(number, line)
    dumps.finish()
    return {"processes": list(dumps.processes.values()), "notes": []}


def process(frames: list[str], **how: Any) -> dict[str, Any]:
    """One process whose main thread has these frames, innermost first."""
    return read_text(dump_text(100, frames, **how))["processes"][0]


USER = ["step (train.py:50)", "main (train.py:90)", "<module> (train.py:99)"]
START = ["0x7f397cc2a1ca (libc.so.6)"]
SYNC = ["cudaStreamSynchronize (libcudart.so.13)", "at::native::item (libtorch_cpu.so)"]
LOADER = [
    "Queue.get (multiprocessing/queues.py:113)",
    "_MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1310)",
    "_BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:741)",
]
BARRIER = [
    "barrier (torch/distributed/distributed_c10d.py:5030)",
    "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)",
]
