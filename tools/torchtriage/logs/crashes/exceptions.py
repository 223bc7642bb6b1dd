"""From tracebacks to signals: which ranks ended with a Python exception, and which exceptions were caught.

Where memory ran out, ``memory_errors`` says more of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.crashes.first_mover import came_first, is_cascade
from torchtriage.logs.crashes.memory_errors import Stated, memory_signals_of, stated_in_lines
from torchtriage.logs.crashes.out_of_memory import says_out_of_memory
from torchtriage.logs.quotes import quote
from torchtriage.logs.scan.prose import is_negated
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from torchtriage.logs.crashes.tracebacks import TracebackRecord
    from torchtriage.logs.ends.records import LauncherRecord
    from torchtriage.logs.records import Line, Timeline

MAX_SIGNALS = 64
_MESSAGE_CHARS = 300
# Exceptions of the launcher itself: they report the end of a rank.
_LAUNCHER_TYPES = frozenset(
    {"ChildFailedError", "SignalException", "ProcessExitedException", "ProcessRaisedException", "CalledProcessError"}
)
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
    """``log.python_exception``, ``log.exception_handled``, and what ``memory_errors`` sees in exceptions."""
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
        signals += memory_signals_of(traceback, timeline)
    caught = [t for t in tracebacks if id(t) in handled][:MAX_SIGNALS]
    signals += [_exception("log.exception_handled", t, {"handled": True, "all_ranks": False}) for t in caught]
    handled_in_words, by_words = _told_in_a_line(timeline)
    signals += stated_in_lines(timeline, Stated(tracebacks, handled_in_words, signals))
    return signals + by_words


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


def _told_in_a_line(timeline: Timeline) -> tuple[set[int], list[Signal]]:
    """Exceptions of which only a message tells that they were caught: ``skipping batch: CUDA out of memory``.

    Returns:
        The lines, by ``id``, and a signal per rank.
    """
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
    return {id(line) for lines in by_rank.values() for line in lines}, signals


def _is_handled_words(text: str) -> bool:
    if "NCCL INFO" in text or "ProcessGroupNCCL" in text or ("Warning:" in text and ".py:" in text):
        return False
    if _HANDLED.match(text) is None or _POLICY.search(text, 0, 2000) is not None:
        return False
    told = _ERROR_TOLD.search(text, 0, 2000)
    return told is None or not is_negated(text, told.start())


def _told_facts(line: Line) -> dict[str, Any]:
    match = _ERROR_WORD.search(line.text)
    is_oom = says_out_of_memory(line.text) or "out of memory" in line.text.lower()
    kind = "OutOfMemoryError" if is_oom else match["type"] if match else None
    return {
        "type": kind,
        "message": clean_text(line.text, _MESSAGE_CHARS),
        "first_cause_type": kind,
        "cascade": False,
        "where": None,
    }
