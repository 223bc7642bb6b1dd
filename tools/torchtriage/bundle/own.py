"""Which processes are torchtriage's own: what it started for itself, not a job that runs below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.bundle import commands
from torchtriage.bundle.claims import claim_of

if TYPE_CHECKING:
    from torchtriage.bundle.process_table import Entry, Table


def own_family(table: Table, own_pid: int) -> set[int]:
    """The dumpers and readers below a process of ours.

    They inherit what our environment says of a rank, as in a pod that has RANK set. A job that ``run`` started has
    other variables, or is a Python program of its own.
    """
    own = table.entries.get(own_pid)
    if own is None:
        return set()
    mine = claim_of(own.variables) if own.variables else None
    family: set[int] = set()
    for entry in table.descendants(own_pid, set()):
        if entry.stat.ppid != own_pid and entry.stat.ppid not in family:
            continue
        claim = claim_of(entry.variables) if entry.variables else None
        if (claim is None or claim == mine) and not _starts_ranks(entry, own):
            family.add(entry.pid)
    return family


def _starts_ranks(entry: Entry, own: Entry) -> bool:
    """Whether it is a program that a user gave us to run."""
    if commands.launcher_of(entry.command) is not None:
        return True
    if not commands.is_python(entry.command, entry.stat.name) or commands.is_spawned(entry.command):
        return False
    ours = any(part.endswith("/torchtriage/artefacts/worker.py") for part in entry.command[:8])
    return not ours and entry.command != own.command
