"""Read logs once, line by line, into a :class:`~torchtriage.logs.records.Timeline`. Believes nothing, never judges.

Cost is linear in bytes. What depends on a line's shape alone is planned once per shape (``plans``); what is kept is
bounded per pattern, rank and kind.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import strip_controls
from torchtriage.errors import UnreadableError
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.crashes.blocks import CrashReader
from torchtriage.logs.crashes.tracebacks import OpenTraceback, TracebackRecord, bare_exception, is_frame, open_bare
from torchtriage.logs.ends.launcher import LAUNCHER_KINDS, LauncherReader
from torchtriage.logs.metrics.collect import Metrics
from torchtriage.logs.records import (
    MAX_TEXT_CHARS,
    Line,
    LogPattern,
    LogSource,
    Owner,
    OwnerLines,
    PatternHits,
    PatternSet,
    Timeline,
)
from torchtriage.logs.scan.literals import DIGITS
from torchtriage.logs.scan.plans import Piece, plan_line
from torchtriage.logs.scan.prefixes import GROUP, HEAD_LINES, STRONG, looks_labelled
from torchtriage.logs.scan.prose import is_negated
from torchtriage.logs.timeline.order import put_in_order
from torchtriage.logs.timeline.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LogPattern", "LogSource", "PatternSet", "scan", "text_source"]

MAX_HITS_KEPT = 50
MAX_RECORDS_KEPT = 60_000
MAX_TRACEBACKS = 4000
MAX_OWNERS = 20_000
_MAX_PLANS = 20_000
_MAX_PLAN_CHARS = 16 << 20
_MAX_CACHED_TEMPLATE = 4096
_MAX_OPEN_TRACEBACKS = 4096
_MAX_HIT_KEYS = 50_000
_REGEX_CHARS = 8192
_INIT_RANK = lazy_re(r"\brank (?P<rank>\d{1,7}) n[rR]anks (?P<n>\d{1,7})\b")
_WORLD_SIZE = lazy_re(r"(?i)\b(?:global_)?world[_ ]sizes?['\"]?\s{0,3}[=:]?\s{0,3}\[?(?P<n>\d{1,7})\b")
_SPAWN_ERROR = lazy_re(r"-- Process (?P<rank>\d{1,7}) terminated with the following error")


def text_source(text: str, name: str = "text") -> LogSource:
    """A pasted text as a log; lines are numbered from 1 in it."""
    return LogSource(name, (line.rstrip("\r") for line in text.split("\n")))


def scan(sources: Sequence[LogSource], patterns: PatternSet) -> Timeline:
    """Read all sources, in the order given, into one timeline.

    A source that cannot be opened becomes a note. Lines are read once, so sources may be generators.
    """
    scanner = _Scanner(patterns)
    for index, source in enumerate(sources):
        scanner.read(index, source)
    return scanner.timeline()


class _Scanner:
    """State of one scan."""

    def __init__(self, patterns: PatternSet) -> None:
        self._patterns = patterns
        self._regexes: dict[int, re.Pattern[str] | None] = {}
        self._plans: dict[tuple[str, str], tuple[Piece, ...]] = {}
        self._plan_chars = 0
        self._hits: dict[tuple[int, Owner, tuple[int, ...]], PatternHits] = {}
        self._records: dict[str, list[Line]] = {}
        self._tracebacks: list[TracebackRecord] = []
        self._metrics = Metrics()
        self._owners: dict[Owner, OwnerLines] = {}
        self._launcher: LauncherReader = LauncherReader()
        self._launchers: list[LauncherReader] = []
        self._ranks: dict[int, tuple[int, int]] = {}  # pid -> (size of its largest communicator, rank in it)
        self._pid_conflicts: set[int] = set()
        self._tasks = Tasks()
        self._crashes = CrashReader()
        self._world_size: int | None = None
        self._notes: list[str] = []
        self._too_many_owners = False
        self._n_lines = 0
        # of the source that is being read
        self._source = LogSource("", ())
        self._index = 0
        self._of_source: Owner = None
        self._source_task: str | None = None
        self._weight = 1
        self._stamp: tuple[str, Piece] | None = None
        self._open: dict[tuple[Owner, str], OpenTraceback] = {}
        self._spawned: int | None = None
        self._headed: tuple[tuple[Owner, str], int] | None = None

    def read(self, index: int, source: LogSource) -> None:
        self._source, self._index, self._stamp, self._spawned = source, index, None, None
        self._source_task = None if source.task is None else self._tasks.owner((source.task,), "")
        self._of_source = source.rank
        if source.rank is None:
            self._of_source = self._source_task if source.pid is None else f"pid:{source.pid}"
        self._launcher = LauncherReader()
        self._launchers.append(self._launcher)
        number = 0
        try:
            lines = source.numbered()
            head = list(itertools.islice(lines, HEAD_LINES))
            thinned = source.thinned
            labelled = looks_labelled([line for _, _, line in head]) if thinned is None else thinned.labelled
            for number, weight, line in itertools.chain(head, lines):
                if "\r" in line or "\x1b" in line:
                    line = _last_shown(line)
                template = line.translate(DIGITS)
                plan = self._plans.get((labelled, template))
                if plan is None:
                    plan = self._plan(template, labelled)
                self._weight = weight
                for piece in plan:
                    self._read_piece(piece, line, number)
        except UnreadableError as error:
            self._notes.append(f"{source.name}: {error}")
        self._n_lines += number if source.thinned is None else source.thinned.n_lines
        for opened in self._open.values():
            self._close(opened)
        self._open.clear()
        self._crashes.end_source()

    def _plan(self, template: str, labelled: str) -> tuple[Piece, ...]:
        plan = plan_line(template, self._patterns, labelled=labelled)
        if len(template) <= _MAX_CACHED_TEMPLATE:
            if len(self._plans) >= _MAX_PLANS or self._plan_chars >= _MAX_PLAN_CHARS:
                self._plans.clear()
                self._plan_chars = 0
            self._plans[labelled, template] = plan
            self._plan_chars += len(template) + 200
        return plan

    def _owner(self, piece: Piece, line: str) -> Owner:
        if piece.owner is None or (piece.strength != STRONG and self._source.rank is not None):
            return self._of_source
        if piece.strength >= GROUP:
            rank = int(line[piece.owner[0] : piece.owner[1]])
            if piece.tasks or self._source_task is not None:
                self._tasks.saw(self._task(piece, line) if piece.tasks else self._source_task, rank)
            return rank
        if piece.tasks:
            return self._task(piece, line)
        return f"pid:{int(line[piece.owner[0] : piece.owner[1]])}"

    def _task(self, piece: Piece, line: str) -> str | None:
        marks = tuple((form, line[a:b]) for form, (a, b) in piece.tasks)
        return self._tasks.owner(marks, self._source.name)

    def _read_piece(self, piece: Piece, text: str, number: int) -> None:
        owner = self._owner(piece, text)
        if piece.time is not None:
            self._stamp = (text, piece)
        lines = self._owners.get(owner)
        if lines is None:
            if len(self._owners) >= MAX_OWNERS:
                self._too_many_owners = True
                return
            lines = self._owners[owner] = OwnerLines()
        lines.n_lines += self._weight
        line: Line | None = None
        if self._crashes.open and (owner, piece.style) in self._crashes.open:
            line = self._line(piece, text, number, owner)
            self._crashes.feed((owner, piece.style), text[piece.body : piece.end], line)
        if self._open or piece.traceback:
            line = line or self._line(piece, text, number, owner)
            if self._read_traceback(piece, text, line, owner):
                self._read_texts(piece, text, line, owner)
                return
        if piece.dull and not piece.own:
            return
        line = line or self._line(piece, text, number, owner)
        is_step = piece.metrics is not None and self._metrics.add(owner, line, piece.metrics, text, piece.start)
        if is_step:
            lines.end_line = None
            if self._weight != 1:  # not all of its steps are seen
                self._metrics.owners[owner].steps = None
        elif piece.end_of_loop and lines.end_line is None and not piece.bare_exception:
            lines.end_line = line
        if piece.own:
            lines.last_own = line
            lines.last_own_is_finish = piece.finish
        if piece.bare_exception and (found := bare_exception(owner, line, text[piece.body : piece.end], piece.style)):
            self._add_bare(found)
        if piece.cores or piece.patterns:
            self._read_texts(piece, text, line, owner)

    def _line(self, piece: Piece, text: str, number: int, owner: Owner) -> Line:
        stamp = self._stamp
        host = text[piece.host[0] : piece.host[1]] if piece.host is not None else self._source.host
        end = min(piece.end, piece.start + MAX_TEXT_CHARS)
        line = Line(self._source.name, number, text[piece.start : end], owner, host)
        if stamp is not None:
            stamped, at = stamp
            span = at.time or (0, 0)
            line.stamp = (at.time_kind, stamped[span[0] : span[1]])
        line.weight = self._weight
        line.key = (self._index, number, piece.start)
        return line

    def _read_traceback(self, piece: Piece, text: str, line: Line, owner: Owner) -> bool:
        """Feed open tracebacks; True when the line belongs to one of them alone."""
        key = (owner, piece.style)
        opened = self._open.get(key)
        body = text[piece.body : min(piece.end, piece.body + MAX_TEXT_CHARS)]
        if self._headed is not None and piece.strength == 0:
            opened = self._adopt(key, body, line.number) or opened
        if opened is not None:
            # A log line of its own ends the message of an exception; a traceback's lines carry no time of their own
            # unless all lines do.
            foreign = piece.metrics is not None or piece.from_launcher or piece.finish
            answer = "closed" if foreign else opened.feed(body, line, starts_traceback=piece.traceback)
            if answer != "closed":
                return answer == "taken"
            self._close(opened)
            del self._open[key]
        if piece.traceback and len(self._open) < _MAX_OPEN_TRACEBACKS:
            owner = self._spawned if owner is None and self._spawned is not None else owner
            self._spawned = None
            in_table = body.lstrip().startswith("traceback : ")
            if in_table and owner is None:
                owner = self._launcher.rank_of_row
            self._open[key] = OpenTraceback(
                owner, line, piece.style, is_group="Exception Group" in body, in_table=in_table
            )
            self._headed = (key, line.number)
            return True
        return False

    def _adopt(self, key: tuple[Owner, str], body: str, number: int) -> OpenTraceback | None:
        """Loggers put their prefix only before the first line of a traceback: what follows it has none."""
        headed, at = self._headed or (key, -1)
        self._headed = None
        if headed == key or number not in (at, at + 1) or headed not in self._open or not is_frame(body):
            return None
        if key in self._open:
            self._close(self._open[key])
        opened = self._open[key] = self._open.pop(headed)
        opened.style = key[1]
        return opened

    def _close(self, opened: OpenTraceback) -> None:
        if (record := opened.record()) is not None:
            self._add_traceback(record)

    def _add_traceback(self, record: TracebackRecord) -> None:
        if len(self._tracebacks) < MAX_TRACEBACKS:
            self._tracebacks.append(record)

    def _add_bare(self, found: TracebackRecord) -> None:
        """An exception line alone; where its message is cut, the next lines of the same process may go on with it."""
        opened = open_bare(found) if len(self._open) < _MAX_OPEN_TRACEBACKS else None
        if opened is None:
            self._add_traceback(found)
        else:
            self._open[found.owner, found.style] = opened

    def _read_texts(self, piece: Piece, text: str, line: Line, owner: Owner) -> None:
        for position in piece.patterns:
            self._match(position, text[piece.start : piece.end], line, owner)
        for kind in piece.cores:
            body = text[piece.body : piece.end]
            if kind in LAUNCHER_KINDS:
                self._launcher.feed(kind, body, line)
            elif kind == "crash":
                self._crashes.start((owner, piece.style), body, line)
            elif kind == "nccl_rank":
                self._learn_rank(body, owner)
            elif kind == "world_size":
                if match := _WORLD_SIZE.search(body[:_REGEX_CHARS]):
                    self._world_size = max(self._world_size or 0, int(match["n"])) or None
            elif kind == "spawn_error":
                match = _SPAWN_ERROR.search(body[:_REGEX_CHARS])
                self._spawned = int(match["rank"]) if match else None
            elif kind != "handled" or (piece.own and not piece.bare_exception):
                kept = self._records.setdefault(kind, [])
                if len(kept) < MAX_RECORDS_KEPT:
                    kept.append(line)

    def _match(self, position: int, text: str, line: Line, owner: Owner) -> None:
        pattern = self._patterns.patterns[position]
        at = text.find(pattern.text)
        if at < 0 or is_negated(text, at):
            return
        ranks: tuple[int, ...] = ()
        facts: dict[str, str] = {}
        if pattern.regex is not None:
            if position not in self._regexes:
                try:
                    self._regexes[position] = re.compile(pattern.regex)
                except re.error:
                    self._regexes[position] = None
                    self._notes.append(f"pattern {pattern.id}: its regex does not compile")
            regex = self._regexes[position]
            match = regex.search(text, 0, _REGEX_CHARS) if regex is not None else None
            if match is None:
                return
            groups = {name: value for name, value in match.groupdict().items() if value is not None}
            named = [value for name, value in groups.items() if name.startswith("rank") and value.isdecimal()]
            ranks = tuple(sorted({int(value) for value in named if len(value) <= 7}))
            facts = {name: value[:200] for name, value in groups.items() if not name.startswith("rank")}
        key = (position, owner, ranks)
        hits = self._hits.get(key)
        if hits is None:
            if len(self._hits) >= _MAX_HIT_KEYS:
                return
            hits = self._hits[key] = PatternHits(pattern.id, pattern.text, ranks, facts)
        hits.count += line.weight
        if len(hits.lines) < MAX_HITS_KEPT:
            hits.lines.append(line)

    def _learn_rank(self, body: str, owner: Owner) -> None:
        match = _INIT_RANK.search(body[:_REGEX_CHARS])
        if match is None:
            return
        rank, size = int(match["rank"]), int(match["n"])
        self._world_size = max(self._world_size or 0, size)
        if not isinstance(owner, str) or not owner.startswith("pid:"):
            return
        pid = int(owner.partition(":")[2])
        known = self._ranks.get(pid)
        # The rank in the largest communicator is the rank of the job; smaller ones number their members anew.
        if known is None or size > known[0]:
            if len(self._ranks) < MAX_OWNERS:
                self._ranks[pid] = (size, rank)
        elif size == known[0] and rank != known[1]:
            self._pid_conflicts.add(pid)

    def timeline(self) -> Timeline:
        """Everything read so far, with ranks of processes resolved and lines put in order."""
        launcher = [record for reader in self._launchers for record in reader.records]
        rank_of_pid = {pid: rank for pid, (_, rank) in self._ranks.items() if pid not in self._pid_conflicts}
        # Where processes of different hosts share a number, the table of a launcher cannot be told apart either.
        for record in launcher:
            if record.pid is not None and record.rank is not None and record.pid not in self._pid_conflicts:
                rank_of_pid.setdefault(record.pid, record.rank)
        if self._too_many_owners:
            self._notes.append(f"more than {MAX_OWNERS} ranks or processes print: the lines of the rest were not read")
        if self._pid_conflicts:
            self._notes.append("process ids occur on several hosts: lines that name only a process id have no rank")
        timeline = Timeline(
            hits=list(self._hits.values()),
            records=self._records,
            tracebacks=self._tracebacks,
            launcher=launcher,
            metrics=self._metrics,
            owners=self._owners,
            rank_of_pid=rank_of_pid,
            world_size=self._world_size,
            n_lines=self._n_lines,
            notes=self._notes,
            rank_of_task=self._tasks.ranks(self._world_size),
            crashes=self._crashes.blocks,
        )
        put_in_order(timeline)
        return timeline


def _last_shown(line: str) -> str:
    """What a terminal shows of a line last: behind the last carriage return, without escape sequences."""
    shown = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return strip_controls(shown) if "\x1b" in shown else shown
