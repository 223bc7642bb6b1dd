"""From launchers' statements to ``log.process_exit``: one signal per process, with the most telling statement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.logs.ends.records import LauncherRecord, signal_name
from torchtriage.logs.quotes import quote
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from torchtriage.logs.records import Timeline

MAX_SIGNALS = 256
_MAX_LOOKED_AT = 64
_SIGTERM, _SIGKILL = -15, -9
# The failure table names the job's rank; the agent's line names the process it saw first.
_WORTH = {"elastic_table": 3, "mpi": 2, "srun": 2, "spawn_exit": 2, "elastic_failed": 1}
_ELASTIC = frozenset({"elastic_table", "elastic_failed", "elastic_signal"})


@dataclass
class _End:
    """What all statements about one process say together."""

    best: LauncherRecord
    rank: int | None
    exitcode: int | None
    first_observed: bool
    ordered: bool
    reason: str | None


def exit_signals(timeline: Timeline, printed_exception: set[int]) -> list[Signal]:
    """``log.process_exit`` for every process that ended with a failure or a signal."""
    signals: list[Signal] = []
    ends = _ends(timeline)
    anyone_first = any(end.first_observed for end in ends)
    for end in ends:
        if end.exitcode is None and end.reason is None and end.best.kind != "ray":
            continue
        name = "log.process_exit"
        by_signal = end.exitcode in (None, _SIGTERM, _SIGKILL)
        by_launcher = (end.ordered and by_signal) or (end.exitcode == _SIGTERM and anyone_first)
        facts: dict[str, Any] = {
            "exitcode": end.exitcode,
            "signal": signal_name(end.exitcode),
            "first_observed": end.first_observed,
            "by_launcher": by_launcher and not end.first_observed,
            "exception_printed": end.rank in printed_exception,
            "reason": end.reason,
            "pid": end.best.pid,
            "told_by": end.best.kind,
            "error_file": end.best.error_file,
        }
        signals.append(
            Signal(
                name=name,
                scope=Scope(
                    ranks=[] if end.rank is None else [end.rank], hosts=[end.best.host] if end.best.host else []
                ),
                facts=facts,
                evidence=[quote(end.best.line, name)],
                time_s=end.best.line.time_s,
            )
        )
    # Those that moved first come first, so that a bound never cuts them.
    signals.sort(key=lambda s: (not s.facts["first_observed"], s.facts["by_launcher"]))
    return signals[:MAX_SIGNALS]


def _ends(timeline: Timeline) -> list[_End]:
    ends: dict[tuple[object, ...], _End] = {}
    for record in timeline.launcher:
        rank = _rank(record, timeline)
        key: tuple[object, ...] = ("rank", rank) if rank is not None else ("pid", record.host, record.pid)
        if rank is None and record.pid is None:
            host = record.host if record.kind == "pod" or record.task is not None else None
            key = (record.kind, host, record.task, record.reason, record.exitcode)
        end = ends.get(key)
        if end is None:
            ends[key] = _End(record, rank, record.exitcode, record.first_observed, record.is_order, record.reason)
            continue
        if _WORTH.get(record.kind, 0) > _WORTH.get(end.best.kind, 0) and record.exitcode is not None:
            end.best, end.exitcode = record, record.exitcode
        end.exitcode = record.exitcode if end.exitcode is None else end.exitcode
        end.first_observed = end.first_observed or record.first_observed
        end.ordered = end.ordered or record.is_order
        end.reason = end.reason or record.reason
    return list(ends.values())


def _rank(record: LauncherRecord, timeline: Timeline) -> int | None:
    if record.rank is not None:
        return record.rank
    if record.pid is not None and record.pid in timeline.rank_of_pid:
        return timeline.rank_of_pid[record.pid]
    if record.task is not None:
        # Under torchrun the scheduler's tasks are nodes.
        if any(other.kind in _ELASTIC for other in timeline.launcher[:_MAX_LOOKED_AT]):
            return None
        return timeline.rank_of_task.get(f"task:srun//{record.task}", record.task)
    tables = any(other.kind == "elastic_table" for other in timeline.launcher[:_MAX_LOOKED_AT])
    # Without a table and with one node at most, the local rank is the rank.
    one_node = timeline.world_size is None or timeline.world_size <= 8
    return record.local_rank if record.local_rank is not None and not tables and one_node else None
