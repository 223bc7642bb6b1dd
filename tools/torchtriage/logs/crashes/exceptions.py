"""From tracebacks to signals: which ranks ended with a Python exception, which of them ran out of device memory,
and which exceptions were caught.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.crashes.first_mover import came_first, is_cascade
from torchtriage.logs.quotes import quote
from torchtriage.logs.scan.prose import is_negated
from torchtriage.report import Evidence, Scope, Signal

if TYPE_CHECKING:
    from torchtriage.logs.crashes.tracebacks import ExceptionRecord, TracebackRecord
    from torchtriage.logs.ends.records import LauncherRecord
    from torchtriage.logs.records import Line, Timeline

MAX_SIGNALS = 64
_MESSAGE_CHARS = 300
# Exceptions of the launcher itself: they report the end of a rank.
_LAUNCHER_TYPES = frozenset(
    {"ChildFailedError", "SignalException", "ProcessExitedException", "ProcessRaisedException", "CalledProcessError"}
)
_OOM_TEXT = lazy_re(r"(?:CUDA|HIP) out of memory|(?:CUDA|HIP) error: out of memory|CUDA Error: out of memory")
_OOM_TYPES = frozenset({"OutOfMemoryError"})
_OOM_OF_TORCH = lazy_re(r"\btorch\.(?:\w{1,20}\.){0,2}OutOfMemoryError\b|\bTried to allocate\b")
_SIZE = r"(?P<number>\d{1,12}(?:\.\d{1,6})?) (?P<unit>bytes|[KMGT]iB)"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Texts of torch <= 2.0 and of 2.1 and later.
_SIZES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("requested_bytes", lazy_re(rf"Tried to allocate {_SIZE}")),
    ("total_bytes", lazy_re(rf"total capacit?y of {_SIZE}")),
    ("total_bytes", lazy_re(rf"{_SIZE} total capacity")),
    ("free_bytes", lazy_re(rf"of which {_SIZE} is free")),
    ("free_bytes", lazy_re(rf"{_SIZE} free")),
    ("this_process_bytes", lazy_re(rf"this process has {_SIZE} memory in use")),
    ("allocated_bytes", lazy_re(rf"{_SIZE} is allocated by PyTorch")),
    ("allocated_bytes", lazy_re(rf"{_SIZE} already allocated")),
    ("reserved_unallocated_bytes", lazy_re(rf"{_SIZE} is reserved by PyTorch but unallocated")),
    ("allowed_bytes", lazy_re(rf"{_SIZE} allowed")),
    ("private_pools_bytes", lazy_re(rf"{_SIZE} allocated in private pools")),
)
_RESERVED_OLD = lazy_re(rf"{_SIZE} reserved in total by PyTorch")
_OTHERS = lazy_re(rf"Process \d{{1,10}} has {_SIZE} memory in use")
_HANDLED = lazy_re(
    r"(?i)(?=.{0,2000}\b(?:skip\w*|ignor\w*|caught|retry\w*|retrie\w*|continu\w*)\b)"
    r"(?=.{0,2000}(?:\b[a-z_.]{0,60}(?:error|exception)\b|out of memory))"
)
# "retry up to 3 times on ConnectionError", "skip_on_error: true" announce what would be done.
_POLICY = lazy_re(
    r"(?i)(?<![a-z])(?:retry|retries|skip|ignore|continue)(?![a-z])[^:;]{0,60}?(?<![a-z])(?:on|upon|if|when|in case of)"
    r"[ _-](?:[a-z]{1,5}[ _-])?[\w.]{0,60}(?:error|exception)"
    r"(?!\(|: (?!true|false|none|\d))(?!.{0,80}(?:error|exception)[(:])"  # nor is it told of one in particular
)
_ERROR_TOLD = lazy_re(r"(?i)[a-z_.]{0,60}(?:error|exception)\b|out of memory")
_ERROR_WORD = lazy_re(r"\b(?:[A-Za-z_]\w*\.){0,4}(?P<type>[A-Z]\w{0,60}(?:Error|Exception))\b")


def exception_signals(timeline: Timeline) -> list[Signal]:
    """``log.python_exception``, ``log.cuda_out_of_memory`` and ``log.exception_handled``."""
    tracebacks = sorted((t for t in timeline.tracebacks if not _is_launchers(t)), key=lambda t: t.final.line.order)
    handled = {id(t) for t in tracebacks if _was_handled(t, tracebacks, timeline)}
    ended = _last_per_rank([t for t in tracebacks if id(t) not in handled])
    ranks_by_type: dict[str, set[int]] = {}
    for traceback in ended:
        if traceback.rank is not None:
            ranks_by_type.setdefault(traceback.final.type, set()).add(traceback.rank)
    ranks_seen = set(timeline.ranks_seen)
    first = came_first(ended[:MAX_SIGNALS], timeline)
    signals: list[Signal] = []
    for traceback in ended[:MAX_SIGNALS]:
        same = ranks_by_type.get(traceback.final.type, set())
        all_ranks = len(same) > 1 and same >= ranks_seen
        shared: dict[str, Any] = {"handled": False, "all_ranks": all_ranks, "first": first[id(traceback)]}
        signals.append(_exception("log.python_exception", traceback, shared))
        if (oom := _oom_of(traceback)) is not None:
            signals.append(_out_of_memory(traceback, oom))
    caught = [t for t in tracebacks if id(t) in handled][:MAX_SIGNALS]
    signals += [_exception("log.exception_handled", t, {"handled": True, "all_ranks": False}) for t in caught]
    return signals + _told_in_a_line(timeline)


def ranks_with_exception(timeline: Timeline) -> set[int]:
    """Ranks that printed a traceback of their own."""
    return {t.rank for t in timeline.tracebacks if t.rank is not None and not _is_launchers(t)}


def _is_launchers(traceback: TracebackRecord) -> bool:
    final = traceback.final
    return final.type in _LAUNCHER_TYPES or (final.in_launcher and final.user_frame is None)


def _was_handled(traceback: TracebackRecord, all_of_them: list[TracebackRecord], timeline: Timeline) -> bool:
    """An exception after which its rank went on stepping was caught, unless the rank then exited because of it."""
    own = timeline.metrics.owners.get(traceback.rank if traceback.rank is not None else traceback.owner)
    if own is None or own.last_step_row is None:
        return False
    end = traceback.end or traceback.final.line
    if own.last_step_row.line.order <= end.order:
        return False
    if end.time_s is None and end.key[0] != own.last_step_row.line.key[0]:
        return False  # of two files, one without a time: which came first is not known
    before = [row.step for row in own.rows if row.step is not None and row.line.order < traceback.start.order]
    if before and own.last_step is not None and own.last_step <= max(before):
        return False
    later = any(t.rank == traceback.rank and t.final.line.order > end.order for t in all_of_them)
    return later or not any(_is_exit_of_python(report, traceback.rank) for report in timeline.launcher)


def _is_exit_of_python(report: LauncherRecord, rank: int | None) -> bool:
    return report.exitcode == 1 and (rank is None or report.rank == rank)


def _last_per_rank(tracebacks: list[TracebackRecord]) -> list[TracebackRecord]:
    """The traceback that ended each rank: its first one that is not a mere consequence, else its first one.

    Lines without a rank may come from several processes, so all different ones of them are kept.
    """
    kept: dict[tuple[object, ...], TracebackRecord] = {}
    for traceback in tracebacks:
        key: tuple[object, ...] = (traceback.rank,)
        if traceback.rank is None:
            key = (None, traceback.owner, traceback.final.type, traceback.final.message[:120])
        known = kept.get(key)
        # A traceback with frames says more than its last line repeated elsewhere.
        if (
            known is None
            or (is_cascade(known.first_cause) and not is_cascade(traceback.first_cause))
            or (known.bare and not traceback.bare and known.final.type == traceback.final.type)
        ):
            kept[key] = traceback
    if any(rank is not None for (rank, *_) in kept):
        # Beside tracebacks that name their rank, a repetition without one tells nothing new.
        named = {(t.final.type, t.final.message[:60]) for t in kept.values() if t.rank is not None}
        kept = {
            key: t for key, t in kept.items() if t.rank is not None or (t.final.type, t.final.message[:60]) not in named
        }
    return sorted(kept.values(), key=lambda t: t.final.line.order)


def _exception(name: str, traceback: TracebackRecord, shared: dict[str, Any]) -> Signal:
    final, first = traceback.final, traceback.first_cause
    # An exception that only passes on another process's says nothing of its own.
    said = first if final.wraps else final
    frame = first.user_frame or final.user_frame
    evidence = [quote(final.line, name)]
    if first is not final:
        evidence.append(quote(first.line, name))
    if frame is not None:
        evidence.append(quote(frame.line, name))
    return Signal(
        name=name,
        scope=Scope(ranks=[] if traceback.rank is None else [traceback.rank]),
        facts={
            "type": said.type,
            "message": clean_text(said.message.strip(), _MESSAGE_CHARS),
            "first_cause_type": first.type,
            "first_cause_message": clean_text(first.message.strip(), _MESSAGE_CHARS),
            "cascade": is_cascade(first),
            "order": final.line.order,
            "where": None if frame is None else clean_text(frame.where),
        }
        | shared,
        evidence=evidence,
        time_s=final.line.time_s,
    )


def _oom_of(traceback: TracebackRecord) -> ExceptionRecord | None:
    return next(
        (e for e in (traceback.final, *traceback.exceptions) if _is_of_the_device(e)),
        None,
    )


def _is_of_the_device(record: ExceptionRecord) -> bool:
    """Whether device memory ran out: other libraries (Ray) name exceptions about the host's memory alike."""
    if _OOM_TEXT.search(record.message):
        return True
    return record.type in _OOM_TYPES and _OOM_OF_TORCH.search(record.line.text[:400]) is not None


def _out_of_memory(traceback: TracebackRecord, oom: ExceptionRecord) -> Signal:
    name = "log.cuda_out_of_memory"
    frame = oom.user_frame
    evidence = [quote(oom.line, name, "Tried to allocate")]
    if frame is not None:
        evidence.append(quote(frame.line, name))
    return Signal(
        name=name,
        scope=Scope(ranks=[] if traceback.rank is None else [traceback.rank]),
        facts=memory_facts(oom.message) | {"where": None if frame is None else clean_text(frame.where)},
        evidence=evidence,
        time_s=oom.line.time_s,
    )


def memory_facts(message: str) -> dict[str, Any]:
    """The numbers of an allocator's out-of-memory message, in bytes; what it does not tell is None."""
    facts: dict[str, Any] = {name: None for name, _ in _SIZES}
    for name, pattern in _SIZES:
        if facts[name] is None and (match := pattern.search(message)):
            facts[name] = _bytes(match)
    if facts["reserved_unallocated_bytes"] is None and (match := _RESERVED_OLD.search(message)):
        facts["reserved_unallocated_bytes"] = max(0, _bytes(match) - (facts["allocated_bytes"] or 0))
    others = [_bytes(match) for match in _OTHERS.finditer(message)][:64]
    facts["this_process_bytes"], facts["other_processes_bytes"] = _own_and_others(facts, others)
    facts["n_other_processes"] = len(facts["other_processes_bytes"])
    gpu = re.search(r"\bGPU (\d{1,3})\b", message)
    facts["gpu"] = int(gpu[1]) if gpu else None
    facts |= _shares(facts)
    facts["caching_allocator"] = "out of memory. Tried to allocate" in message
    return facts


def _own_and_others(facts: dict[str, Any], listed: list[int]) -> tuple[int | None, list[int]]:
    """Which of the listed processes is the one that prints: in a container the driver knows it by another number.

    Then no line says "this process", and the smallest one that can hold what the allocator holds is it.
    """
    own: int | None = facts["this_process_bytes"]
    held = (facts["allocated_bytes"] or 0) + (facts["reserved_unallocated_bytes"] or 0)
    fitting = [size for size in listed if held and size >= 0.99 * held]
    if own is not None or not fitting:
        return own, listed
    own = min(fitting)
    rest = list(listed)
    rest.remove(own)
    return own, rest


def _shares(facts: dict[str, Any]) -> dict[str, Any]:
    """What the numbers mean in proportion: to what the allocator holds, to the request, and to the card."""
    unallocated, allocated = facts["reserved_unallocated_bytes"], facts["allocated_bytes"]
    held = (unallocated or 0) + (allocated or 0)
    others, total = sum(facts["other_processes_bytes"]), facts["total_bytes"]
    requested = facts["requested_bytes"]
    return {
        "reserved_unallocated_share": round(unallocated / held, 3) if unallocated is not None and held else None,
        # Twice the request: a hole of exactly the right size is not to be expected.
        "fits_in_reserved": None if unallocated is None or requested is None else unallocated >= 2 * requested,
        "other_processes_share": round(others / total, 3) if others and total else None,
    }


def _bytes(match: re.Match[str]) -> int:
    return round(float(match["number"]) * _UNITS[match["unit"]])


def _told_in_a_line(timeline: Timeline) -> list[Signal]:
    """Exceptions of which only a message tells that they were caught: ``skipping batch: CUDA out of memory``."""
    name = "log.exception_handled"
    in_tracebacks = {id(e.line) for t in timeline.tracebacks for e in t.exceptions}
    by_rank: dict[int | None, list[Line]] = {}
    for line in timeline.records.get("handled", ()):
        if id(line) not in in_tracebacks and line.text and _is_handled_words(line.text):
            by_rank.setdefault(line.rank, []).append(line)
    signals: list[Signal] = []
    for rank, lines in list(by_rank.items())[:MAX_SIGNALS]:
        line = lines[0]
        signals.append(
            Signal(
                name=name,
                scope=Scope(ranks=[] if rank is None else [rank]),
                facts=_told_facts(line) | {"count": len(lines), "handled": True, "order": line.order},
                evidence=[quote(line, name)],
                time_s=line.time_s,
            )
        )
    return signals


def _is_handled_words(text: str) -> bool:
    if "NCCL INFO" in text or "ProcessGroupNCCL" in text or ("Warning:" in text and ".py:" in text):
        return False
    if _HANDLED.match(text) is None or _POLICY.search(text, 0, 2000) is not None:
        return False
    told = _ERROR_TOLD.search(text, 0, 2000)
    return told is None or not is_negated(text, told.start())


def _told_facts(line: Line) -> dict[str, Any]:
    match = _ERROR_WORD.search(line.text)
    is_oom = _OOM_TEXT.search(line.text) is not None or "out of memory" in line.text.lower()
    kind = "OutOfMemoryError" if is_oom else match["type"] if match else None
    return {
        "type": kind,
        "message": clean_text(line.text, _MESSAGE_CHARS),
        "first_cause_type": kind,
        "cascade": False,
        "where": None,
    }


__all__ = ["Evidence", "exception_signals", "memory_facts", "ranks_with_exception"]
