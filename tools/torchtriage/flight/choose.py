"""Which dump speaks for which rank: one per rank, of members only, and no process twice under two ranks' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.attempts import folder_of, name_form, runs_of, set_earlier_runs_aside, usual_forms
from torchtriage.flight.rank_lists import MAX_RANK
from torchtriage.flight.tables import as_int
from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.flight.model import RankDump
    from torchtriage.flight.rank_lists import RankLists

_WHOLE_FOLDER = 2
"""Of so many ranks a folder holds dumps that were not used: then it is a job or an attempt, not a stray file."""


def one_per_rank(
    dumps: Sequence[RankDump], lists: RankLists, gaps: list[str]
) -> tuple[dict[int, RankDump], dict[int, RankDump]]:
    """(the dump that speaks for each rank, dumps of ranks of which nothing is known because one process claims two)."""
    of_rank: dict[int, list[RankDump]] = {}
    for dump in dumps:
        shown = clean_text(dump.artefact)
        rank = dump.rank if dump.rank is not None and 0 <= dump.rank < MAX_RANK else _rank_by_groups(dump, lists)
        if rank is None:
            gaps.append(f"{shown}: its name does not say whose dump it is; not used")
        elif _is_foreign(rank, dump, lists):
            gaps.append(f"{shown}: its name says rank {rank}, which none of its process groups has; not used")
        else:
            of_rank.setdefault(rank, []).append(dump)
    claims: dict[Any, set[int]] = {}
    for rank, candidates in of_rank.items():
        for dump in candidates:
            if (process := _process(dump)) is not None:
                claims.setdefault(process, set()).add(rank)
    chosen: dict[int, RankDump] = {}
    doubtful: dict[int, RankDump] = {}
    if all(len(candidates) == 1 for candidates in of_rank.values()):
        chosen = {rank: candidates[0] for rank, candidates in of_rank.items()}
    else:
        own = {
            rank: [dump for dump in candidates if len(claims.get(_process(dump), ())) < 2] or candidates
            for rank, candidates in of_rank.items()
        }
        chosen = _that_fit_together(own, lists)
        _tell_of_others(of_rank, chosen, gaps)
    _set_copies_aside(chosen, doubtful, gaps)
    set_earlier_runs_aside(chosen, lists, gaps)
    return chosen, doubtful


def _that_fit_together(of_rank: Mapping[int, Sequence[RankDump]], lists: RankLists) -> dict[int, RankDump]:
    """Of each rank's dumps the one of the run that most others' are of; of several of one run the last."""
    chosen: dict[int, RankDump] = {}
    for run in runs_of(((rank, dump) for rank, dumps in of_rank.items() for dump in dumps), lists):
        forms = usual_forms(run)
        best: dict[int, tuple[tuple[Any, ...], RankDump]] = {}
        for rank, dump in run.dumps:
            weight = (name_form(dump) in forms, *_preference(dump))
            if rank not in best or weight > best[rank][0]:
                best[rank] = (weight, dump)
        for rank, (_, dump) in best.items():
            chosen.setdefault(rank, dump)
    return {rank: chosen[rank] for rank in of_rank}


def _tell_of_others(of_rank: Mapping[int, Sequence[RankDump]], chosen: Mapping[int, RankDump], gaps: list[str]) -> None:
    """Say which dumps were not used: folder by folder where whole folders were not, else rank by rank."""
    ranks_of: dict[tuple[str, str], list[int]] = {}
    for rank, candidates in of_rank.items():
        used = chosen[rank]
        for dump in candidates:
            if dump is not used and folder_of(dump) != folder_of(used):
                ranks_of.setdefault((folder_of(used), folder_of(dump)), []).append(rank)
    whole = {pair for pair, ranks in ranks_of.items() if len(ranks) >= _WHOLE_FOLDER}
    for used_folder, other_folder in sorted(whole):
        ranks = rank_words(ranks_of[used_folder, other_folder])
        gaps.append(
            f"two folders hold dumps of {ranks}, of two jobs or attempts: those in {_folder_words(used_folder)} "
            f"were used, not those in {_folder_words(other_folder)}"
        )
    for rank, candidates in of_rank.items():
        used = chosen[rank]
        here = folder_of(used)
        others = [d for d in candidates if d is not used and (here, folder_of(d)) not in whole]
        if others:
            names = ", ".join(clean_text(d.artefact, 80) for d in others[:3])
            shown = clean_text(used.artefact)
            gaps.append(f"rank {rank} left {len(candidates)} dumps; {shown} was used, not {names}")


def _folder_words(folder: str) -> str:
    return clean_text(folder, 120) or "the folder given"


def _set_copies_aside(chosen: dict[int, RankDump], doubtful: dict[int, RankDump], gaps: list[str]) -> None:
    of_process: dict[Any, list[int]] = {}
    for rank, dump in chosen.items():
        if (process := _process(dump)) is not None:
            of_process.setdefault(process, []).append(rank)
    for ranks in of_process.values():
        if len(ranks) < 2:
            continue
        names = ", ".join(clean_text(chosen[rank].artefact, 80) for rank in sorted(ranks)[:4])
        gaps.append(f"{names}: hold the same calls of one process under {len(ranks)} ranks' names; none was used")
        doubtful.update({rank: chosen.pop(rank) for rank in ranks})


def _process(dump: RankDump) -> Any:
    """What two processes never have in common: when, to the nanosecond, they made their first calls."""
    times = dump.summary["first_ns"]
    return tuple(times) if len(times) > 1 else None


def _is_foreign(rank: int, dump: RankDump, lists: RankLists) -> bool:
    listed = [ranks for row in dump.summary["config"] if (ranks := lists.of(row[3]))]
    return bool(listed) and not any(rank in ranks.members for ranks in listed)


def _preference(dump: RankDump) -> tuple[int, int, str]:
    return (_extent(dump.summary), dump.summary["n_entries"], dump.artefact)


def _extent(summary: Mapping[str, Any]) -> int:
    """How far a dump reaches: the latest creation time in it, else how many calls its status counts."""
    latest = max((track["last_ms"] for track in summary["tracks"]), default=0)
    return latest or sum(as_int(row[1]) or 0 for row in summary["status"])


def _rank_by_groups(dump: RankDump, lists: RankLists) -> int | None:
    """The only rank that is in all groups which the dump's own process belongs to, if there is just one."""
    common: frozenset[int] | None = None
    for row in dump.summary["config"][:256]:
        if (ranks := lists.of(row[3])) is not None:
            common = ranks.members if common is None else common & ranks.members
    return next(iter(common)) if common is not None and len(common) == 1 else None
