"""The jobs of a node in words, so that somebody who did not start them can tell which one is meant, and choose it.

A job is told by where its ranks run (folder, program, age, pids, user) beside the key, which may say nothing to a
person. How it is chosen is written as the caller has to write it: an option on the command line, a parameter over MCP.
"""

from __future__ import annotations

import json
import os
import shlex
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torchtriage.artefacts.names import display_name
from torchtriage.bundle import proc_files
from torchtriage.bundle.commands import program_of
from torchtriage.wording import some

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torchtriage.bundle.processes import JobProcess

MAX_SHOWN_JOBS = 20
_SHOWN_PIDS = 4
_PROGRAM_CHARS = 60
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

BY_NAME: ContextVar[bool] = ContextVar("parameters are written by name", default=False)
"""Set where the caller passes parameters by name, as over MCP; else they are options of the command line."""


def job_option(key: str) -> str:
    """How one job is chosen, fit to be pasted: ``--job '127.0.0.1:29500 blue'``."""
    return f"job: {json.dumps(key, ensure_ascii=False)}" if BY_NAME.get() else f"--job {shlex.quote(key)}"


def pids_option() -> str:
    """How processes are named: ``--pid PID``."""
    return "pids: [PID]" if BY_NAME.get() else "--pid PID"


def output_option() -> str:
    """How another place is given: ``-o FOLDER``."""
    return "output" if BY_NAME.get() else "-o FOLDER"


def list_jobs(jobs: Mapping[str, Sequence[JobProcess]], proc: Path) -> str:
    """The jobs, a line each, which chooses that job when it is pasted."""
    if not jobs:
        return "No job was found"
    lines = [
        f"  {job_option(key)}  # {describe(members, proc)}" for key, members in list(jobs.items())[:MAX_SHOWN_JOBS]
    ]
    if len(jobs) > MAX_SHOWN_JOBS:
        lines.append(f"  and {len(jobs) - MAX_SHOWN_JOBS} more")
    return "\n".join(["Jobs on this node:", *lines, f"(a part that only one key has is enough; or {pids_option()})"])


def describe(members: Sequence[JobProcess], proc: Path) -> str:
    """What tells a job from others: "2 of 8 ranks, train.py in /data, began 12 min ago, pid 11, 12, user id 0"."""
    ranks = [each for each in members if each.role == "rank"]
    if not ranks:
        return f"launchers only, pid {some([str(each.pid) for each in members], _SHOWN_PIDS)}"
    sizes = {each.world_size for each in ranks} - {None, len(ranks)}
    of = f" of {sizes.pop()}" if len(sizes) == 1 else ""
    words = [f"{len(ranks)}{of} rank{'s' if len(ranks) > 1 or of else ''}", _program(ranks[0])]
    folder = proc_files.link(f"{proc}/{ranks[0].pid}/cwd")
    if folder:
        words[-1] += f" in {display_name(folder)}"
    age_s = _age_s(min(each.start_ticks for each in ranks), proc)
    if age_s is not None:
        words.append(f"began {_duration(age_s)} ago")
    words.append(f"pid {some([str(each.pid) for each in ranks], _SHOWN_PIDS)}")
    words.append(f"user id {', '.join(str(uid) for uid in sorted({each.uid for each in ranks}))}")
    return ", ".join(words)


def _program(rank: JobProcess) -> str:
    program = program_of(rank.command)
    if not program or program in ("-c", "") or not program.isprintable() or " " in program:
        return "a Python program" if program else "a program"
    return program if len(program) <= _PROGRAM_CHARS else f"{program[:_PROGRAM_CHARS]}..."


def _age_s(start_ticks: int, proc: Path) -> float | None:
    word = (proc_files.read_text(f"{proc}/uptime", 128) or "").partition(" ")[0]
    try:
        age_s = float(word) - start_ticks / _TICKS_PER_S
    except ValueError:
        return None
    return age_s if 0 <= age_s < 1e10 else None


def _duration(seconds: float) -> str:
    for unit, size_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"
