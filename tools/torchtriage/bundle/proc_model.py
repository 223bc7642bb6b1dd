"""Facts about a process as they stand in a bundle: one JSON file a process and look."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from torchtriage.report import Model


class CgroupMemory(Model):
    """Memory of a control group; the limit is the tightest that applies, with what is in use under it."""

    version: int
    path: str
    limit_bytes: int | None = Field(default=None, description="None when there is no limit")
    current_bytes: int | None = None
    inactive_file_bytes: int | None = Field(default=None, description="cache that would be given up before the limit")
    oom_kills: int | None = None
    frozen: bool | None = None


class WaitCall(Model):
    """The system call of a thread, and the file that it waits for."""

    number: int
    name: str | None = Field(description="None for a call that is not known to block")
    path: str | None = None
    path_kind: Literal["file", "fifo", "pipe", "socket", "anonymous"] | None = None
    file_system: str | None = Field(default=None, description="type of the file system of the path, as mounted")
    network_file_system: bool | None = None


class ThreadFacts(Model):
    """One thread of a process."""

    tid: int
    name: str
    state: str
    cpu_s: float
    wchan: str | None = None


class ProcFacts(Model):
    """Facts of one process at one moment; None where it could not be read."""

    proc_facts: Literal["1"] = "1"
    pid: int
    start_ticks: int
    ppid: int
    name: str
    command: list[str] = []
    rank: int | None = None
    local_rank: int | None = None
    role: str | None = None
    rank_pid: int | None = None
    job: str | None = None
    host: str | None = None
    time_s: float = Field(description="when it was read, seconds since the epoch")
    state: str = Field(description="of the main thread: R, S, D, T, t, Z, X, I")
    wchan: str | None = Field(default=None, description="kernel function in which the main thread waits")
    call: WaitCall | None = None
    cpu_s: float = Field(description="user and system time of all threads")
    main_thread_cpu_s: float | None = None
    n_threads: int
    thread_states: dict[str, int] = {}
    threads: list[ThreadFacts] = Field(default=[], description="those in state D first, then by CPU time")
    runs_since_s: float | None = None
    rss_bytes: int | None = None
    swap_bytes: int | None = None
    memory: CgroupMemory | None = None
    tracer_pid: int | None = None
    tracer_name: str | None = None
    tracer_is_ours: bool = Field(default=False, description="a dumper of this program held it at that moment")
    no_new_privs: bool | None = None
    seccomp: int | None = None
    executable: str | None = None
    oom_score: int | None = None
    notes: list[str] = []
