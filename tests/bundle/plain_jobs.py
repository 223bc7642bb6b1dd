"""Jobs of plain Python processes: ranks by their environment alone, each with a log of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stacks.live_processes import within

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

# Where only a parent may trace (Yama's default) a process may still allow everybody of its user (PR_SET_PTRACER).
RANK = """
import ctypes, os, sys, threading
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)

def waits_for_ever():
    threading.Event().wait()

for line in os.environ.pop("SAYS", "").split("|"):
    print(line, flush=True)
print("ready", flush=True)
waits_for_ever()
"""


@dataclass(frozen=True)
class PlainJob:
    """What was started."""

    port: int
    folder: Path
    processes: Sequence[subprocess.Popen[bytes]]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    @property
    def key(self) -> str:
        """A part of the job's key that no other job has."""
        return f":{self.port}"

    def log_of(self, rank: int) -> Path:
        return self.folder / f"out-{rank}.log"


@contextmanager
def plain_job(
    folder: Path,
    n_ranks: int = 2,
    *,
    port: int = 0,
    world_size: int | None = None,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[PlainJob]:
    """Start ranks that wait for ever; all are killed at the end.

    Args:
        folder: where their output goes.
        port: the rendezvous that tells this job from others, nothing listens there; one of this process when 0.
        environment: variables of all of them. What ``SAYS`` holds is printed, a line for each part between bars.
        arguments: of their command lines.
    """
    port = port or 20_000 + os.getpid() % 20_000
    with ExitStack() as stack:
        processes: list[subprocess.Popen[bytes]] = []
        for rank in range(n_ranks):
            output = stack.enter_context((folder / f"out-{rank}.log").open("wb"))
            told = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size or n_ranks),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, "-c", RANK, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **told, **(environment or {})},
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        job = PlainJob(port, folder, processes)
        assert within(30, lambda: all(b"ready" in job.log_of(rank).read_bytes() for rank in range(n_ranks)))
        yield job
