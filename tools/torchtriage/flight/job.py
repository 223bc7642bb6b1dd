"""Build the job from the dumps' summaries: one dump per rank, groups by name and ranks, tracks by sequence number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.choose import one_per_rank
from torchtriage.flight.disputes import settle_disputes
from torchtriage.flight.leaps import settle_leaps
from torchtriage.flight.model import Group, Member, RankDump, Track, Vocabulary
from torchtriage.flight.rank_lists import MAX_LISTED_RANKS, RankList, RankLists
from torchtriage.flight.shared import Shared
from torchtriage.flight.tables import as_int

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    _Groups = dict[tuple[str, RankList], Group]

MAX_SAME_NAME = 256


@dataclass
class Job:
    """All groups, the vocabulary, and what could not be used."""

    groups: list[Group]
    vocabulary: Vocabulary
    dumps: dict[int, RankDump]
    gaps: list[str]


def build_job(dumps: Sequence[RankDump]) -> Job:
    """Sort the dumps' columns into groups; one dump per rank, the one that saw most."""
    gaps: list[str] = []
    lists = RankLists()
    chosen, doubtful = one_per_rank(dumps, lists, gaps)
    chosen = settle_leaps(chosen, gaps)
    vocabulary = Vocabulary()
    shared = Shared(vocabulary)
    groups: _Groups = {}
    unlisted: dict[tuple[str, str], list[Member]] = {}
    whole = _hold_finished_calls(chosen.values())
    for rank in sorted(chosen):
        dump = chosen[rank]
        shown = clean_text(dump.artefact)
        gaps.extend(f"{shown}: {clean_text(str(note))}" for note in dump.summary["notes"][:4])
        if dump.summary["cut"]:
            gaps.append(
                f"{shown}: what rank {rank} did after its last whole entry is lost, so it is neither counted as behind "
                "nor as finished there"
            )
        try:
            _add_dump(rank, dump, shared, lists, groups, unlisted, gaps, whole=whole)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            gaps.append(f"{shown}: its summary does not fit together ({type(error).__name__}); not used")
    settle_disputes(groups, gaps)
    _pair_as_peers(groups.values())
    if not whole:
        _leave_out_finished_batches(groups.values())
    _add_doubtful(doubtful, lists, groups)
    _join_by_name(unlisted, groups)
    _add_lost({rank: dump for rank, dump in chosen.items() if dump.summary["cut"]}, groups)
    if lists.n_refused:
        gaps.append(
            f"the process groups list more than {MAX_LISTED_RANKS} ranks in all; {lists.n_refused} lists were not read"
        )
    for (name, desc), members in sorted(unlisted.items()):
        if not members:
            continue
        listed = lists.listed(sorted(member.rank for member in members))
        groups.setdefault((name, listed), Group(name, desc, listed.ranks, {member.rank: member for member in members}))
    ordered = sorted(groups.values(), key=lambda g: (_as_number(g.name), g.name, g.ranks))
    return Job(ordered, vocabulary, chosen, gaps)


def _hold_finished_calls(dumps: Iterable[RankDump]) -> bool:
    """Whether the dumps are of all calls and not of active ones alone: where one holds finished calls, all would.

    A small ring buffer may hold none either; then all ranks' dumps have its size.
    """
    summaries = [dump.summary for dump in dumps if dump.summary["n_entries"]]
    if any(summary["any_finished"] for summary in summaries):
        return True
    sizes = {summary["n_entries"] for summary in summaries}
    return len(sizes) == 1 and len(summaries) > 1 and not any(s["n_skipped"] or not s["first_id"] for s in summaries)


def _as_number(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 18 else 1 << 60


def _add_doubtful(doubtful: Mapping[int, RankDump], lists: RankLists, groups: _Groups) -> None:
    """Members of which nothing is known, but that did leave a dump."""
    for rank, dump in doubtful.items():
        for key, name, desc, text in dump.summary["config"]:
            listed = lists.of(text)
            if listed is not None and rank in listed.members:
                _group(groups, key or name or "0", desc, listed).members.setdefault(rank, Member(rank, dump))


def _group(groups: _Groups, name: str, desc: str, listed: RankList) -> Group:
    """The group of that name and those ranks: groups of a split share a name."""
    found = groups.get((name, listed))
    if found is None:
        found = groups[name, listed] = Group(name, desc, listed.ranks)
    return found


def _add_lost(cut: Mapping[int, RankDump], groups: _Groups) -> None:
    """Ranks whose damaged dump does not get as far as their groups: they did leave a dump."""
    for group in groups.values() if cut else ():
        for rank in cut.keys() & set(group.ranks):
            group.members.setdefault(rank, Member(rank, cut[rank]))


def _join_by_name(unlisted: Mapping[tuple[str, str], list[Member]], groups: _Groups) -> None:
    """Put members whose own dump does not list their group's ranks into the one group of that name that has them."""
    of_name: dict[str, list[tuple[RankList, Group]]] = {}
    for (name, listed), group in groups.items():
        of_name.setdefault(name, []).append((listed, group))
    for (name, _), members in unlisted.items():
        for member in list(members):
            fitting = [g for listed, g in of_name.get(name, [])[:MAX_SAME_NAME] if member.rank in listed.members]
            if len(fitting) == 1 and member.rank not in fitting[0].members:
                fitting[0].members[member.rank] = member
                members.remove(member)


def _add_dump(
    rank: int,
    dump: RankDump,
    shared: Shared,
    lists: RankLists,
    groups: _Groups,
    unlisted: dict[tuple[str, str], list[Member]],
    gaps: list[str],
    *,
    whole: bool,
) -> None:
    summary = dump.summary
    tables = shared.tables(summary["tables"])
    members: dict[str, Member] = {}
    foreign: set[str] = set()
    for key, name, desc, text in summary["config"]:
        listed = lists.of(text)
        if listed is None:
            if text and not lists.n_refused:
                shown = clean_text(key or name or "0", 80)
                gaps.append(f"{clean_text(dump.artefact)}: the ranks of its group {shown!r} cannot be read")
            continue
        if rank not in listed.members:
            foreign.add(key)
            continue
        shown = key or name or "0"
        member = members[key] = Member(rank, dump, tables=tables)
        _group(groups, shown, desc, listed).members.setdefault(rank, member)
    uid_of: dict[str, int] = {}
    for track in summary["tracks"]:
        key = _config_key(track["name"], members)
        if key in foreign:
            shown = clean_text(key, 80)
            gaps.append(f"{clean_text(dump.artefact)}: its group {shown!r} does not have rank {rank}; not used for it")
            continue
        member = members.get(key)
        if member is None:
            member = members[key] = Member(rank, dump, tables=tables)
            unlisted.setdefault((track["name"], track["desc"]), []).append(member)
        elif key in uid_of:
            gaps.append(
                f"{clean_text(dump.artefact)}: two groups called {clean_text(key, 80)!r}; the newer one was used"
            )
            if track["uid"] < uid_of[key]:
                continue
        uid_of[key] = track["uid"]
        member.n_p2p = track["n_p2p"]
        member.p2p = track["p2p"]
        member.open_batches = track["open_batches"]
        calls = shared.calls(tables, track)
        if calls is not None:
            lost_before = whole and summary["first_id"] > 0
            torn = lost_before and summary["any_finished"] and track["has_parts"] and calls.index[0] == 0
            member.track = Track(rank, dump, tables, calls, track, bool(summary["cut"]), lost_before, torn)
    for member in members.values():
        member.never_called = whole and not summary["first_id"] and not summary["cut"] and member.track is None
    _pair_status(summary, members, uid_of)


def _leave_out_finished_batches(groups: Iterable[Group]) -> None:
    """Forget what finished batches left in dumps of active calls alone: their sends and receives have no events.

    A rank is known to have nothing open by its counters, or where its peers are seen to batch what they send.
    """
    for group in groups:
        batched = any(member.open_batches is not None for member in group.members.values())
        for member in group.members.values() if group.has_p2p else ():
            enqueued, completed = (as_int(member.status[i]) for i in (1, 3)) if member.status else (None, None)
            if enqueued is not None and enqueued == completed and enqueued > 0:
                member.p2p = []
            elif batched:
                member.p2p = [row for row in member.p2p if row[4] in (member.open_batches or ())]


def _pair_as_peers(groups: Iterable[Group]) -> None:
    """Counters of groups of which a dump holds no calls: ranks of one job create their groups in the same order."""
    uids: dict[str, set[str]] = {}
    groups = list(groups)
    for group in groups:
        for member in group.members.values():
            if member.status is not None:
                uids.setdefault(group.name, set()).add(member.status[0])
    for group in groups:
        (uid, *others) = uids.get(group.name) or ("",)
        for member in group.members.values() if uid and not others else ():
            if member.status is None:
                row = next((row for row in member.dump.summary["status"] if row[0] == uid), None)
                member.status = (row[0], row[1], row[2], row[3]) if row is not None else None


def _config_key(name: str, members: Mapping[str, Member]) -> str:
    """The pg_config key of an entry's group: gloo's config calls its only group "" and its entries "0"."""
    if name in members:
        return name
    return "" if len(members) == 1 and "" in members else name


def _pair_status(summary: Mapping[str, Any], members: dict[str, Member], uid_of: Mapping[str, int]) -> None:
    """pg_status is keyed by process-local numbers, pg_config by names: entries tell the pairs, else their order does.

    Both number the groups in order of creation (asserted on 64 dumps of schema 2.9 against the entries' pg_id).
    """
    rows = {row[0]: (row[0], row[1], row[2], row[3]) for row in summary["status"]}
    pairs = {key: str(uid) for key, uid in uid_of.items() if str(uid) in rows}
    keys = [row[0] for row in summary["config"]]
    if len(keys) == len(rows) and all(k.isdecimal() for k in (*keys, *rows)):
        by_order = dict(zip(sorted(keys, key=_as_number), sorted(rows, key=_as_number), strict=True))
        if all(by_order.get(key, uid) == uid for key, uid in pairs.items()):
            pairs = by_order
    elif len(keys) == len(rows):
        # Which of those left belongs to which does not matter where they say the same.
        left = [uid for uid in rows if uid not in pairs.values()]
        if len({rows[uid][1:] for uid in left}) == 1:
            pairs.update(zip([key for key in keys if key not in pairs], left, strict=False))
    for key, uid in pairs.items():
        if key in members and uid in rows:
            members[key].status = rows[uid]
