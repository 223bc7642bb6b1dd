"""Of the processes whose environment claims one rank: which one is it.

The environment of a rank is inherited by all that it starts, and a scheduler gives its variables to shells, agents and
monitors too. So a rank is the topmost Python process of those that claim it, no launcher, and, where that differs
between the claimants, one that has loaded torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.bundle import commands, proc_files, ties
from torchtriage.bundle.claims import Claim, claim_of

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from torchtriage.bundle.process_table import Entry, Table

MAX_WRAPPERS = 32
MAX_BELOW = 256


def is_python(table: Table, pid: int) -> bool:
    """Whether a process is a Python interpreter, by its names or by its executable."""
    entry = table.entries[pid]
    if commands.is_python(entry.command, entry.stat.name):
        return True
    return commands.is_python((proc_files.link(f"{table.root}/{pid}/exe") or "",), "")


def launcher_above(table: Table, pid: int) -> int:
    """The nearest launcher that a process is below; 0 if there is none."""
    for above in table.ancestors(pid):
        if commands.launcher_of(above.command) is not None:
            return above.pid
    return 0


class Claimants:
    """The claims of all processes of a table, and who of them is a rank."""

    def __init__(self, table: Table, own: Set[int]) -> None:
        """Take the table, and the processes that must never count."""
        self._table = table
        self._own = own
        self.claims: dict[int, Claim] = {}
        self.ranks: list[int] = []
        self.beside: dict[int, int] = {}
        """Processes that claim the rank of another one and are not below it: that one's pid."""
        self.taught_by: dict[int, Entry] = {}
        """The child whose environment tells what a process put into its own."""
        self.collect()
        self.settle()

    def collect(self) -> None:
        """Read the claims of all processes; those of agents' tasks are dropped where the agents started ranks."""
        for pid, entry in self._table.entries.items():
            if pid in self._own or not entry.variables or commands.launcher_of(entry.command):
                continue
            claim = claim_of(entry.variables)
            if claim is not None:
                self.claims[pid] = claim
        self._learn_from_children()
        self._drop_wrappers()
        own_steps = {claim.scheduler for claim in self.claims.values() if claim.own and claim.scheduler}
        for pid, claim in list(self.claims.items()):
            # Inside a step whose tasks are agents, the ranks are those that the agents started.
            if not claim.own and claim.scheduler in own_steps:
                del self.claims[pid]

    def _learn_from_children(self) -> None:
        """A rank that told itself its rank in ``os.environ`` hands that to what it starts anew: trackers, workers."""
        told: dict[int, list[tuple[int, Claim]]] = {}
        for pid, claim in self.claims.items():
            entry = self._table.entries[pid]
            if commands.is_spawned(entry.command) or commands.is_helper(entry.command):
                told.setdefault(entry.stat.ppid, []).append((pid, claim))
        for parent_pid, claims in told.items():
            parent = self._table.entries.get(parent_pid)
            if parent is None or parent_pid in self._own or parent_pid in self.claims:
                continue
            one = len({claim.identity for _, claim in claims}) == 1
            if one and commands.launcher_of(parent.command) is None and is_python(self._table, parent_pid):
                teacher, self.claims[parent_pid] = claims[0]
                self.taught_by[parent_pid] = self._table.entries[teacher]

    def _drop_wrappers(self) -> None:
        """A RANK that is no number tells nothing of a program that starts ranks with numbers of their own."""
        odd = {pid for pid, claim in self.claims.items() if claim.unreadable_rank is not None}
        if odd:
            over = {above.pid for pid in self.claims.keys() - odd for above in self._table.ancestors(pid)}
            for pid in odd & over:
                del self.claims[pid]

    def settle(self) -> None:
        """Decide which claimants are ranks, and which only stand beside them."""
        tops: dict[tuple[object, ...], list[int]] = {}
        for pid, claim in self.claims.items():
            entry = self._table.entries[pid]
            parent = self._table.entries.get(entry.stat.ppid, entry)
            helper = commands.is_helper(entry.command) and not commands.is_served(entry.command, parent.command)
            if helper or entry.stat.name == "pt_data_worker":
                continue
            if not any(self._same_rank(above.pid, claim) for above in self._table.ancestors(pid)):
                tops.setdefault((claim.identity, launcher_above(self._table, pid)), []).append(pid)
        for pids in tops.values():
            winners = self._most_like_ranks(pids)
            self.ranks += winners
            over = {above.pid for pid in winners for above in self._table.ancestors(pid)}
            for pid in set(pids) - set(winners) - over if winners else ():
                if is_python(self._table, pid):
                    self.beside[pid] = winners[0]

    def _same_rank(self, pid: int, claim: Claim) -> bool:
        other = self.claims.get(pid)
        return other is not None and other.identity == claim.identity and pid not in self._own

    def _most_like_ranks(self, pids: Sequence[int]) -> list[int]:
        """Of the topmost claimants of one rank those that are it; steps down from shells and wrappers."""
        members: list[int] = []
        for pid in pids:
            members += self._down_to_python(pid)
        python = [pid for pid in members if is_python(self._table, pid)]
        if not python:
            return [pid for pid in pids if ties.has_torch(self._table.root, self._table.entries[pid])]
        if len(python) == 1:
            return python
        with_torch = [pid for pid in python if ties.has_torch(self._table.root, self._table.entries[pid])]
        return with_torch or python

    def _down_to_python(self, pid: int, depth: int = 0) -> list[int]:
        """The topmost Python processes at or below a claimant; below a Python program that only runs another one."""
        claim = self.claims[pid]
        if not is_python(self._table, pid):
            below = [child for child in self._table.children.get(pid, ()) if self._same_rank(child, claim)]
            if depth >= MAX_WRAPPERS:
                return [pid]
            found = [each for child in below[:MAX_BELOW] for each in self._down_to_python(child, depth + 1)]
            return found or [pid]
        program = commands.program_of(self._table.entries[pid].command)
        others = [
            child
            for child in self._table.children.get(pid, ())
            if self._same_rank(child, claim)
            and is_python(self._table, child)
            and not commands.is_helper(self._table.entries[child].command)
            and not commands.is_spawned(self._table.entries[child].command)
            and commands.program_of(self._table.entries[child].command) != program
        ]
        if others and not ties.has_torch(self._table.root, self._table.entries[pid]):
            with_torch = [each for each in others if ties.has_torch(self._table.root, self._table.entries[each])]
            return with_torch or [pid]
        return [pid]
