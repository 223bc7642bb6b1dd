"""Dumps of several jobs, or of several attempts of one, side by side: which run a dump is of.

A run is a set of dumps whose processes list the same ranks and whose calls were made in the same time. A dump of
another run proves nothing about this one, however late its calls are.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.age import newest_ms
from torchtriage.flight.columns import FINISHED, unpack_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtriage.flight.model import RankDump
    from torchtriage.flight.rank_lists import RankList, RankLists

LEAST_APART_MS = 600_000
"""Calls of one run are not further apart than this or the time-out: the watchdog would have ended it."""
MAX_COMPARED = 16
_DIGITS = re.compile(r"\d{1,64}")


@dataclass
class Run:
    """Dumps that fit each other: of the same groups, at the same time."""

    world: RankList | None
    start_ms: int
    end_ms: int
    dumps: list[tuple[int, RankDump]] = field(default_factory=list["tuple[int, RankDump]"])

    @property
    def n_ranks(self) -> int:
        """How many ranks' dumps are of this run."""
        return len({rank for rank, _ in self.dumps})


def folder_of(dump: RankDump) -> str:
    """The folder that a dump lies in."""
    return dump.artefact.rpartition("/")[0]


def name_form(dump: RankDump) -> str:
    """A dump's name without its numbers: that of a backup is another one than that of a rank's own dump."""
    return _DIGITS.sub("#", dump.artefact[-512:])


def span_ms(dump: RankDump) -> tuple[int, int] | None:
    """When the first and the last of a dump's calls were made; None when it does not say."""
    last = newest_ms(dump.summary["tracks"])
    first = min((ns // 1_000_000 for ns in dump.summary["first_ns"]), default=last)
    return (min(first, last), last) if last > 0 else None


def runs_of(dumps: Iterable[tuple[int, RankDump]], lists: RankLists) -> list[Run]:
    """The runs that (rank, dump) are of, the one to believe first: of those with most ranks the latest."""
    timed: dict[RankList | None, list[tuple[int, int, int, RankDump]]] = {}
    timeless: list[tuple[int, RankDump]] = []
    for rank, dump in dumps:
        span = span_ms(dump)
        if span is None:
            timeless.append((rank, dump))
        else:
            timed.setdefault(_world(dump, lists), []).append((*span, rank, dump))
    runs: list[Run] = []
    for world, rows in timed.items():
        here: Run | None = None
        for start, end, rank, dump in sorted(rows, key=lambda row: row[:3]):
            if here is None or start > here.end_ms:
                here = Run(world, start, end)
                runs.append(here)
            here.end_ms = max(here.end_ms, end)
            here.dumps.append((rank, dump))
    most = max((run.n_ranks for run in runs), default=0)
    runs.sort(key=lambda run: (run.n_ranks * 2 > most, run.end_ms, run.n_ranks), reverse=True)
    _add_timeless(runs, timeless)
    return runs


def _add_timeless(runs: list[Run], timeless: Sequence[tuple[int, RankDump]]) -> None:
    """Dumps without calls are of the run whose folder they lie in, else of the first."""
    if not timeless:
        return
    if not runs:
        runs.append(Run(None, 0, 0))
    in_folder: dict[str, Run] = {}
    for run in runs:
        for _, dump in run.dumps:
            in_folder.setdefault(folder_of(dump), run)
    for rank, dump in timeless:
        in_folder.get(folder_of(dump), runs[0]).dumps.append((rank, dump))


def usual_forms(run: Run) -> frozenset[str]:
    """The forms of names that most ranks of a run have."""
    counts = Counter({(name_form(dump), rank) for rank, dump in run.dumps})
    forms = Counter(form for form, _ in counts)
    most = max(forms.values(), default=0)
    return frozenset(form for form, count in forms.items() if count * 2 > most)


def _world(dump: RankDump, lists: RankLists) -> RankList | None:
    """The longest list of ranks that a dump has."""
    listed = [ranks for row in dump.summary["config"][:256] if (ranks := lists.of(row[3])) is not None]
    return max(listed, key=lambda ranks: len(ranks.ranks), default=None)


def set_earlier_runs_aside(chosen: dict[int, RankDump], lists: RankLists, gaps: list[str]) -> None:
    """Leave out the dumps of ranks whose calls were made before the run that most of the others' dumps are of.

    That a rank's newest call is old proves nothing by itself, for a rank may be stuck while the ring buffers of others
    wrap. So calls in a group that it shares with others must show that they are of another run.
    """
    spans = {rank: span for rank, dump in chosen.items() if (span := span_ms(dump)) is not None}
    timeouts = [dump.summary["timeout_ms"] for dump in chosen.values() if dump.summary["timeout_ms"]]
    apart_ms = max([LEAST_APART_MS, *timeouts])
    known: dict[int, _Groups] = {}
    starts = sorted(start for start, _ in spans.values())
    for rank, (_, end) in sorted(spans.items()):
        n_later = len(starts) - bisect_right(starts, end + apart_ms)
        if 2 * n_later <= len(starts) - 1:
            continue
        dump = chosen[rank]
        later = [chosen[other] for other, (start, _) in spans.items() if start > end + apart_ms]
        if not _is_of_another_run(dump, later, lists, known):
            continue
        since_ms = starts[-n_later] - end
        gaps.append(
            f"{clean_text(dump.artefact)}: rank {rank}'s dump is of an earlier run: its newest call is "
            f"{_time_words(since_ms)} older than all that most others hold; not used"
        )
        del chosen[rank]


def _is_of_another_run(dump: RankDump, later: Sequence[RankDump], lists: RankLists, known: dict[int, _Groups]) -> bool:
    own = _groups(dump, lists, known)
    worlds = {ranks for _, ranks in own}
    peers = [
        other for other in later if worlds & {lists.of(row[3]) for row in other.summary["config"]} or None in worlds
    ]
    votes = [
        _contradict(own, others)
        for other in peers[:MAX_COMPARED]
        if not own.keys().isdisjoint(others := _groups(other, lists, known))
    ]
    return 2 * sum(votes) > len(votes)


_Groups = dict[tuple[str, "RankList | None"], tuple[int, int, int]]


def _groups(dump: RankDump, lists: RankLists, known: dict[int, _Groups]) -> _Groups:
    """By group (name and list of ranks): the last call finished, the last made, and the first held."""
    if (found := known.get(id(dump))) is not None:
        return found
    ranks_of = {row[0]: lists.of(row[3]) for row in dump.summary["config"]}
    found = known[id(dump)] = {}
    for track in dump.summary["tracks"]:
        if track["n"]:
            seqs = unpack_column(track["seq"], track["n"])
            states = unpack_column(track["finished"], track["n"])
            done = max((seq for seq, state in zip(seqs, states, strict=True) if state == FINISHED), default=-1)
            found[track["name"], ranks_of.get(track["name"])] = (done, max(seqs), min(seqs))
    return found


def _contradict(earlier: _Groups, later: _Groups) -> bool:
    """Whether later calls of a group cannot be of the run that the earlier ones are of.

    They go back to the group's first call, or to one before what was finished earlier; or such are finished as the
    rank has not made.
    """
    for group, (done, last, _) in earlier.items():
        if group in later:
            later_done, _, later_first = later[group]
            if later_first <= max(1, done) or later_done > last:
                return True
    return False


def _time_words(ms: int) -> str:
    minutes = ms // 60_000
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
