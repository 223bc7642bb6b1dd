"""What the log reader takes and yields: sources, patterns, lines, and the timeline. Nothing here judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from torchtriage.logs.scan.literals import LiteralIndex
from torchtriage.logs.timeline.clocks import Clocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torchtriage.logs.crashes.blocks import CrashBlock
    from torchtriage.logs.crashes.tracebacks import TracebackRecord
    from torchtriage.logs.ends.records import LauncherRecord
    from torchtriage.logs.metrics.collect import Metrics

Owner = int | str | None
"""Who printed a line: a rank, a process or a task whose rank is not known yet ("pid:957", "task:srun//3"), or nobody
that the line tells."""

MAX_TEXT_CHARS = 4096


@dataclass(frozen=True)
class LogSource:
    """One log: its lines in order, and the rank and host that its name tells (None: it tells none)."""

    name: str
    lines: Iterable[str]
    rank: int | None = None
    host: str | None = None
    thinned: Thinned | None = None
    """What was kept of a log too large to be read line by line; then ``lines`` is empty."""
    pid: int | None = None
    task: tuple[str, str] | None = None
    """The task whose file it is, as ``tasks.file_tasks`` tells."""

    def numbered(self) -> Iterator[tuple[int, int, str]]:
        """Lines with their number (from 1) and how many lines each stands for."""
        if self.thinned is not None:
            yield from self.thinned.kept
            return
        for number, line in enumerate(self.lines, start=1):
            yield number, 1, line


@dataclass(frozen=True)
class Thinned:
    """A log of which ``torchtriage.logs.scan.sift`` kept some lines."""

    kept: Sequence[tuple[int, int, str]]
    """Line number, how many lines it stands for (0: it is counted with another one), text."""
    n_lines: int
    labelled: str
    """What launcher labelled its lines, as ``prefixes.looks_labelled`` tells."""


@dataclass(frozen=True)
class LogPattern:
    """A text that a playbook entry names.

    ``text`` must occur in a line (case-sensitive). ``regex``, when given, is then searched in that line; its named
    groups that start with "rank" are the ranks that the match is about, other named groups are facts.
    """

    id: str
    text: str
    regex: str | None = None


@dataclass(frozen=True)
class PatternSet:
    """Patterns and their index, built once and used for many logs."""

    patterns: Sequence[LogPattern]

    @cached_property
    def index(self) -> LiteralIndex:
        """The index over the literals; positions are those of ``patterns``."""
        return LiteralIndex([pattern.text for pattern in self.patterns])


@dataclass
class Line:
    """One message of a log: a physical line, or one of several that were glued into it."""

    source: str
    number: int
    text: str
    """The message, cut at :data:`MAX_TEXT_CHARS`; part of the physical line."""
    owner: Owner = None
    host: str | None = None
    stamp: tuple[str, str] | None = None
    """Format and text of the time stamp that the line, or the last stamped line before it in the file, carries."""
    weight: int = 1
    """How many lines of its kind it stands for, in a log that was thinned."""
    key: tuple[int, int, int] = (0, 0, 0)
    """Source index, line number, position in the line: the order inside one file."""
    order: int = -1
    """Place in the whole timeline: file order inside a file, wall-clock time across files."""
    time_s: float | None = None
    rank: int | None = None


@dataclass
class PatternHits:
    """Lines that one pattern matched for one owner; ``count`` counts all, ``lines`` keeps the first ones."""

    pattern_id: str
    text: str
    """The literal of the pattern."""
    ranks: tuple[int, ...]
    facts: dict[str, str]
    lines: list[Line] = field(default_factory=list[Line])
    count: int = 0


@dataclass
class OwnerLines:
    """What one owner's own (not a library's) output ended with."""

    n_lines: int = 0
    last_own: Line | None = None
    last_own_is_finish: bool = False
    end_line: Line | None = None
    """The first line after the last step that reads like the end of a loop."""


@dataclass
class Timeline:
    """Everything that was read, in order."""

    hits: list[PatternHits]
    records: dict[str, list[Line]]
    """Lines by kind (see ``torchtriage.logs.scan.plans``): watchdog, progress, handled, ..."""
    tracebacks: list[TracebackRecord]
    launcher: list[LauncherRecord]
    metrics: Metrics
    owners: dict[Owner, OwnerLines]
    rank_of_pid: dict[int, int]
    world_size: int | None
    n_lines: int
    notes: list[str]
    rank_of_task: dict[str, int] = field(default_factory=dict[str, int])
    crashes: list[CrashBlock] = field(default_factory=list["CrashBlock"])
    clocks: Clocks = field(default_factory=Clocks)
    """How well the clocks of the sources agree; filled in by ``order.put_in_order``."""

    @property
    def skew(self) -> dict[str, float]:
        """Seconds by which the clock of a host (or of a file, by its name) is ahead of the reference's, where told."""
        return self.clocks.skew

    def order_is_known(self, first: Line, second: Line) -> bool:
        """Whether it is certain which of two lines was printed first."""
        return self.clocks.order_is_known(first, second)

    @property
    def ranks_seen(self) -> list[int]:
        """All ranks that printed something or that a report names."""
        ranks = {owner for owner in self.owners if isinstance(owner, int)} | set(self.rank_of_pid.values())
        return sorted(ranks)

    @property
    def events(self) -> list[Line]:
        """All lines that were kept as an event, in order."""
        lines: dict[int, Line] = {}
        for hits in self.hits:
            lines.update((id(line), line) for line in hits.lines)
        for kept in self.records.values():
            lines.update((id(line), line) for line in kept)
        return sorted(lines.values(), key=lambda line: line.order)
