"""Lines as ProcessGroupNCCL prints them, for the tests of the watchdog's readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.logs.analyze import analyze
from torchtriage.logs.records import LogSource, PatternSet
from torchtriage.logs.scan.read import scan, text_source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchtriage.report import Signal

DEFAULT = "PG ID 0 PG GUID 0(default_pg)"
STAMP = "E1130 14:27:18.123456789 ProcessGroupNCCL.cpp:607"


def signals(text: str | Iterable[str], name: str = "") -> list[Signal]:
    """Signals of one name (of all names: "") that a log with this text, or these lines, gives."""
    joined = text if isinstance(text, str) else "\n".join(text)
    found = analyze(scan([text_source(joined)], PatternSet([]))).signals
    return [s for s in found if s.name == name or (not name and s.name != "log.watchdog_timeout")]


def signals_of_files(files: dict[str, tuple[int, str]], name: str) -> list[Signal]:
    """Signals of logs of one rank each."""
    sources = [LogSource(file, text.split("\n"), rank=rank) for file, (rank, text) in files.items()]
    return [s for s in analyze(scan(sources, PatternSet([]))).signals if s.name == name]


def work(
    rank: int, seq: int = 19, operation: str = "ALLREDUCE", numel: int = 8, *, second: int = 18, group_rank: int = -1
) -> str:
    """A time-out of torch 2.5 and later; the group stands on the next line."""
    inner = rank if group_rank < 0 else group_rank
    return (
        f"[rank{rank}]:[E1130 14:27:{second:02}.1 ProcessGroupNCCL.cpp:629] [Rank {inner}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType={operation}, NumelIn={numel}, NumelOut={numel}, "
        "Timeout(ms)=1000) ran for 1001 milliseconds before timing out."
    )


def failed(rank: int, seq: int, enqueued: int, completed: int, group: str = DEFAULT, *, group_rank: int = -1) -> str:
    """The line of torch 2.6 and later that tells group and progress."""
    inner = rank if group_rank < 0 else group_rank
    return (
        f"[rank{rank}]:[E1130 14:27:18.2 ProcessGroupNCCL.cpp:2303] [{group} Rank {inner}]  failure detected by "
        f"watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: "
        f"{completed}"
    )


def dump(rank: int, enqueued: int, completed: int, asked_by: int | None = None) -> str:
    """The line with which a rank writes its flight recorder; it speaks of the default group."""
    by = "this local rank" if asked_by is None else f" rank {asked_by}"
    return (
        f"[rank{rank}]:[E1130 14:27:19.1 ProcessGroupNCCL.cpp:1914] [{DEFAULT} Rank {rank}] Received a dump signal due "
        f"to a collective timeout from {by} and we will try our best to dump the debug info. Last enqueued NCCL work: "
        f"{enqueued}, last completed NCCL work: {completed}."
    )


def waits(rank: int, seq: int = 19, operation: str = "ALLREDUCE", numel: int = 8, *, enqueued: int = 0) -> list[str]:
    """All that a waiting rank of the default group prints."""
    return [work(rank, seq, operation, numel), failed(rank, seq, enqueued or seq, seq - 1)]


def step(rank: int, number: int) -> str:
    """A line of the job's own."""
    return f"[rank{rank}] step {number} loss 2.0"
