"""Kills for memory in a kernel's own log: only those of the job's processes, by their number.

A kernel tells of every process of its host, and of days before the job: what cannot be matched is nobody's business
here.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torchtriage.errors import UnreadableError
from torchtriage.lazy_re import lazy_re
from torchtriage.logs.ends.exits import killed_workers
from torchtriage.logs.ends.host_memory import kill_facts, killed_pid
from torchtriage.logs.ends.records import LauncherRecord
from torchtriage.logs.records import MAX_TEXT_CHARS, Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchtriage.logs.records import LogSource, Timeline

MAX_KILLS = 4096
MAX_LINES = 4_000_000
_HINTS = ("oom-kill:constraint=", "Killed process ", "Kill process ")
_KILL = lazy_re(
    r"oom-kill:constraint=|ut of memory: Kill(?:ed)? process \d|Killed process \d{1,10} \([^)]{1,32}\).{0,20}total-vm:"
)


def add_kills(timeline: Timeline, kernel_logs: Iterable[LogSource]) -> None:
    """Add to the timeline what kernels say about ends of the job's processes."""
    hosts = {record.pid: record.host for record in timeline.launcher if record.pid is not None}
    owners = [owner for owner in timeline.owners if isinstance(owner, str) and owner.startswith("pid:")]
    known = {*timeline.rank_of_pid, *hosts, *killed_workers(timeline), *(int(owner[4:]) for owner in owners)}
    for source in kernel_logs:
        try:
            for pid, kill in _kills(source, timeline.n_lines):
                host = hosts.get(pid)
                if pid in known and (host is None or kill.host is None or host == kill.host):
                    timeline.launcher.append(kill)
        except UnreadableError as error:
            timeline.notes.append(f"{source.name}: {error}")


def _kills(source: LogSource, order: int) -> Iterator[tuple[int, LauncherRecord]]:
    """The kills that one log tells of; their place among the job's lines is not known, so they stand behind all."""
    n_kills = 0
    for number, weight, text in itertools.islice(source.numbered(), MAX_LINES):
        if not any(hint in text for hint in _HINTS) or _KILL.search(text, 0, MAX_TEXT_CHARS) is None:
            continue
        cut = text[:MAX_TEXT_CHARS]
        pid = killed_pid(cut)
        if pid is None:
            continue
        line = Line(source.name, number, cut, None, source.host, weight=weight, key=(-1, number, 0), order=order)
        yield pid, LauncherRecord("oom_kill", line, pid=pid, exitcode=-9, reason="oom_kill", memory=kill_facts(cut))
        n_kills += 1
        if n_kills >= MAX_KILLS:
            return
