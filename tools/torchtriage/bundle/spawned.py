"""Ranks that no variable tells: processes of one parent that Python itself started and that are tied to each other.

Workers of a DataLoader or a pool look the same from outside. What only ranks have is torch together with TCP
connections to each other. Children of the "spawn" method, which few use for anything else, need only the former.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle import commands, ties
from torchtriage.bundle.claims import job_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from torchtriage.bundle.process_table import Entry, Table

MAX_GROUP = 256
SAMPLE = 4  # children of one parent are of a kind: where the first ones have no torch, the others are not asked
_RAY_IDLE = "ray::IDLE"


@dataclass(frozen=True)
class Group:
    """Processes that are ranks of one job, and the process that started them."""

    parent: int
    members: tuple[int, ...]
    origin: str

    def job_of(self, variables: Mapping[bytes, bytes]) -> str:
        """A key: the rendezvous if the parent had set it when it started them, and the parent."""
        return " ".join(part for part in (job_of(variables), self.origin) if part)


def is_ray_worker(entry: Entry) -> bool:
    """Whether Ray's title says it is one of its workers, busy or not."""
    return bool(entry.command) and entry.command[0].startswith("ray::")


def spawned_groups(table: Table, taken: Set[int], own: Set[int], nodes: Set[int]) -> list[Group]:
    """Groups of ranks without variables.

    Args:
        table: all processes.
        taken: ranks that are known; what is below them is theirs.
        own: torchtriage, its parents and what it started for itself: these start no job.
        nodes: processes whose variables may give the rank of a node, which its children inherit.
    """
    groups: list[Group] = []
    found: set[int] = set()
    for parent_pid, children in sorted(table.children.items()):
        parent = table.entries.get(parent_pid)
        if parent is None or parent_pid in own or parent_pid in taken or parent_pid in found:
            continue
        candidates = [
            entry
            for pid in children[: MAX_GROUP * 4]
            if pid not in taken
            and pid not in own
            and _may_be_rank(entry := table.entries[pid], parent, inherited=parent_pid in nodes)
        ][:MAX_GROUP]
        if len(candidates) < 2 or any(each.pid in taken or each.pid in found for each in table.ancestors(parent_pid)):
            continue
        members = _tied(table, parent, candidates, must_connect=parent_pid in nodes)
        if len(members) > 1:
            starter = table.entries.get(parent.stat.ppid) if commands.is_helper(parent.command) else parent
            groups.append(Group(parent_pid, members, _origin(starter or parent)))
            found.update(members)
    return groups


def _may_be_rank(entry: Entry, parent: Entry, *, inherited: bool) -> bool:
    name = entry.stat.name
    if name == "pt_data_worker" or not entry.command:
        return False
    if commands.is_helper(entry.command) and not commands.is_served(entry.command, parent.command):
        return False
    if entry.variables and not inherited and b"RANK" in entry.variables:
        return False
    if is_ray_worker(entry):
        return not entry.command[0].startswith(_RAY_IDLE)
    if not commands.is_python(entry.command, name):
        return False
    return commands.is_spawned(entry.command) or entry.command == parent.command or entry.variables is None


def _tied(table: Table, parent: Entry, candidates: list[Entry], *, must_connect: bool) -> tuple[int, ...]:
    if not any(ties.has_torch(table.root, entry) for entry in candidates[:SAMPLE]):
        return ()
    with_torch = [entry for entry in candidates if ties.has_torch(table.root, entry)]
    by_method = [
        e for e in with_torch if (commands.is_spawned(e.command) or is_ray_worker(e)) and e.variables is not None
    ]
    if len(by_method) > 1 and not must_connect and not commands.is_spawned(parent.command):
        return tuple(entry.pid for entry in by_method)
    tied = ties.connected(table.root, [entry.pid for entry in with_torch])
    return tuple(entry.pid for entry in with_torch if entry.pid in tied)


def _origin(parent: Entry) -> str:
    return f"started by {parent.pid} ({clean_text(commands.program_of(parent.command), 60)})"
