"""What launchers, schedulers and the kernel say about the end of processes.

Sources of the forms: torch.distributed.elastic (agent lines and the failure table), torch.multiprocessing.spawn,
DeepSpeed's launcher, Slurm (srun, slurmstepd), Open MPI, Ray, Kubernetes, the Linux out-of-memory killer.
"""

from __future__ import annotations

import re
import signal as signals
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchtriage.logs.records import Line


@dataclass
class LauncherRecord:
    """One statement about the end of one process, or of processes that are not named."""

    kind: str
    line: Line
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    exitcode: int | None = None
    host: str | None = None
    first_observed: bool = False
    reason: str | None = None
    is_order: bool = False
    """The launcher ended the process; it did not end by itself."""


@dataclass
class LauncherReader:
    """Collects the records of one source; the failure table spans lines."""

    records: list[LauncherRecord] = field(default_factory=list[LauncherRecord])
    _in_root: bool = False
    _in_table: bool = False
    _host: str | None = None
    _row: LauncherRecord | None = None

    def feed(self, kind: str, text: str, line: Line) -> None:
        """Read one line that holds a launcher's text of this kind."""
        if len(self.records) < MAX_RECORDS and (reader := _READERS.get(kind)) is not None:
            reader(self, text, line)

    def read_failed(self, text: str, line: Line) -> None:
        """``failed (exitcode: -9) local_rank: 1 (pid: 957) of binary``: the agent's first observation."""
        if match := _FAILED.search(text):
            self._add(
                "elastic_failed",
                line,
                exitcode=_small(match["code"]),
                local_rank=int(match["local"]),
                pid=int(match["pid"]),
                first_observed=True,
            )

    def read_signal(self, text: str, line: Line) -> None:
        """``Sending process 956 closing signal SIGTERM``: the agent ends a healthy process."""
        if match := _SENT.search(text):
            self._add("elastic_signal", line, pid=int(match["pid"]), is_order=True)

    def read_table_head(self, text: str, line: Line) -> None:  # noqa: ARG002
        """``Failures:`` or ``Root Cause (first observed failure):``."""
        self._in_table = True
        self._in_root = "Root Cause" in text
        self._row = None

    def read_table_host(self, text: str, line: Line) -> None:  # noqa: ARG002
        """``  host      : node01``."""
        if self._in_table and (match := _TABLE_HOST.match(text)):
            self._host = match["host"]

    def read_table_rank(self, text: str, line: Line) -> None:
        """``  rank      : 3 (local_rank: 3)``."""
        if self._in_table and (match := _TABLE_RANK.match(text)):
            self._row = self._add(
                "elastic_table",
                line,
                rank=int(match["rank"]),
                local_rank=int(match["local"]),
                host=self._host,
                first_observed=self._in_root,
            )

    def read_table_exitcode(self, text: str, line: Line) -> None:
        """``  exitcode  : -9 (pid: 957)``."""
        if self._row is not None and (match := _TABLE_EXIT.match(text)):
            self._row.exitcode = _small(match["code"])
            self._row.pid = int(match["pid"])
            self._row.line = line
            self._row = None

    def read_srun(self, text: str, line: Line) -> None:
        """``srun: error: node01: tasks 0-2,5: Killed``, or ``: Exited with exit code 1``."""
        match = _SRUN.search(text)
        if match is None:
            return
        words = match["what"]
        code = _exit_of_words(words)
        if code is None:
            return
        for rank in _tasks(match["tasks"]):
            self._add("srun", line, rank=rank, exitcode=code, host=match["host"], first_observed=code != -15)

    def read_oom_kill(self, text: str, line: Line) -> None:
        """The kernel's, Slurm's or Kubernetes' words for a kill because of host memory."""
        match = _KILLED_PID.search(text)
        self._add("oom_kill", line, pid=int(match["pid"]) if match else None, exitcode=-9, reason="oom_kill")

    def read_pod_oom_kill(self, text: str, line: Line) -> None:
        """Kubernetes: ``Reason:  OOMKilled`` of describe and events, or the status column of ``kubectl get pods``."""
        if _POD_OOM.search(text):
            self._add("oom_kill", line, exitcode=-9, reason="oom_kill")

    def read_cancelled(self, text: str, line: Line) -> None:
        """``*** JOB 1 ON node CANCELLED AT ... DUE TO TIME LIMIT ***``."""
        if match := _CANCELLED.search(text):
            self._add("cancelled", line, exitcode=-15, reason=match["why"].strip().lower().replace(" ", "_"))

    def read_deepspeed_kill(self, text: str, line: Line) -> None:
        """``Killing subprocess 957``."""
        if match := re.search(r"Killing subprocess (\d{1,10})", text):
            self._add("deepspeed_kill", line, pid=int(match[1]), is_order=True)

    def read_deepspeed_exit(self, text: str, line: Line) -> None:
        """``exits with return code = 1``."""
        if (match := re.search(r"exits with return code = (-?\d{1,5})", text)) and int(match[1]) != 0:
            self._add("deepspeed_exit", line, exitcode=_small(match[1]), first_observed=True)

    def read_spawn(self, text: str, line: Line) -> None:
        """``process 1 terminated with signal SIGSEGV`` (torch.multiprocessing.spawn)."""
        if match := _SPAWN.search(text):
            number = getattr(signals, match["signal"] or "", None)
            code = -int(number) if isinstance(number, int) else int(match["code"] or 1)
            self._add("spawn_exit", line, rank=int(match["rank"]), exitcode=code, first_observed=True)

    def read_mpi(self, text: str, line: Line) -> None:
        """``mpirun noticed that process rank 3 with PID 1 on node n exited on signal 9 (Killed).``."""
        if match := _MPI.search(text):
            code = -int(match["signal"]) if match["signal"] else _small(match["code"])
            self._add(
                "mpi", line, rank=int(match["rank"]), pid=int(match["pid"] or 0) or None, exitcode=code,
                first_observed=True,
            )  # fmt: skip

    def read_ray(self, text: str, line: Line) -> None:
        """Ray's words for a worker that is gone."""
        memory = "low on memory" in text
        match = re.search(r"\bpid[=:]\s?(\d{1,10})", text)
        self._add("ray", line, pid=int(match[1]) if match else None, exitcode=-9 if memory else None,
                  reason="oom_kill" if memory else None)  # fmt: skip

    def _add(
        self,
        kind: str,
        line: Line,
        *,
        rank: int | None = None,
        local_rank: int | None = None,
        pid: int | None = None,
        exitcode: int | None = None,
        host: str | None = None,
        first_observed: bool = False,
        reason: str | None = None,
        is_order: bool = False,
    ) -> LauncherRecord:
        record = LauncherRecord(
            kind, line, rank, local_rank, pid, exitcode, host or line.host, first_observed, reason, is_order
        )
        self.records.append(record)
        return record


MAX_RECORDS = 20_000
_MAX_TASKS = 4096
_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,6})\) local_rank: (?P<local>\d{1,7}) \(pid: (?P<pid>\d{1,10})\)"
)
_SENT = re.compile(r"(?:Sending process|shutdown process) (?P<pid>\d{1,10})\b")
_TABLE_HOST = re.compile(r"^\s{1,8}host {1,10}: (?P<host>[\w.\-]{1,200})")
_TABLE_RANK = re.compile(r"^\s{1,8}rank {1,10}: (?P<rank>\d{1,7}) \(local_rank: (?P<local>\d{1,7})\)")
_TABLE_EXIT = re.compile(r"^\s{1,8}exitcode {1,10}: (?P<code>-?\d{1,6}) \(pid: (?P<pid>\d{1,10})\)")
_SRUN = re.compile(r"srun: error: (?P<host>[\w.\-]{1,200}): tasks? (?P<tasks>[\d,\-\[\]]{1,400}): (?P<what>.{1,80})")
_KILLED_PID = re.compile(r"Killed process (?P<pid>\d{1,10})")
_CANCELLED = re.compile(r"CANCELLED AT .{1,40}? DUE TO (?P<why>[A-Z ]{1,40})")
_SPAWN = re.compile(
    r"[pP]rocess (?P<rank>\d{1,7}) terminated with (?:signal (?P<signal>SIG[A-Z]{2,8})|exit code (?P<code>\d{1,5}))"
)
_MPI = re.compile(
    r"process rank (?P<rank>\d{1,7})(?: with PID (?P<pid>\d{1,10}))?.{0,120}?exited (?:on signal (?P<signal>\d{1,2})|"
    r"with (?:exit )?code (?P<code>\d{1,5}))"
)
_WORDS = {
    "Killed": -9, "Out Of Memory": -9, "Segmentation fault": -11, "Aborted": -6, "Terminated": -15, "Bus error": -7,
    "Floating point exception": -8, "Illegal instruction": -4,
}  # fmt: skip


def _exit_of_words(words: str) -> int | None:
    if match := re.search(r"[eE]xit(?:ed with exit)? code (\d{1,5})", words):
        return _small(match[1])
    return next((code for text, code in _WORDS.items() if text in words), None)


def _tasks(text: str) -> list[int]:
    """``0-2,5`` as numbers, at most :data:`_MAX_TASKS`."""
    found: list[int] = []
    for part in text.strip("[]").split(","):
        first, _, last = part.strip("[]").partition("-")
        if not first.isdigit() or len(first) > 7 or (last and (not last.isdigit() or len(last) > 7)):
            continue
        start, stop = int(first), int(last or first)
        found += range(start, min(stop, start + _MAX_TASKS) + 1)
        if len(found) >= _MAX_TASKS:
            break
    return found[:_MAX_TASKS]


def _small(text: str | None) -> int | None:
    """A process status as Python counts it: shells report a signal as 128 + its number."""
    if text is None:
        return None
    code = int(text)
    return 128 - code if 128 < code <= 192 else code


def signal_name(exitcode: int | None) -> str | None:
    """The name of the signal behind a negative exit code."""
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signals.Signals(-exitcode).name
    except ValueError:
        return None


_POD_OOM = re.compile(
    r"(?i:reason)[\"']?\s{0,20}[:=]\s{0,20}[\"']?OOMKilled|\b\d{1,4}/\d{1,4}\s{1,20}(?:\w+:)?OOMKilled\b"
)
_READERS: dict[str, Callable[[LauncherReader, str, Line], None]] = {
    "elastic_failed": LauncherReader.read_failed,
    "elastic_signal": LauncherReader.read_signal,
    "table_root": LauncherReader.read_table_head,
    "table_failures": LauncherReader.read_table_head,
    "table_host": LauncherReader.read_table_host,
    "table_rank": LauncherReader.read_table_rank,
    "table_exitcode": LauncherReader.read_table_exitcode,
    "srun": LauncherReader.read_srun,
    "oom_kill": LauncherReader.read_oom_kill,
    "pod_oom_kill": LauncherReader.read_pod_oom_kill,
    "cancelled": LauncherReader.read_cancelled,
    "deepspeed_kill": LauncherReader.read_deepspeed_kill,
    "deepspeed_exit": LauncherReader.read_deepspeed_exit,
    "spawn_exit": LauncherReader.read_spawn,
    "mpi_exit": LauncherReader.read_mpi,
    "ray_memory": LauncherReader.read_ray,
    "ray_died": LauncherReader.read_ray,
}
LAUNCHER_KINDS = frozenset(_READERS)
