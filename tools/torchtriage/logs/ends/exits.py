"""From launchers' statements to ``log.process_exit``: one signal per process, with the most telling statement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.ends.records import LauncherRecord, signal_name
from torchtriage.logs.quotes import quote
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from torchtriage.logs.records import Line, Timeline

MAX_SIGNALS = 256
_MAX_LOOKED_AT = 64
_DETAIL_CHARS = 120
_CODE_TOLD = lazy_re(r"(?i)(?:code|status)[^\w-]{1,24}(-?\d{1,5})(?![\w.])")
_WORKER = lazy_re(r"DataLoader worker \(pid (?P<pid>\d{1,10})\) is killed by signal")
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
    node: str | None
    detail: str | None
    memory: dict[str, int | float | str] = field(default_factory=dict[str, "int | float | str"])
    told_memory: LauncherRecord | None = None
    """The statement that tells the most of the host's memory."""


def exit_signals(timeline: Timeline, printed_exception: set[int]) -> list[Signal]:
    """``log.process_exit`` for every process that ended with a failure or a signal; ``log.end_recovered`` instead where
    the launcher then began again and the job finished.
    """
    signals: list[Signal] = []
    workers = killed_workers(timeline)
    ends = _ends(timeline, workers)
    restart = _restart_that_finished(timeline)
    anyone_first = any(end.first_observed for end in ends)
    for end in ends:
        if end.exitcode is None and end.reason is None and end.best.kind != "ray":
            continue
        recovered = restart is not None and end.best.line.order < restart.order
        name = "log.end_recovered" if recovered else "log.process_exit"
        by_signal = end.exitcode in (None, _SIGTERM, _SIGKILL)
        by_launcher = (end.ordered and by_signal) or (end.exitcode == _SIGTERM and anyone_first)
        facts: dict[str, Any] = {
            "exitcode": end.exitcode,
            "told_exitcode": _printed_code(end.best.line.text, end.exitcode),
            "signal": signal_name(end.exitcode),
            "first_observed": end.first_observed,
            "by_launcher": by_launcher and not end.first_observed,
            "exception_printed": end.rank in printed_exception,
            "reason": end.reason,
            "detail": None if end.detail is None else clean_text(end.detail.strip(), _DETAIL_CHARS),
            "pid": end.best.pid,
            "told_by": end.best.kind,
            "error_file": end.best.error_file,
            "loader_worker": end.best.pid in workers,
        }
        facts |= {name: clean_text(v, _DETAIL_CHARS) if isinstance(v, str) else v for name, v in end.memory.items()}
        signals.append(
            Signal(
                name=name,
                scope=Scope(
                    ranks=[] if end.rank is None else [end.rank],
                    hosts=[host for host in (end.best.host, end.node) if host],
                ),
                facts=facts,
                evidence=[quote(line, name) for line in _lines(end)],
                time_s=end.best.line.time_s,
            )
        )
    # Those that moved first come first, so that a bound never cuts them.
    signals.sort(key=lambda s: (not s.facts["first_observed"], s.facts["by_launcher"]))
    return signals[:MAX_SIGNALS]


def _ends(timeline: Timeline, workers: dict[int, int]) -> list[_End]:
    ends: dict[tuple[object, ...], _End] = {}
    ranks = [_rank(record, timeline) for record in timeline.launcher]
    by_pid = workers | _ranks_by_pid(timeline.launcher, ranks)
    for record, told in zip(timeline.launcher, ranks, strict=True):
        rank = by_pid.get(record.pid) if told is None and record.pid is not None else told
        key: tuple[object, ...] = ("rank", rank) if rank is not None else ("pid", record.host, record.pid)
        if rank is None and record.pid is None:
            host = record.host if record.kind == "pod" or record.task is not None else None
            key = (record.kind, host, record.task, record.reason, record.exitcode)
        end = ends.get(key)
        if end is None:
            ends[key] = _End(record, rank, record.exitcode, record.first_observed, record.is_order, record.reason,
                             record.node, record.detail, dict(record.memory))  # fmt: skip
            continue
        if _WORTH.get(record.kind, 0) > _WORTH.get(end.best.kind, 0) and record.exitcode is not None:
            end.best, end.exitcode = record, record.exitcode
        end.exitcode = record.exitcode if end.exitcode is None else end.exitcode
        end.first_observed = end.first_observed or record.first_observed
        end.ordered = end.ordered or record.is_order
        end.reason = end.reason or record.reason
        end.node, end.detail = end.node or record.node, end.detail or record.detail
        end.memory = record.memory | end.memory
        if len(record.memory) > len(end.told_memory.memory if end.told_memory is not None else {}):
            end.told_memory = record
    return list(ends.values())


def _lines(end: _End) -> list[Line]:
    """What is quoted: the most telling statement, and the one that tells of the memory."""
    other = end.told_memory
    return [end.best.line] if other is None or other is end.best else [end.best.line, other.line]


def _ranks_by_pid(records: list[LauncherRecord], ranks: list[int | None]) -> dict[int, int]:
    """Which process is which rank, as the launchers' own statements tell; not where hosts share a number."""
    found: dict[int, set[int]] = {}
    for record, rank in zip(records, ranks, strict=True):
        if record.pid is not None and rank is not None:
            found.setdefault(record.pid, set()).add(rank)
    return {pid: min(of) for pid, of in found.items() if len(of) == 1}


def killed_workers(timeline: Timeline) -> dict[int, int]:
    """Loader workers that were killed, and the rank that says it missed them."""
    found: dict[int, set[int]] = {}
    for traceback in timeline.tracebacks:
        match = _WORKER.search(traceback.first_cause.message[:400])
        if match is not None and traceback.rank is not None:
            found.setdefault(int(match["pid"]), set()).add(traceback.rank)
    return {pid: min(of) for pid, of in found.items() if len(of) == 1}


def _printed_code(text: str, exitcode: int | None) -> int | None:
    """The exit code as the line prints it (-9 or 137); None where words such as "Killed" tell the end."""
    if exitcode is None:
        return None
    forms = {exitcode, 128 - exitcode} if exitcode < 0 else {exitcode}
    told = (int(match[1]) for match in _CODE_TOLD.finditer(text[:4096]))
    return next((code for code in told if code in forms), None)


def _restart_that_finished(timeline: Timeline) -> Line | None:
    """The launcher's last restart, where nothing failed after it and who printed last says that the job finished."""
    restarts = [r.line for r in timeline.launcher if r.kind == "elastic_restart"]
    if not restarts:
        return None
    last = max(restarts, key=lambda line: line.order)
    if any(r.line.order > last.order and not r.is_order for r in timeline.launcher):
        return None
    owners = [own for own in timeline.owners.values() if own.last_own is not None and own.last_own_is_finish]
    after = [own.last_own for own in owners if own.last_own is not None and own.last_own.order > last.order]
    return last if any(timeline.order_is_known(last, line) for line in after) else None


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
    return _rank_of_local(record, timeline) if record.local_rank is not None and not tables else None


def _rank_of_local(record: LauncherRecord, timeline: Timeline) -> int | None:
    """The rank behind a local rank: the same on a single node; else by place among the ranks that print on that host.

    Only where the hosts' ranks are one run of numbers each and none is missing is their place certain.
    """
    local = record.local_rank or 0
    by_host: dict[str, list[int]] = {}
    for owner, own in timeline.owners.items():
        if isinstance(owner, int) and own.last_own is not None and own.last_own.host is not None:
            by_host.setdefault(own.last_own.host, []).append(owner)
    if record.line.host is None or len(by_host) < 2:
        return local if timeline.world_size is None or timeline.world_size <= 8 else None
    everybody = sorted(rank for ranks in by_host.values() for rank in ranks)
    here = sorted(by_host.get(record.line.host, ()))
    whole = everybody == list(range(len(everybody))) and bool(here) and here[-1] - here[0] == len(here) - 1
    return here[local] if whole and local < len(here) else None
