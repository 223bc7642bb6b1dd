"""What all ranks together say of each process group: who timed out where, and how far everybody was.

A group is told by its unique name; its members are known only as far as lines show them, except for the default group,
which holds all ranks. Nothing here judges.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtriage.logs.records import Timeline
    from torchtriage.logs.watchdog.lines import Group, Progress, Timeout

_MAX_WORLD = 1 << 20
_MAX_ABSENT = 64
_FEW = 8  # a whole node's worth of silent ranks is a log that was not given


@dataclass
class GroupView:
    """One group over all ranks."""

    key: str | None
    """None: the lines name no group."""
    name: str | None
    is_default: bool
    timeouts: dict[int, Timeout] = field(default_factory=dict[int, "Timeout"])
    """The first time-out of each rank."""
    progress: dict[int, Progress] = field(default_factory=dict[int, "Progress"])
    """How far each rank got at last."""
    global_of: dict[int, int] = field(default_factory=dict[int, int])
    """Rank in the group to rank of the job."""
    mixed: bool = False
    """Several groups share this name (siblings of one split): their ranks cannot be compared."""

    def add_member(self, group: Group | None, rank: int) -> None:
        """Note which rank of the job a rank of the group is."""
        if group is not None and group.group_rank is not None:
            self.mixed = self.mixed or self.global_of.setdefault(group.group_rank, rank) != rank

    @property
    def groups(self) -> list[str]:
        """For a signal's scope."""
        return [self.name] if self.name else []


@dataclass(frozen=True)
class Job:
    """What is known of the job around the groups."""

    world: frozenset[int]
    """All ranks, as far as known."""
    seen: frozenset[int]
    """Ranks that print under their own name."""
    complete: bool
    """All lines of the watchdog were kept, so that the absence of one means something."""
    views: dict[str | None, GroupView]
    waits: dict[int, list[GroupView]]
    """The groups in which each rank timed out."""
    absent: frozenset[int] = frozenset()
    """Ranks that must exist and that nothing names: below the known size, or in a hole of the ranks that print."""

    @property
    def silent(self) -> frozenset[int]:
        """The absent ranks where they are few among many, so that not merely a log was left out."""
        n_absent, n_seen = len(self.absent), len(self.seen)
        few = n_seen >= 3 and n_absent < _FEW and n_absent * 8 <= n_seen + 7
        return self.absent if few else frozenset()

    def members(self, view: GroupView) -> frozenset[int]:
        """The ranks that are known to be in a group."""
        if view.is_default or len(self.world) == 2:
            return self.world
        shown = frozenset(view.timeouts) | frozenset(view.progress)
        return shown | _between(view.global_of)


def view_job(timeline: Timeline, timeouts: list[Timeout], progress: list[Progress], *, complete: bool) -> Job:
    """Put the records of all ranks together, by group."""
    views: dict[str | None, GroupView] = {}
    for told in progress:
        view = _view(views, told.group)
        view.add_member(told.group, told.rank)
        known = view.progress.get(told.rank)
        if known is None or (told.enqueued, told.completed) >= (known.enqueued, known.completed):
            view.progress[told.rank] = told
    for timeout in timeouts:
        if timeout.rank is None:
            continue
        view = _view(views, timeout.group)
        view.add_member(timeout.group, timeout.rank)
        view.timeouts.setdefault(timeout.rank, timeout)
    _tell_names_apart(views)
    seen = frozenset(owner for owner in timeline.owners if isinstance(owner, int))
    size = timeline.world_size
    known = frozenset(timeline.ranks_seen)
    whole = size is not None and size <= _MAX_WORLD and all(rank < size for rank in known)
    world = frozenset(range(size)) if whole and size is not None else known
    if None in views and len(views) == 1:
        # Before torch 2.3 no line names its group; that there is one group only is then the best reading.
        views[None].is_default = True
    waits: dict[int, list[GroupView]] = {}
    for view in views.values():
        for rank in view.timeouts:
            waits.setdefault(rank, []).append(view)
    absent = world - known if whole else _holes(known, _unnamed_processes(timeline, known))
    return Job(world, seen, complete, views, waits, absent)


def _holes(known: frozenset[int], n_more: int) -> frozenset[int]:
    """The ranks that a job without a known size must have besides those known: ranks are numbered without a gap."""
    end = max(known, default=-1) + 1
    missing = (rank for rank in range(min(end, _MAX_WORLD)) if rank not in known)
    holes = frozenset(itertools.islice(missing, _MAX_ABSENT))
    # Processes without a name fill the holes first; whoever is left comes behind the last rank.
    return holes | frozenset(range(end, end + min(n_more - len(holes), _MAX_ABSENT)))


def _unnamed_processes(timeline: Timeline, known: frozenset[int]) -> int:
    """How many processes the launcher ended that are no known rank's, where it names the process of every rank."""
    of_rank = timeline.rank_of_pid
    if not known or frozenset(of_rank.values()) != known or len(of_rank) != len(known):
        return 0
    ended = {record.pid for record in timeline.launcher if record.is_order and record.pid is not None}
    return len(ended - of_rank.keys())


def _view(views: dict[str | None, GroupView], group: Group | None) -> GroupView:
    key = None if group is None else "default_pg" if group.is_default else group.key
    view = views.get(key)
    if view is None:
        name = None if group is None else "default_pg" if group.is_default else group.desc or group.key
        view = views[key] = GroupView(key, name, is_default=group is not None and group.is_default)
    return view


def _tell_names_apart(views: dict[str | None, GroupView]) -> None:
    """All groups of one dimension carry one description."""
    by_name: dict[str | None, list[GroupView]] = {}
    for view in views.values():
        by_name.setdefault(view.name, []).append(view)
    for name, same in by_name.items():
        if name is not None and len(same) > 1:
            for view in same:
                view.name = f"{name} ({view.key})"


def _between(global_of: dict[int, int]) -> frozenset[int]:
    """Members that print nothing, where those around them show how the group's ranks are numbered."""
    inner = sorted(global_of)
    if len(inner) < 3 or inner[-1] - inner[0] > 8 * len(inner):
        return frozenset()
    stride, rest = divmod(global_of[inner[-1]] - global_of[inner[0]], inner[-1] - inner[0])
    base = global_of[inner[0]] - stride * inner[0]
    if rest or stride < 1 or any(global_of[r] != base + stride * r for r in inner):
        return frozenset()
    return frozenset(base + stride * r for r in range(inner[0], inner[-1] + 1))
