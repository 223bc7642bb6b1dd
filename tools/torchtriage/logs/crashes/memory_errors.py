"""From exceptions, and from lines that quote them, to ``log.cuda_out_of_memory`` and ``log.host_memory_refused``.

Knows which rank asked for how much, what it was doing, and what its own earlier steps had needed. A rank that went on
after such an error did not fail by it. Why the memory was full is the playbook's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.crashes.out_of_memory import memory_facts, says_out_of_memory
from torchtriage.logs.metrics.curves import curves_of
from torchtriage.logs.metrics.names import MEMORY, is_host_memory
from torchtriage.logs.quotes import quote
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.logs.crashes.tracebacks import ExceptionRecord, Phase, TracebackRecord
    from torchtriage.logs.metrics.collect import OwnerMetrics
    from torchtriage.logs.records import Line, Owner, Timeline
    from torchtriage.report import Evidence

OUT_OF_MEMORY = "log.cuda_out_of_memory"
HOST_REFUSED = "log.host_memory_refused"
KIND = "out_of_memory"
"""The kind of record of lines that may tell of it; see ``scan.plans``."""
MAX_SIGNALS = 64
_MAX_LINES = 4096
_OOM_TYPES = frozenset({"OutOfMemoryError"})
_OF_TORCH = lazy_re(r"\btorch\.(?:\w{1,20}\.){0,2}OutOfMemoryError\b|\bTried to allocate\b")
# torch's CPU allocator, glibc's malloc behind libstdc++, and system calls that Python passes on.
_HOST = lazy_re(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory(?:: you tried to allocate (?P<bytes>\d{1,20}) bytes)?|"
    r"^std::bad_alloc\b|^\[Errno 12\] Cannot allocate memory|^Unable to allocate [\d.]{1,12} [KMGTPE]?i?B for an array"
)
# A level of logging that says that the program goes on.
_MILD = lazy_re(r"(?<![A-Za-z])(?:DEBUG|INFO|WARN|WARNING)(?![A-Za-z])")
_LEVEL_CHARS = 160
_PEAKS = ("peak", "max")
# What a metric needs to be called flat: so many values, and the last two this near to each other.
_MIN_VALUES = 3
_FLAT = 0.05
_IMPOSSIBLE_BYTES = 1 << 50


@dataclass(frozen=True)
class Stated:
    """What exceptions have told already, so that lines which repeat it say nothing new."""

    tracebacks: Sequence[TracebackRecord]
    handled_lines: set[int]
    """Lines, by ``id``, whose words say that the error was caught."""
    signals: Sequence[Signal]


def memory_signals_of(traceback: TracebackRecord, timeline: Timeline) -> list[Signal]:
    """What an exception that ended a rank says about memory: the device's, or else the host's."""
    chain = (traceback.final, *traceback.exceptions)
    if (oom := next((e for e in chain if _is_of_the_device(e)), None)) is not None:
        facts = memory_facts(oom.message) | _place(oom) | {"told_by": "exception"}
        facts |= _in_its_run(facts, traceback.rank, traceback.owner, oom.line, timeline)
        evidence = [quote(oom.line, OUT_OF_MEMORY, "Tried to allocate"), *_frames(oom, OUT_OF_MEMORY)]
        return [_signal(OUT_OF_MEMORY, traceback.rank, facts, evidence, oom.line)]
    refused = next((e for e in chain if e.type == "MemoryError" or _HOST.search(e.message[:1000])), None)
    if refused is None:
        return []
    match = _HOST.search(refused.message[:1000])
    asked = int(match["bytes"]) if match and match["bytes"] else None
    facts = {"requested_bytes": asked, "corrupt_size": asked is not None and asked >= _IMPOSSIBLE_BYTES}
    evidence = [quote(refused.line, HOST_REFUSED, "allocate"), *_frames(refused, HOST_REFUSED)]
    return [_signal(HOST_REFUSED, traceback.rank, facts | _place(refused), evidence, refused.line)]


def stated_in_lines(timeline: Timeline, stated: Stated) -> list[Signal]:
    """``log.cuda_out_of_memory`` of allocators' messages that a program or a launcher printed without a traceback.

    Left out is what an exception tells already, what is called a warning, and what the rank survived.
    """
    candidates = timeline.records.get(KIND, ())[:_MAX_LINES]
    if not candidates:
        return []
    of_exceptions = {id(e.line) for t in stated.tracebacks for e in t.exceptions}
    spans = [(t.owner, t.start.key[0], t.start.number, (t.end or t.start).number) for t in stated.tracebacks]
    known = {(tuple(s.scope.ranks), _numbers(s.facts)) for s in stated.signals if s.name == OUT_OF_MEMORY}
    signals: list[Signal] = []
    for line in sorted(candidates, key=lambda line: line.order):
        ranks = () if line.rank is None else (line.rank,)
        if id(line) in of_exceptions or id(line) in stated.handled_lines or _MILD.search(line.text, 0, _LEVEL_CHARS):
            continue
        if any(o == line.owner and s == line.key[0] and a <= line.number <= b for o, s, a, b in spans):
            continue
        facts = memory_facts(line.text)
        repeated = any(numbers == _numbers(facts) for of, numbers in known if of == ranks or not ranks)
        if repeated or not facts["caching_allocator"] or _was_survived(line, timeline):
            continue
        known.add((ranks, _numbers(facts)))
        facts |= {"where": None, "phase": None, "told_by": "line"}
        facts |= _in_its_run(facts, line.rank, line.owner, line, timeline)
        evidence = [quote(line, OUT_OF_MEMORY, "out of memory")]
        signals.append(_signal(OUT_OF_MEMORY, line.rank, facts, evidence, line))
        if len(signals) >= MAX_SIGNALS:
            break
    return signals


def _is_of_the_device(record: ExceptionRecord) -> bool:
    """Whether device memory ran out: other libraries (Ray) name exceptions about the host's memory alike."""
    if says_out_of_memory(record.message):
        return True
    return record.type in _OOM_TYPES and _OF_TORCH.search(record.line.text[:400]) is not None


def _place(record: ExceptionRecord) -> dict[str, Any]:
    frame, phase = record.user_frame, record.phase
    return {
        "where": None if frame is None else clean_text(frame.where),
        "phase": None if phase is None else phase.name,
    }


def _frames(record: ExceptionRecord, name: str) -> list[Evidence]:
    phase: Phase | None = record.phase
    frames = [record.user_frame, None if phase is None else phase.frame]
    return [quote(frame.line, name) for frame in frames if frame is not None]


def _signal(name: str, rank: int | None, facts: dict[str, Any], evidence: list[Evidence], line: Line) -> Signal:
    return Signal(
        name=name,
        scope=Scope(ranks=[] if rank is None else [rank]),
        facts=facts,
        evidence=evidence,
        time_s=line.time_s,
    )


def _numbers(facts: dict[str, Any]) -> tuple[Any, ...]:
    """What two messages about one failure have in common."""
    return tuple(facts[name] for name in ("requested_bytes", "gpu", "free_bytes", "allocated_bytes"))


def _was_survived(line: Line, timeline: Timeline) -> bool:
    """Whether the process went on stepping, or finished, after it printed the line."""
    metrics, own = timeline.metrics.owners.get(_owner(line.rank, line.owner)), timeline.owners.get(line.owner)
    later_step = metrics is not None and metrics.last_step_row is not None and (
        metrics.last_step_row.line.order > line.order
    )  # fmt: skip
    finished = own is not None and own.last_own is not None and own.last_own_is_finish and (
        own.last_own.order > line.order
    )  # fmt: skip
    return later_step or finished


def _owner(rank: int | None, owner: Owner) -> Owner:
    return owner if rank is None else rank


def _in_its_run(
    facts: dict[str, Any], rank: int | None, owner: Owner, line: Line, timeline: Timeline
) -> dict[str, Any]:
    """What the job's own lines add: who the other processes are, and what earlier steps needed."""
    pids = {pid for pid in (r.pid for r in timeline.launcher if not r.reason) if pid is not None}
    own = timeline.metrics.owners.get(_owner(rank, owner))
    steps = None if own is None else sum(row.line.order < line.order for row in own.rows if row.step is not None)
    return {
        "others_are_ranks": any(pid in pids or pid in timeline.rank_of_pid for pid in facts["other_pids"]),
        "steps_before": steps,
        "over_usual_peak": _over_usual_peak(facts, own, line),
    }


def _over_usual_peak(facts: dict[str, Any], own: OwnerMetrics | None, line: Line) -> float | None:
    """How many times the peak of all earlier steps the failing request would have made it.

    None unless the job prints its peak, and that no longer rose: what rises may have come this far step by step.
    """
    allocated, requested = facts["allocated_bytes"], facts["requested_bytes"]
    if own is None or allocated is None or requested is None:
        return None
    curves = [curve for curve in curves_of(own).of(MEMORY) if _is_peak(curve.metric)]
    peaks = [[point for point in curve.points if point.row.line.order < line.order] for curve in curves]
    flat = [
        max(point.value for point in points)
        for points in peaks
        if len(points) >= _MIN_VALUES
        and points[-1].value > 0
        and abs(points[-1].value - points[-2].value) <= _FLAT * points[-1].value
    ]
    return round((allocated + requested) / max(flat), 3) if flat and max(flat) > 0 else None


def _is_peak(metric: str) -> bool:
    """Whether a memory metric is the most that was allocated on the GPU so far, or in a step."""
    return not is_host_memory(metric) and "reserved" not in metric and any(part in metric for part in _PEAKS)
