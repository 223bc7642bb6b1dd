"""Which processes of a node are ranks, and whose children the others are. A pure judgement over the process table.

Ranks are first those that :mod:`torchtriage.bundle.claimants` tells by their environment; then come those that no
variable tells: the first process of Lightning, what Python itself spawned, what cannot be read, and what has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle import commands, environment, ties
from torchtriage.bundle.claimants import Claimants, is_python, launcher_above
from torchtriage.bundle.own import own_family
from torchtriage.bundle.spawned import is_ray_worker, spawned_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtriage.bundle.process_table import Entry, Table

MAX_CHILDREN_PER_RANK = 1024
STARTED_TOGETHER_TICKS = 1000
# Keys of processes that nothing but a parent, or not even that, assigns to a job.
_BY_PARENT, _BY_PID = "started by ", "pid "


@dataclass(frozen=True)
class Found:
    """One process and what it is in its job."""

    entry: Entry
    role: str
    job: str
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    rank_pid: int | None = None


class Finder:
    """Judges one process table."""

    def __init__(self, table: Table, own_pid: int) -> None:
        """Take the table, and the pid of the process that must never be among the found."""
        self._table = table
        self._above = {own_pid, *(entry.pid for entry in table.ancestors(own_pid))}
        self._own = self._above | own_family(table, own_pid)
        self._claimants = Claimants(table, self._own)
        self._ranks: dict[int, Found] = {}

    def find(self, pids: Sequence[int] = ()) -> list[Found]:
        """All processes of all jobs, in the order in which people read them."""
        for pid in self._claimants.ranks:
            claim = self._claimants.claims[pid]
            job = claim.job or self._by_launcher(pid)
            self._ranks[pid] = Found(
                self._table.entries[pid], "rank", job, claim.rank, claim.local_rank, claim.world_size
            )
        self._add_first_of_lightning()
        self._add_spawned()
        self._add_hidden()
        self._add_zombies()
        self._keep_namesakes_apart()
        for pid in pids:
            self._add_named(pid)
        ranks = sorted(self._ranks.values(), key=_order)
        launchers = self._launchers(ranks)
        found: list[Found] = []
        for job in dict.fromkeys(each.job for each in ranks):
            found += [each for each in launchers if each.job == job]
            for rank in ranks:
                if rank.job == job:
                    found += [rank, *self._children(rank)]
        return found

    def told_by(self, entry: Entry) -> Entry:
        """Whose environment tells the variables of a process: its own, or a child's that inherited more."""
        return self._claimants.taught_by.get(entry.pid, entry)

    def _by_launcher(self, pid: int) -> str:
        """A name for a job that no variable names: its launcher."""
        for above in self._table.ancestors(pid):
            name = commands.launcher_of(above.command)
            if name is not None:
                return f"{clean_text(name, 40)} {above.pid}"
        return f"{_BY_PARENT}{self._table.entries[pid].stat.ppid}"

    def _add_first_of_lightning(self) -> None:
        """Lightning's first process is local rank 0 and sets that for itself; it starts the others with variables."""
        groups: dict[int, list[Found]] = {}
        for found in self._ranks.values():
            groups.setdefault(found.entry.stat.ppid, []).append(found)
        for parent_pid, members in groups.items():
            parent = self._table.entries.get(parent_pid)
            if parent is None or parent_pid in self._ranks or parent_pid in self._own:
                continue
            local_ranks = {each.local_rank for each in members}
            same = commands.program_of(parent.command) == commands.program_of(members[0].entry.command)
            explicit = any(b"RANK" in (each.entry.variables or {}) for each in members)
            if (
                explicit
                or 0 in local_ranks
                or None in local_ranks
                or not same
                or not is_python(self._table, parent_pid)
            ):
                continue
            n_local = len(members) + 1
            variables = members[0].entry.variables or {}
            node = environment.number(variables.get(b"NODE_RANK", b"0").decode("ascii", errors="replace"))
            for each in members:
                if each.rank is None and node is not None and each.local_rank is not None:
                    self._ranks[each.entry.pid] = replace(each, rank=node * n_local + each.local_rank)
            rank = node * n_local if node is not None else None
            self._ranks[parent_pid] = Found(parent, "rank", members[0].job, rank, 0, members[0].world_size)

    def _add_spawned(self) -> None:
        without_local = {pid for pid, found in self._ranks.items() if found.local_rank is None}
        for group in spawned_groups(self._table, self._ranks.keys() - without_local, self._own, without_local):
            parent = self._ranks.pop(group.parent, None)
            variables = self._table.entries[group.members[0]].variables or {}
            told = [found.job for pid in group.members if (found := self._ranks.get(pid)) is not None]
            job = parent.job if parent is not None else told[0] if told else group.job_of(variables)
            for pid in group.members:
                self._ranks.setdefault(pid, Found(self._table.entries[pid], "rank", job))

    def _add_hidden(self) -> None:
        """Processes whose environment cannot be read (other user) or is written over, where a launcher started them."""
        for pid, entry in self._table.entries.items():
            if entry.variables is not None or pid in self._own or pid in self._ranks:
                continue
            parent = self._table.entries.get(entry.stat.ppid)
            launcher = commands.launcher_of(parent.command) if parent is not None else None
            local_rank = commands.local_rank_of(entry.command)
            if (
                commands.launcher_of(entry.command) is not None
                or not is_python(self._table, pid)
                or is_ray_worker(entry)
            ):
                continue
            if commands.is_helper(entry.command) or (launcher is None and local_rank is None):
                continue
            siblings = [
                self._ranks[child].job for child in self._table.children[entry.stat.ppid] if child in self._ranks
            ]
            job = siblings[0] if siblings else self._by_launcher(pid)
            self._ranks[pid] = Found(entry, "rank", job, None, local_rank)

    def _add_zombies(self) -> None:
        """Ranks that have ended and that nobody collected yet: of them only name, parent and start are left."""
        parents = {found.entry.stat.ppid: found for found in self._ranks.values()}
        for pid, entry in self._table.entries.items():
            peer = parents.get(entry.stat.ppid)
            if peer is None or entry.stat.state != "Z":
                continue
            near = abs(entry.stat.start_ticks - peer.entry.stat.start_ticks) <= STARTED_TOGETHER_TICKS
            if entry.stat.name == peer.entry.stat.name and near:
                self._ranks[pid] = Found(entry, "rank", peer.job, world_size=peer.world_size)

    def _keep_namesakes_apart(self) -> None:
        """Two containers may both have 127.0.0.1:29500; where a job has a rank twice, their namespaces tell."""
        claimed: dict[tuple[str, int], list[int]] = {}
        for pid, found in self._ranks.items():
            if found.rank is not None:
                claimed.setdefault((found.job, found.rank), []).append(pid)
        for job in {job for (job, _), pids in claimed.items() if len(pids) > 1}:
            members = [pid for pid, found in self._ranks.items() if found.job == job]
            marks = {pid: ties.network_namespace(self._table.root, pid) or "" for pid in members}
            if len(set(marks.values())) < 2:
                marks = {
                    pid: f"launcher {root}" if (root := launcher_above(self._table, pid)) else "" for pid in members
                }
            if len(set(marks.values())) > 1:
                for pid in members:
                    key = f"{job} {clean_text(marks[pid], 40)}".strip()
                    self._ranks[pid] = replace(self._ranks[pid], job=key)

    def _add_named(self, pid: int) -> None:
        entry = self._table.entries.get(pid)
        if entry is not None and (entry.stat.is_kernel_thread or entry.stat.has_ended):
            self._ranks.pop(pid, None)  # nothing can be looked at, and who named it has to be told so
            return
        if entry is None or pid in self._above or pid in self._ranks:
            return
        if commands.launcher_of(entry.command) is not None or any(
            above.pid in self._ranks for above in self._table.ancestors(pid)
        ):
            return
        self._ranks[pid] = Found(entry, "rank", f"{_BY_PID}{pid}")

    def _children(self, rank: Found) -> Iterable[Found]:
        stop = (self._ranks.keys() | self._own) - {rank.entry.pid}
        beside = [self._table.entries[pid] for pid, owner in self._claimants.beside.items() if owner == rank.entry.pid]
        below = list(self._table.descendants(rank.entry.pid, stop))[:MAX_CHILDREN_PER_RANK]
        for entry in (*below, *(each for each in beside if each not in below)):
            yield Found(
                entry, self._child_role(entry, rank), rank.job, rank.rank, rank.local_rank, rank.world_size,
                rank.entry.pid,
            )  # fmt: skip

    def _child_role(self, entry: Entry, rank: Found) -> str:
        if entry.stat.name == "pt_data_worker":
            return "dataloader worker"
        parent = self._table.entries.get(entry.stat.ppid, rank.entry)
        forked = entry.command == rank.entry.command and parent.pid == rank.entry.pid
        if (
            forked
            or commands.is_served(entry.command, parent.command)
            or (commands.is_spawned(entry.command) and not commands.is_helper(entry.command))
        ):
            # Before torch 2.5 nothing names them; a pool's workers look the same, and their stacks tell.
            return "dataloader worker"
        return "helper"

    def _launchers(self, ranks: Iterable[Found]) -> list[Found]:
        jobs: dict[int, set[str]] = {}
        for rank in ranks:
            for above in self._table.ancestors(rank.entry.pid):
                parent_of_rank = above.pid == rank.entry.stat.ppid and is_python(self._table, above.pid)
                if commands.launcher_of(above.command) is not None or parent_of_rank:
                    jobs.setdefault(above.pid, set()).add(rank.job)
        return [
            Found(self._table.entries[pid], "launcher", next(iter(of)))
            for pid, of in sorted(jobs.items())
            # What is above several jobs, as a node's daemon is, belongs to none.
            if len(of) == 1 and pid not in self._own and pid not in self._ranks
        ]


def is_makeshift(job: str) -> bool:
    """Whether a job's key says no more than who started a process, so that others of the job may have another one."""
    return job.removeprefix(_BY_PARENT).removeprefix(_BY_PID).isdecimal()


def _order(found: Found) -> tuple[object, ...]:
    unknown = found.rank is None
    return found.job, unknown, found.rank or 0, found.local_rank is None, found.local_rank or 0, found.entry.pid
