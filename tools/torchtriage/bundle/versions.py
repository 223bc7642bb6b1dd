"""Which torch, NCCL and Python a job's ranks run: told from what they have mapped, never from what is installed here.

The names around a mapped library tell it; nothing is imported, loaded or run. Where ranks differ nothing is said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torchtriage.bundle.proc_files import link, maps_of
from torchtriage.flight.torch_version import torch_version_of
from torchtriage.ras.nccl_version import nccl_version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtriage.bundle.processes import JobProcess

V = TypeVar("V")

MAX_RANKS = 8
"""Of so many; the ranks of a node are started alike."""
_PROGRAM = re.compile(r"/(?:python|pypy)(3\.\d{1,2})t?(?: \(deleted\))?$")
_MAPPED = re.compile(
    r"/(?:libpython(3\.\d{1,2})t?\.so[^/\n]{0,16}|python(3\.\d{1,2})t?/lib-dynload/[^/\n]{1,200})$", re.MULTILINE
)


@dataclass(frozen=True)
class Versions:
    """None where it cannot be told or ranks differ."""

    torch: str | None = None
    nccl: str | None = None
    python: str | None = None
    """Major and minor number alone: "3.11"."""


def versions_of(ranks: Sequence[JobProcess], proc: Path = Path("/proc")) -> Versions:
    """What the ranks of a job run; an interpreter or a library that one alone has is nobody's."""
    looked_at = ranks[:MAX_RANKS]
    nccl = _one(nccl_version_of(each.pid, proc) for each in looked_at)
    return Versions(
        torch=_one(torch_version_of(each.pid, proc, uid=each.uid) for each in looked_at),
        nccl=".".join(map(str, nccl)) if nccl is not None else None,
        python=_one(python_version_of(each.pid, proc) for each in looked_at),
    )


def python_version_of(pid: int, proc: Path = Path("/proc")) -> str | None:
    """ "3.11", from the name of a process's program or of what it has mapped of Python's library."""
    program = _PROGRAM.search(link(f"{proc}/{pid}/exe") or "")
    if program is not None:
        return program[1]
    return _one({found[1] or found[2] for found in _MAPPED.finditer(maps_of(proc, pid) or "")})


def _one(values: Iterable[V | None]) -> V | None:
    found = {value for value in values if value is not None}
    return found.pop() if len(found) == 1 else None
