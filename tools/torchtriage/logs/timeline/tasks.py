"""Which rank a task is, when a log tells only the number that a launcher gave: a task of ``srun --label``, a pod's
ordinal, torchrun's ``[default3]:``, the number in a file's name.

Such a number is the rank when each task is one process and numbers start at the first one; with one task per node, or
with local numbers on several nodes, it is not. What the tasks themselves print decides; where that contradicts, or
where it cannot be told, a task has no rank: a wrong rank is worse than none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from torchtriage.lazy_re import lazy_re

MAX_TASKS = 20_000
_MAX_SEEN = 8
"""Ranks kept per task: more than one already says that the task is no rank."""
_MAX_LOCAL = 8
_ORDINAL = lazy_re(r"^(?P<base>.{0,300}?)(?P<number>\d{1,7})$", re.DOTALL)
_PREFIX = "task:"


@dataclass
class _Family:
    """Tasks that one launcher numbered together: owner by number."""

    kind: str
    base: str
    owners: dict[int, str] = field(default_factory=dict[int, str])


@dataclass
class Tasks:
    """Collects the tasks that a log names, and the ranks that lines of theirs print."""

    _owners: dict[tuple[str, str, str], str] = field(default_factory=dict[tuple[str, str, str], str])
    _seen: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    _nodes: set[str] = field(default_factory=set[str])
    """Forms whose numbers label nodes: other tasks were told apart under one of them."""

    def owner(self, marks: tuple[tuple[str, str], ...], source: str) -> str | None:
        """The owner of a line with these marks (form and text, outermost first), or None for ever more tasks."""
        kind, text = marks[-1]
        scope = "/".join(outer for _, outer in marks[:-1])
        if kind == "local":
            scope = f"{source}/{scope}"
        self._nodes.update(outer for outer, _ in marks[:-1])
        key = (kind, scope, text)
        known = self._owners.get(key)
        if known is None and len(self._owners) < MAX_TASKS:
            known = self._owners[key] = _PREFIX + "/".join(key)
        return known

    def saw(self, owner: str | None, rank: int) -> None:
        """A line of this task carries the mark of a rank."""
        if owner is not None:
            seen = self._seen.setdefault(owner, set())
            if len(seen) < _MAX_SEEN:
                seen.add(rank)

    def ranks(self, world_size: int | None) -> dict[str, int]:
        """The rank of every task whose rank is known."""
        families = self._families()
        alike: defaultdict[str, int] = defaultdict(int)
        for family in families:
            alike[family.kind] += 1
        found: dict[str, int] = {}
        for family in families:
            if family.kind not in self._nodes:
                found |= self._of_family(family, world_size, alone=alike[family.kind] == 1)
        return found

    def _families(self) -> list[_Family]:
        families: dict[tuple[str, str, str], _Family] = {}
        for (kind, scope, text), owner in self._owners.items():
            if match := _ORDINAL.match(text):
                key = (kind, scope, match["base"])
                family = families.setdefault(key, _Family(kind, match["base"]))
                family.owners[int(match["number"])] = owner
        return list(families.values())

    def _of_family(self, family: _Family, world_size: int | None, *, alone: bool) -> dict[str, int]:
        seen = {number: self._seen[owner] for number, owner in family.owners.items() if owner in self._seen}
        if any(len(ranks) > 1 for ranks in seen.values()):
            return {}  # a task holds several ranks: it is a node
        told = {number: next(iter(ranks)) for number, ranks in seen.items()}
        offsets = {rank - number for number, rank in told.items()}
        whole = world_size is None or world_size == len(family.owners)
        if len(offsets) > 1 and not whole:
            return {}
        if told:
            if family.kind != "local" and not (offsets <= {0, 1} and whole):
                return {}
            offset = offsets.pop() if len(offsets) == 1 else None
            of_told = {family.owners[number]: rank for number, rank in told.items()}
            if offset is None:
                return of_told
            return {owner: number + offset for number, owner in family.owners.items()} | of_told
        if not alone or not self._is_plain(family, world_size, whole=whole):
            return {}
        return {owner: number for number, owner in family.owners.items()}

    @staticmethod
    def _is_plain(family: _Family, world_size: int | None, *, whole: bool) -> bool:
        """Whether numbers without any contradiction may be taken for ranks."""
        if family.kind == "local":
            # One node of usual size; of several nodes each would number from 0 again.
            return whole or (world_size is not None and world_size <= _MAX_LOCAL)
        if family.kind == "sky":
            return world_size is not None and whole  # its numbers are nodes
        if family.kind == "compose":
            return whole and 0 in family.owners  # compose counts from 1
        return whole


def file_tasks(names: list[str]) -> dict[str, tuple[str, str]]:
    """Files whose names differ in one number that counts tasks: the mark (form and text) of each.

    ``train_4711_0.out`` .. ``_7.out`` of Slurm, ``worker-0.log`` .. of Kubernetes, torchrun's
    ``<attempt>/<local rank>/stderr.log``. Numbers must run from 0 without a gap, so that job ids, dates and versions
    are not taken for tasks.
    """
    families: defaultdict[str, dict[int, list[str]]] = defaultdict(dict)
    for name in names:
        if (match := _TORCHRUN_LOG.search(name)) is not None:
            # The same worker of a later attempt is the same task.
            folder = re.sub(r"attempt_\d{1,5}", "attempt", name[: match.start("number")])
            families["local\0" + folder].setdefault(int(match["number"]), []).append(name)
        elif (match := _NUMBERED.search(name)) and not _OTHER_COUNT.search(name[: match.start("number")]):
            family = "file\0" + name[: match.start("number")]
            families[family].setdefault(int(match["number"]), []).append(name)
    # Where a master has a file of its own it is rank 0, and the workers' numbers are one too low.
    led = any(_MASTER.search(family) for family in families)
    found: dict[str, tuple[str, str]] = {}
    for family, by_number in families.items():
        kind, _, base = family.partition("\0")
        gapless = sorted(by_number) == list(range(len(by_number)))
        if kind == "file" and (len(by_number) < 2 or not gapless or (led and _WORKER.search(base))):
            continue
        for number, members in by_number.items():
            found.update(dict.fromkeys(members, (kind, f"{base}\0{number}")))
    return found


_TORCHRUN_LOG = lazy_re(r"(?:^|/)(?P<number>\d{1,5})/std(?:out|err)\.log$")
# What else is numbered from 0: tries, parts of a run, files that a logger rotated.
_OTHER_COUNT = lazy_re(
    r"(?i)(?:runs?|attempts?|epochs?|steps?|parts?|v|versions?|jobs?|trials?|exp\w{0,12}|tr(?:y|ies)|restarts?|retry|chunks?|"
    r"shards?|nodes?|hosts?|phases?|stages?|iter\w{0,7}|log|out|err|txt)[_\-.]{0,2}$"
)
_MASTER = lazy_re(r"(?i)(?:master|chief|head)[_\-.]?$")
_WORKER = lazy_re(r"(?i)worker[_\-.]?$")
# The last number of a name, where a separator or a telling word stands before it.
_NUMBERED = lazy_re(
    r"(?i)(?:[_\-.]|(?<![A-Za-z])(?:gpu|proc|process|worker|task|trainer|device)|(?:^|/))(?P<number>\d{1,4})"
    r"(?:\.(?:log|out|err|txt|stdout|stderr|gz|zst|jsonl)){0,3}$"
)
