"""Find the rank processes of the jobs on this node, with their children and launchers, and choose among the jobs.

Knows what /proc shows: the environment a program was started with, command lines, parents, names of threads, sockets.
What Python code put into ``os.environ`` later it knows only from children that were started anew since (trackers,
spawned workers): a rank that ``torch.multiprocessing.spawn``, a function handed to torchrun, or Ray set there and that
has no such child is listed with rank None, and the stacks, NCCL RAS or the logs must tell which one it is. Processes
that a ``hidepid`` mount or another PID namespace hides are not seen, nor is a lone Ray worker of a node.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.bundle import proc_files
from torchtriage.bundle.find import Finder, is_makeshift
from torchtriage.bundle.job_words import describe, job_option, list_jobs, pids_option
from torchtriage.bundle.process_table import read_table
from torchtriage.bundle.shown import command_of, environment_of, uid_of
from torchtriage.errors import BadCallError, InputNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN_PIDS = 8


class NoJobError(InputNotFoundError):
    """No process on this node looks like a rank, or one that was asked for is not there."""


class NothingRunsError(NoJobError):
    """No process on this node looks like a rank; nothing was wrong with the call."""


class SeveralJobsError(BadCallError):
    """Several jobs run on this node and none was chosen."""


@dataclass(frozen=True)
class JobProcess:
    """One process of a job. Its pid names it only together with ``start_ticks``: pids are given again."""

    pid: int
    ppid: int
    uid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""
    role: str
    """"rank", "dataloader worker", "helper" or "launcher"."""
    rank: int | None
    local_rank: int | None
    world_size: int | None
    rank_pid: int | None
    """For a child: the pid of the rank it belongs to."""
    job: str
    """Key that keeps the jobs of a node apart."""
    environment: Mapping[str, str]
    """Allow-listed variables only, masked; empty when it could not be read."""
    command: tuple[str, ...]
    """Masked and bounded."""


def find_processes(
    proc: Path = Path("/proc"), *, own_pid: int | None = None, pids: Sequence[int] = ()
) -> list[JobProcess]:
    """All processes of all jobs: ranks by job and rank, each followed by its children; a job's launchers first.

    Args:
        proc: where the process file system is mounted.
        own_pid: the process that is never listed, nor its parents, nor what it started for itself.
        pids: processes that count as ranks whatever they look like, as somebody named them.
    """
    table = read_table(proc)
    finder = Finder(table, os.getpid() if own_pid is None else own_pid)
    return [
        JobProcess(
            pid=found.entry.pid,
            ppid=found.entry.stat.ppid,
            uid=uid_of(table.root, found.entry.pid),
            start_ticks=found.entry.stat.start_ticks,
            role=found.role,
            rank=found.rank,
            local_rank=found.local_rank,
            world_size=found.world_size,
            rank_pid=found.rank_pid,
            job=found.job,
            environment=environment_of(table.root, finder.told_by(found.entry)),
            command=command_of(found.entry.command),
        )
        for found in finder.find(pids)
    ]


def jobs_of(processes: Sequence[JobProcess]) -> dict[str, list[JobProcess]]:
    """The processes by job, largest job first."""
    jobs: dict[str, list[JobProcess]] = {}
    for process in processes:
        jobs.setdefault(process.job, []).append(process)
    return dict(sorted(jobs.items(), key=lambda item: (-len(_ranks(item[1])), item[0])))


def choose(
    processes: Sequence[JobProcess],
    *,
    pids: Sequence[int] | None = None,
    job: str | None = None,
    proc: Path = Path("/proc"),
) -> list[JobProcess]:
    """The processes to look at: those of one job, or those named and their children. Launchers come with their job.

    Args:
        processes: what :func:`find_processes` gave, called with the same ``pids``.
        pids: ranks, their children or a launcher (which means its whole job), all of one job.
        job: a key of :func:`jobs_of`, or a part that only one key has.
        proc: where the messages look up folders and ages of the jobs they list.

    Raises:
        NothingRunsError: no rank runs here.
        NoJobError: a pid or the job that was named is not there.
        SeveralJobsError: the choice is not clear; the message lists the jobs and what to pass.
    """
    jobs = jobs_of(processes)
    if pids:
        chosen = named(processes, pids, proc=proc)
        _refuse_several(jobs_of(chosen), pids, proc)
        return chosen
    if not jobs:
        raise NothingRunsError(
            "no process on this node looks like a rank of a job: none has RANK, LOCAL_RANK or the like in the "
            "environment it was started with. If the job runs in a container, run this inside of it or as root; "
            f"else name the processes with {pids_option()}"
        )
    if job is not None:
        keys = [job] if job in jobs else [key for key in jobs if job and job in key]
        if len(keys) == 1:
            return jobs[keys[0]]
        error = SeveralJobsError if keys else NoJobError
        what = "fits several jobs" if keys else "is no job on this node"
        fitting = {key: jobs[key] for key in keys} or jobs
        raise error(f"{job_option(job[:80])} {what}. {list_jobs(fitting, proc)}")
    own = {key: members for key, members in jobs.items() if any(_within_reach(each) for each in members)}
    if len(own or jobs) == 1:
        return next(iter((own or jobs).values()))
    raise SeveralJobsError(f"several jobs run on this node; choose one. {list_jobs(own or jobs, proc)}")


def named(processes: Sequence[JobProcess], pids: Sequence[int], *, proc: Path = Path("/proc")) -> list[JobProcess]:
    """The processes that were named, of whatever jobs: ranks with their children, a launcher with its whole job.

    Raises:
        NoJobError: one of them is not there, or is nothing that can be looked at.
    """
    by_pid = {process.pid: process for process in processes}
    missing = sorted(set(pids) - by_pid.keys())
    if missing:
        _refuse_what_has_no_stack(missing, proc)
        words = ", ".join(map(str, missing[:_SHOWN_PIDS]))
        raise NoJobError(
            f"no process {words} on this node that can be looked at: it has ended, has another number in this PID "
            f"namespace, or is torchtriage itself or what runs it. {list_jobs(jobs_of(processes), proc)}"
        )
    wanted = set(pids)
    whole = {by_pid[pid].job for pid in wanted if by_pid[pid].role == "launcher"}
    return [each for each in processes if each.pid in wanted or each.rank_pid in wanted or each.job in whole]


def _refuse_what_has_no_stack(pids: Sequence[int], proc: Path) -> None:
    """Say so where a process is there and is none of a job.

    Raises:
        NoJobError: one is a kernel thread or a zombie.
    """
    told: list[str] = []
    for pid in pids:
        stat = proc_files.parse_stat(proc_files.read(f"{proc}/{pid}/stat", 4096))
        if stat is not None and stat.is_kernel_thread:
            told.append(f"process {pid} is a kernel thread, which belongs to no job")
        elif stat is not None and stat.has_ended:
            told.append(
                f"process {pid} is a zombie: it has ended and process {stat.ppid}, which started it, has not reaped it"
            )
    if told:
        more = f"; and {len(told) - _SHOWN_PIDS} more" if len(told) > _SHOWN_PIDS else ""
        raise NoJobError(f"{'; '.join(told[:_SHOWN_PIDS])}{more}. Name the others alone, if there are any")


def _refuse_several(jobs: Mapping[str, Sequence[JobProcess]], pids: Sequence[int], proc: Path) -> None:
    """Ranks of two jobs are not compared with each other: each would be blamed for not being where the other is.

    Processes that nothing assigns to a job go with whatever was named beside them, unless both claim to be one rank.

    Raises:
        SeveralJobsError: they belong to different jobs.
    """
    claimed = [{each.rank for each in _ranks(members)} - {None} for members in jobs.values()]
    disputed = sum(map(len, claimed)) > len(set[int | None]().union(*claimed))
    if not disputed and sum(not is_makeshift(key) for key in jobs) < 2:
        return
    lines = [
        f"  {job_option(key)}  # pid {', '.join(map(str, sorted({each.pid for each in members} & set(pids))))}; "
        f"{describe(members, proc)}"
        for key, members in jobs.items()
    ]
    raise SeveralJobsError(
        "these processes belong to different jobs, and one look is at one job. Name those of one, or choose it:\n"
        + "\n".join(lines)
    )


def _within_reach(process: JobProcess) -> bool:
    return bool(process.environment) or os.geteuid() in (0, process.uid)


def _ranks(members: Sequence[JobProcess]) -> list[JobProcess]:
    return [each for each in members if each.role == "rank"]
