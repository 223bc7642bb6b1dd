"""What launchers and schedulers say about the end of processes, where it spans lines or depends on what came before:
torch.distributed.elastic (agent lines and the failure table), srun, MPI launchers. The rest: ``ends`` and ``pods``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.ends.pods import PodReader
from torchtriage.logs.ends.records import LauncherRecord, signal_name, status_of, status_of_words
from torchtriage.logs.ends.statements import ENDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchtriage.logs.records import Line

__all__ = ["LAUNCHER_KINDS", "LauncherReader", "LauncherRecord", "signal_name"]


@dataclass
class LauncherReader:
    """Collects the records of one source; the failure table spans lines."""

    records: list[LauncherRecord] = field(default_factory=list[LauncherRecord])
    _in_root: bool = False
    _in_table: bool = False
    _host: str | None = None
    _row: LauncherRecord | None = None
    _task_failed: bool = False
    _mpi: dict[str, Any] | None = None
    _pods: PodReader = field(default_factory=PodReader)

    def feed(self, kind: str, text: str, line: Line) -> None:
        """Read one line that holds a launcher's text of this kind."""
        if len(self.records) >= MAX_RECORDS:
            return
        if (stateless := ENDS.get(kind)) is not None:
            # srun words a signal as a shell does.
            if kind != "shell" or "srun: error: " not in text:
                self.records += stateless(text, line)
        elif (reader := _READERS.get(kind)) is not None:
            reader(self, text, line)

    @property
    def rank_of_row(self) -> int | None:
        """The rank of the failure table's entry that is being read."""
        return self._row.rank if self._row is not None else None

    def read_failed(self, text: str, line: Line) -> None:
        """``failed (exitcode: -9) local_rank: 1 (pid: 957) of binary``: the agent's first observation."""
        if match := _FAILED.search(text):
            self._add(
                "elastic_failed",
                line,
                exitcode=status_of(match["code"]),
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
            self._row.exitcode = status_of(match["code"])
            self._row.pid = int(match["pid"])
            self._row.line = line

    def read_table_error_file(self, text: str, line: Line) -> None:  # noqa: ARG002
        """``  error_file: /tmp/.../error.json``, or ``<N/A>`` without ``@record``."""
        if self._row is not None and (match := _TABLE_FILE.match(text)):
            self._row.error_file = match["path"]

    def read_srun(self, text: str, line: Line) -> None:
        """``srun: error: node01: tasks 0-2,5: Killed``, or ``: Exited with exit code 1``."""
        if match := _NODE_FAILURE.search(text):
            self._add("srun", line, host=match["host"], reason="node_failure", first_observed=not self._task_failed)
            self._task_failed = True
            return
        match = _SRUN.search(text)
        if match is None:
            return
        code = _exit_of_words(match["what"])
        if code is None:
            return
        # What is killed after another task failed is killed by srun.
        first = not self._task_failed and code != _SIGTERM
        ordered = self._task_failed and code in (_SIGTERM, _SIGKILL) and "Out Of Memory" not in match["what"]
        reason = "oom_kill" if "Out Of Memory" in match["what"] else None
        for task in _tasks(match["tasks"]):
            self._add("srun", line, task=task, exitcode=code, host=match["host"], first_observed=first,
                      is_order=ordered, reason=reason)  # fmt: skip
        self._task_failed = self._task_failed or first

    def read_mpi(self, text: str, line: Line) -> None:
        """``mpirun noticed that process rank 3 with PID 1 on node n exited on signal 9 (Killed).``, or in two lines."""
        if match := _MPI.search(text):
            self._mpi = {"rank": int(match["rank"]), "pid": int(match["pid"] or 0) or None, "host": match["host"]}
        if self._mpi is not None and (end := _MPI_END.search(text)):
            code = -int(end["signal"]) if end["signal"] else status_of(end["code"])
            self._add("mpi", line, exitcode=code, first_observed=True, **self._mpi)
            self._mpi = None

    def read_mpi_process(self, text: str, line: Line) -> None:
        """``Process name: [[51,1],3]`` and ``Exit code:    1``; of MPICH ``PID 957 RUNNING AT n``, ``EXIT CODE: 9``."""
        if (match := _MPI_NAME.match(text)) or (match := _HYDRA_PID.match(text)):
            groups = match.groupdict()
            self._mpi = {
                "rank": None if groups["rank"] is None else int(groups["rank"]),
                "pid": int(groups.get("pid") or 0) or None,
                "host": groups.get("host"),
            }
        elif self._mpi is not None and (match := _MPI_CODE.match(text)):
            # Hydra prints the wait status, in which a signal is the number itself.
            code = -int(match["signal"] or match["hydra"]) if match["code"] is None else status_of(match["code"])
            if match["hydra"] and not match["signal"] and int(match["hydra"]) not in _SIGNALS:
                code = int(match["hydra"])
            if code:
                self._add("mpi", line, exitcode=code, first_observed=True, **self._mpi)
            self._mpi = None

    def read_pod(self, text: str, line: Line) -> None:
        """Lines of ``kubectl describe`` and ``kubectl get``."""
        if (record := self._pods.read(text, line)) is not None:
            self.records.append(record)

    def _add(self, kind: str, line: Line, **said: Any) -> LauncherRecord:
        record = LauncherRecord(kind, line, **said)
        self.records.append(record)
        return record


MAX_RECORDS = 20_000
_MAX_TASKS = 4096
_SIGTERM, _SIGKILL = -15, -9
_SIGNALS = frozenset({4, 6, 7, 8, 9, 11, 15})
_FAILED = lazy_re(r"failed \(exitcode: (?P<code>-?\d{1,6})\) local_rank: (?P<local>\d{1,7}) \(pid: (?P<pid>\d{1,10})\)")
_SENT = lazy_re(r"(?:Sending process|shutdown process) (?P<pid>\d{1,10})\b")
_TABLE_HOST = lazy_re(r"^\s{1,8}host {1,10}: (?P<host>[\w.\-]{1,200})")
_TABLE_RANK = lazy_re(r"^\s{1,8}rank {1,10}: (?P<rank>\d{1,7}) \(local_rank: (?P<local>\d{1,7})\)")
_TABLE_EXIT = lazy_re(r"^\s{1,8}exitcode {1,10}: (?P<code>-?\d{1,6}) \(pid: (?P<pid>\d{1,10})\)")
_TABLE_FILE = lazy_re(r"^\s{1,8}error_file: (?P<path>/\S{1,1000})")
_SRUN = lazy_re(r"srun: error: (?P<host>[\w.\-]{1,200}): tasks? (?P<tasks>[\d,\-\[\]]{1,400}): (?P<what>.{1,80})")
_NODE_FAILURE = lazy_re(r"srun: error: Node failure on (?P<host>[\w.\-\[\],]{1,200})")
_MPI = lazy_re(
    r"process rank (?P<rank>\d{1,7})(?: with PID (?P<pid>\d{1,10}))?(?: on node (?P<host>[\w.\-]{1,200}))?"
    r".{0,120}?exited"
)
_MPI_END = lazy_re(
    r"(?:exited (?:on )?|^\s{0,8}(?:on )?)(?:signal (?P<signal>\d{1,2})\b|with (?:exit )?code (?P<code>\d{1,5}))"
)
_MPI_NAME = lazy_re(r"^\s{1,8}Process name: \[(?:\[[\d,]{1,40}\]|[\w.@\-]{1,200}),(?P<rank>\d{1,7})\]")
_HYDRA_PID = lazy_re(r"^=\s{1,8}(?:RANK (?P<rank>\d{1,7}) )?PID (?P<pid>\d{1,10}) RUNNING AT (?P<host>[\w.\-]{1,200})")
_MPI_CODE = lazy_re(
    r"^(?:\s{1,8}Exit code:\s{1,8}(?P<code>\d{1,3})\b"
    r"|=\s{1,8}(?:EXIT CODE: (?P<hydra>\d{1,3})|KILLED BY SIGNAL: (?P<signal>\d{1,2}))\b)"
)


def _exit_of_words(words: str) -> int | None:
    if match := re.search(r"[eE]xit(?:ed with exit)? code (\d{1,5})", words):
        return status_of(match[1])
    return status_of_words(words)


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


_READERS: dict[str, Callable[[LauncherReader, str, Line], None]] = {
    "elastic_failed": LauncherReader.read_failed,
    "elastic_signal": LauncherReader.read_signal,
    "table_root": LauncherReader.read_table_head,
    "table_failures": LauncherReader.read_table_head,
    "table_host": LauncherReader.read_table_host,
    "table_rank": LauncherReader.read_table_rank,
    "table_exitcode": LauncherReader.read_table_exitcode,
    "table_error_file": LauncherReader.read_table_error_file,
    "srun": LauncherReader.read_srun,
    "mpi_exit": LauncherReader.read_mpi,
    "mpi_process": LauncherReader.read_mpi_process,
    "pod": LauncherReader.read_pod,
}
LAUNCHER_KINDS = frozenset(_READERS) | frozenset(ENDS)
