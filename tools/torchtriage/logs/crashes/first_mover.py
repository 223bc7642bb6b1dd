"""Which of the exceptions that ended ranks came first, and which only follow from the end of another process.

Knows the words in which processes tell that a peer is gone. Where the order of two exceptions is not known, both may
have come first: naming several ranks, or none, is better than naming a wrong one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.logs.crashes.tracebacks import ExceptionRecord, TracebackRecord
    from torchtriage.logs.records import Timeline

# Exceptions that follow from the end, or the absence, of another process, or from an order to end.
_CASCADE_TYPES = frozenset(
    {"KeyboardInterrupt", "SignalException", "BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError",
     "RayActorError", "ActorDiedError", "WorkerCrashedError", "ActorUnavailableError", "EngineDeadError",
     "AsyncEngineDeadError", "SIGTERMException", "BrokenProcessPool", "TerminatedWorkerError", "DistNetworkError",
     "ProcessRaisedException", "ProcessExitedException", "RendezvousGracefulExitError", "RendezvousClosedError"}
)  # fmt: skip
_CASCADE_TEXT = lazy_re(
    r"NCCL communicator was aborted|Watchdog caught collective operation timeout|ncclRemoteError|"
    r"remote process exiting prematurely|remote process exited or there was a network error|"
    r"Connection reset by peer|Broken pipe|Connection closed by (?:remote )?peer|"
    r"Connection was likely closed|got 0 bytes|Application timeout caused pair closure|got signal: (?:15|2)\b|SIGTERM|"
    r"timed out in (?:blocking wait|call to wait)|Timed out waiting \d{1,12}ms for (?:recv|send) operation|"
    r"failed to pass monitoredBarrier|wait timeout after|Timeout waiting for key|Socket Timeout|"
    r"killed due to the node running low on memory|"
    r"The actor died|The actor is dead|worker process has died|seconds waiting for clients|"
    r"Pin memory thread exited unexpectedly|process group watchdog thread terminated|"
    r"DataLoader worker \(pid\(?s?\)? ?[\d, ]{1,80}\) (?:is killed by signal|exited unexpectedly)"
)
_NUMBERS = lazy_re(r"\d{1,20}")


def is_cascade(record: ExceptionRecord) -> bool:
    """Say whether an exception is what another process's end or absence looks like from here."""
    return record.type in _CASCADE_TYPES or _CASCADE_TEXT.search(record.message[:4000]) is not None


def came_first(ended: Sequence[TracebackRecord], timeline: Timeline) -> dict[int, bool | None]:
    """For each of the exceptions that ended a rank, by ``id``: whether it may be the first one of the job.

    False for what another exception certainly preceded, and for cascades; None where no rank is known. Several ranks
    that fail in one place with one type share one cause, and all are first.
    """
    real = [t for t in ended if not is_cascade(t.first_cause)]
    observed = {r.rank for r in timeline.launcher if r.first_observed and not r.is_order and r.exitcode != _SIGTERM}
    answers: dict[int, bool | None] = {id(t): False for t in ended}
    for traceback in real:
        if traceback.rank is None:
            answers[id(traceback)] = None
            continue
        preceded = any(_precedes(other, traceback, timeline) for other in real if other.rank is not None)
        # What the launcher saw fail first is not a consequence, whatever was printed before it.
        answers[id(traceback)] = not preceded or traceback.rank in observed
    return answers


_SIGTERM = -15


def _precedes(one: TracebackRecord, other: TracebackRecord, timeline: Timeline) -> bool:
    first, second = one.final.line, other.final.line
    if one is other or first.order >= second.order or _kind(one) == _kind(other):
        return False
    return timeline.order_is_known(first, second)


def _kind(traceback: TracebackRecord) -> tuple[str, str]:
    """What exceptions of one cause have in common on all ranks."""
    first = traceback.first_cause
    frame = first.user_frame or first.last_frame
    return first.type, frame.where if frame is not None else _NUMBERS.sub("0", first.message[:120])
