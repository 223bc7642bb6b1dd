"""From what crashing processes print to ``log.native_crash``: crashes in native code, one signal per process.

An abort by which a watchdog ends its process, and one that only passes on an error of CUDA, NCCL or the store, is no
crash of native code: those errors have signals and texts of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.crashes.first_mover import is_cascade
from torchtriage.logs.quotes import quote
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from torchtriage.logs.crashes.blocks import CrashBlock
    from torchtriage.logs.crashes.cpp_frames import NativeFrame
    from torchtriage.logs.records import Line, Timeline

NAME = "log.native_crash"
MAX_SIGNALS = 64
_FACT_CHARS = 200
_MAX_LINES_BETWEEN = 8
_HANGS = ("watchdog", "watchdog_nccl2", "wait_timeout")
_OTHER_TROUBLE = lazy_re(
    r"(?i)watchdog|NCCL|CUDA (?:error|driver|out of memory)|cudaError|HIP error|cuBLAS|cuDNN|timed? ?out|TCPStore|"
    r"SocketImpl|socket|Connection|Broken pipe|out of memory|std::bad_alloc"
)
_OTHER_TYPES = lazy_re(
    r"Dist(?:Backend|Network|Store|)Error|c10d::|OutOfMemoryError|bad_alloc|gloo::|AcceleratorError|thrust::|cuda"
)


def crash_signals(timeline: Timeline) -> list[Signal]:
    """``log.native_crash`` for every process that crashed in native code."""
    groups: dict[object, list[CrashBlock]] = {}
    last: tuple[CrashBlock, object] | None = None
    for block in sorted(timeline.crashes, key=lambda block: block.start.order):
        rank = _rank(block, timeline)
        key = rank if rank is not None else (block.owner, block.pid, block.start.key[0])
        if last is not None and _goes_on(last[0], block):
            key = last[1]
        groups.setdefault(key, []).append(block)
        last = block, key
    failures = _failures(timeline)
    signals = [
        signal for group in groups.values() if (signal := _signal(group, timeline, failures)) is not None
    ]  # fmt: skip
    return signals[:MAX_SIGNALS]


def _goes_on(one: CrashBlock, other: CrashBlock) -> bool:
    """Whether a crash handler's report follows what the allocator or the C++ runtime printed without any prefix."""
    behind = other.start.key[0] == one.start.key[0] and 0 <= other.start.number - one.start.number <= _MAX_LINES_BETWEEN
    return behind and one.signal == other.signal == "SIGABRT" and one.owner is None and not _says_why(other)


def _says_why(block: CrashBlock) -> bool:
    return block.heap or block.exception is not None or block.what is not None


def _rank(block: CrashBlock, timeline: Timeline) -> int | None:
    if block.start.rank is None and block.pid is not None:
        return timeline.rank_of_pid.get(block.pid)
    return block.start.rank


def _signal(group: list[CrashBlock], timeline: Timeline, failures: list[Line]) -> Signal | None:
    if any(_is_other_trouble(block) for block in group):
        return None
    # "Aborted" alone does not say what aborted.
    telling = [b for b in group if b.signal is not None and (b.signal != "SIGABRT" or _says_why(b))]
    if not telling:
        return None
    first = telling[0]
    rank = next((rank for block in group if (rank := _rank(block, timeline)) is not None), None)
    if first.signal == "SIGABRT" and not first.heap and _timed_out(rank, timeline):
        return None
    frames = [frame for block in group for frame in block.frames]
    native = _top([frame for frame in frames if not frame.is_python])
    python = _top([frame for frame in frames if frame.is_python])
    shown = native or python
    library = next((b.library for b in group if b.library), None) or (native.library if native is not None else None)
    said = next((block.what or block.exception for block in telling if block.what or block.exception), None)
    evidence = [quote(first.start, NAME)]
    evidence += [quote(frame.line, NAME) for frame in (native, python) if frame is not None]
    return Signal(
        name=NAME,
        scope=Scope(ranks=[] if rank is None else [rank], hosts=[first.start.host] if first.start.host else []),
        facts={
            "signal": first.signal,
            "what": None if said is None else clean_text(said, _FACT_CHARS),
            "exception": None if first.exception is None else clean_text(first.exception, _FACT_CHARS),
            "heap": any(block.heap for block in telling),
            "frame": None if shown is None else clean_text(shown.where, _FACT_CHARS),
            "python_frame": None if python is None else clean_text(python.where, _FACT_CHARS),
            "library": None if library is None else clean_text(library.rpartition("/")[2], _FACT_CHARS),
            "after_failure": any(_is_before(line, first.start, timeline) for line in failures),
            "order": first.start.order,
        },
        evidence=evidence,
        time_s=first.start.time_s,
    )


def _is_other_trouble(block: CrashBlock) -> bool:
    if block.exception is None:
        return False
    return _OTHER_TYPES.search(block.exception) is not None or _OTHER_TROUBLE.search(block.what or "") is not None


def _top(frames: list[NativeFrame]) -> NativeFrame | None:
    """The innermost frame that is not the runtime's own."""
    return next((frame for frame in frames if not frame.is_runtimes), None)


def _timed_out(rank: int | None, timeline: Timeline) -> bool:
    return any(rank is None or line.rank == rank for line in timeline.records.get("watchdog", ()))


def _failures(timeline: Timeline) -> list[Line]:
    """Lines that tell of other failures: real exceptions, and the first time-out of a collective."""
    lines = [t.final.line for t in timeline.tracebacks if not is_cascade(t.first_cause)][:256]
    hangs = [line for kind in _HANGS for line in timeline.records.get(kind, ())]
    return lines + sorted(hangs, key=lambda line: line.order)[:1]


def _is_before(one: Line, other: Line, timeline: Timeline) -> bool:
    return one.order < other.order and timeline.order_is_known(one, other)
