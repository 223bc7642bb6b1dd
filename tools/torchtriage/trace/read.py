"""Read a torch.profiler (kineto) trace into a few numbers per rank. Stdlib only: runs in the isolated worker.

Knows kernels by category and NCCL kernels by name, so that traces without collective arguments are read as well
(kineto before 2023 wrote none). It does not know streams: overlapping kernels are merged in time.
"""

from __future__ import annotations

from typing import Any

from torchtriage.artefacts.view import load_view
from torchtriage.errors import UnreadableError

MAX_EVENTS = 4_000_000
_GPU_CATEGORIES = frozenset({"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})


def summarise_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: sum one trace up.

    Returns:
        rank (or None), span_us of the GPU's activity, comm_us and compute_us (merged, without each other's overlap
        taken out), the collectives in order as [index in traceEvents, ts_us, dur_us], and notes.

    Raises:
        UnreadableError: it holds no list of events.
    """
    view, note = load_view(path, compression, str(args["format"]))
    events: Any = view.get("traceEvents") if isinstance(view, dict) else view  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    if not isinstance(events, list):
        raise UnreadableError("holds no traceEvents")
    comm: list[tuple[float, float]] = []
    compute: list[tuple[float, float]] = []
    collectives: list[list[float]] = []
    for index, event in enumerate(events[:MAX_EVENTS]):  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        if not isinstance(event, dict) or event.get("cat") not in _GPU_CATEGORIES:  # pyright: ignore[reportUnknownMemberType]
            continue
        start, duration = _number(event.get("ts")), _number(event.get("dur"))  # pyright: ignore[reportUnknownArgumentType,reportUnknownMemberType]
        if start is None or duration is None or duration < 0:
            continue
        name: Any = event.get("name")  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        if isinstance(name, str) and name.lower().startswith(("nccl", "rccl")):
            comm.append((start, start + duration))
            collectives.append([index, start, duration])
        else:
            compute.append((start, start + duration))
    both = comm + compute
    collectives.sort(key=lambda c: c[1])
    return {
        "rank": _rank(view),
        "span_us": max(e for _, e in both) - min(s for s, _ in both) if both else 0.0,
        "comm_us": _merged(comm),
        "compute_us": _merged(compute),
        "collectives": collectives[:20_000],
        "notes": [note] if note else [],
    }


def _number(value: Any) -> float | None:
    """A finite number of microseconds, from a number or from text as old kineto writes it."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, str))
        or (isinstance(value, str) and len(value) > 40)
    ):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e18 else None


def _rank(view: Any) -> int | None:
    info: Any = view.get("distributedInfo") if isinstance(view, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    rank: Any = info.get("rank") if isinstance(info, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 10_000_000 else None


def _merged(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total = 0.0
    reached = float("-inf")
    for start, end in sorted(intervals):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
