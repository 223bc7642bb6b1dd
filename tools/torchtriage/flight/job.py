"""Build the job from the dumps' summaries: one dump per rank, groups by name and ranks, tracks by sequence number."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.choose import MAX_LISTED_RANKS, RankLists, one_per_rank
from torchtriage.flight.columns import UNFINISHED, UNKNOWN, unpack_column
from torchtriage.flight.model import Group, Member, RankDump, Track, Vocabulary, shapes, words
from torchtriage.flight.ops import Signature, op_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    vocabulary = Vocabulary()
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    unlisted: dict[tuple[str, str], list[Member]] = {}
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
            _add_dump(rank, dump, vocabulary, lists, groups, unlisted, gaps)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            gaps.append(f"{shown}: its summary does not fit together ({type(error).__name__}); not used")
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
        ranks = tuple(sorted(member.rank for member in members))
        groups.setdefault((name, ranks), Group(name, desc, ranks, {member.rank: member for member in members}))
    ordered = sorted(groups.values(), key=lambda g: (_as_number(g.name), g.name, g.ranks))
    return Job(ordered, vocabulary, chosen, gaps)


def _as_number(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 18 else 1 << 60


def _add_doubtful(
    doubtful: Mapping[int, RankDump], lists: RankLists, groups: dict[tuple[str, tuple[int, ...]], Group]
) -> None:
    """Members of which nothing is known, but that did leave a dump."""
    for rank, dump in doubtful.items():
        for key, name, desc, text in dump.summary["config"]:
            ranks = lists.of(text)
            if rank in ranks:
                shown = key or name or "0"
                group = groups.setdefault((shown, ranks), Group(shown, desc, ranks))
                group.members.setdefault(rank, Member(rank, dump))


def _add_lost(cut: Mapping[int, RankDump], groups: Mapping[tuple[str, tuple[int, ...]], Group]) -> None:
    """Ranks whose damaged dump does not get as far as their groups: they did leave a dump."""
    for group in groups.values() if cut else ():
        for rank in cut.keys() & set(group.ranks):
            group.members.setdefault(rank, Member(rank, cut[rank]))


def _join_by_name(
    unlisted: Mapping[tuple[str, str], list[Member]], groups: Mapping[tuple[str, tuple[int, ...]], Group]
) -> None:
    """Put members whose own dump does not list their group's ranks into the one group of that name that has them."""
    of_name: dict[str, list[Group]] = {}
    for (name, _), group in groups.items():
        of_name.setdefault(name, []).append(group)
    for (name, _), members in unlisted.items():
        for member in list(members):
            fitting = [g for g in of_name.get(name, [])[:MAX_SAME_NAME] if member.rank in g.ranks]
            if len(fitting) == 1 and member.rank not in fitting[0].members:
                fitting[0].members[member.rank] = member
                members.remove(member)


def _add_dump(
    rank: int,
    dump: RankDump,
    vocabulary: Vocabulary,
    lists: RankLists,
    groups: dict[tuple[str, tuple[int, ...]], Group],
    unlisted: dict[tuple[str, str], list[Member]],
    gaps: list[str],
) -> None:
    summary = dump.summary
    softs = _soft_numbers(summary, vocabulary)
    members: dict[str, Member] = {}
    foreign: set[str] = set()
    for key, name, desc, text in summary["config"]:
        ranks = lists.of(text)
        if not ranks:
            if text and not lists.n_refused:
                shown = clean_text(key or name or "0", 80)
                gaps.append(f"{clean_text(dump.artefact)}: the ranks of its group {shown!r} cannot be read")
            continue
        if rank not in ranks:
            foreign.add(key)
            continue
        shown = key or name or "0"
        member = members[key] = Member(rank, dump)
        groups.setdefault((shown, ranks), Group(shown, desc, ranks)).members.setdefault(rank, member)
    uid_of: dict[str, int] = {}
    for track in summary["tracks"]:
        key = _config_key(track["name"], members)
        if key in foreign:
            shown = clean_text(key, 80)
            gaps.append(f"{clean_text(dump.artefact)}: its group {shown!r} does not have rank {rank}; not used for it")
            continue
        member = members.get(key)
        if member is None:
            member = members[key] = Member(rank, dump)
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
        member.track = _track(rank, dump, track, softs, vocabulary)
    _pair_status(summary, members, uid_of)


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
    elif len(keys) == len(rows) == 1:
        pairs = {keys[0]: next(iter(rows))}
    for key, uid in pairs.items():
        if key in members and uid in rows:
            members[key].status = rows[uid]


def _soft_numbers(summary: Mapping[str, Any], vocabulary: Vocabulary) -> list[int]:
    signatures: list[Signature] = [
        Signature(op_of(name), shapes(ins), shapes(outs), words(in_types), words(out_types))
        for name, ins, outs, in_types, out_types in summary["signatures"]
    ]
    sites: list[tuple[str, str]] = [(row[0], row[3]) for row in summary["sites"]]
    tokens: list[tuple[int, int, str]] = summary["tokens"]
    return [vocabulary.number((signatures[s],), sites[site][0], thread, sites[site][1]) for s, site, thread in tokens]


def _track(
    rank: int, dump: RankDump, packed: Mapping[str, Any], softs: list[int], vocabulary: Vocabulary
) -> Track | None:
    n = packed["n"]
    if not n:
        return None
    seqs = unpack_column(packed["seq"], n)
    tokens = unpack_column(packed["token"], n)
    finished = unpack_column(packed["finished"], n)
    soft = array("I", map(softs.__getitem__, tokens))
    row_of: dict[int, int] | None = None
    first = seqs[0]
    if not isinstance(seqs, range) and n > 1:
        first, soft, row_of = _by_seq(seqs, soft, vocabulary)
    open_seqs = [seqs[i] for i in range(n) if finished[i] == UNFINISHED] if UNFINISHED in finished else []
    if row_of is not None:
        open_seqs = [seq for seq in open_seqs if seq in row_of]
    return Track(
        rank=rank,
        dump=dump,
        first=first,
        soft=soft,
        hard=array("I", map(vocabulary.hard_of.__getitem__, soft)),
        index=unpack_column(packed["index"], n),
        token=tokens,
        ms=unpack_column(packed["ms"], n),
        base_ms=packed["base_ms"],
        row_of=row_of,
        first_unfinished=min(open_seqs, default=None),
        all_known=UNKNOWN not in finished,
        cut=bool(dump.summary["cut"]),
    )


def _by_seq(seqs: Sequence[int], soft: array[int], vocabulary: Vocabulary) -> tuple[int, array[int], dict[int, int]]:
    """Columns by sequence number when entries share one (coalesced calls) or numbers start over (a new epoch)."""
    start = max((i for i in range(1, len(seqs)) if seqs[i] < seqs[i - 1]), default=0)
    rows: dict[int, list[int]] = {}
    for i in range(start, len(seqs)):
        rows.setdefault(seqs[i], []).append(i)
    first, last = min(rows), max(rows)
    if last - first > 4 * len(rows) + 4096:  # numbers that no counter gives: keep what follows the last jump
        ordered = sorted(rows)
        jump = max(range(1, len(ordered)), key=lambda i: ordered[i] - ordered[i - 1])
        rows = {seq: rows[seq] for seq in ordered[jump:]}
        first, last = min(rows), max(rows)
        if last - first > 4 * len(rows) + 4096:
            rows = {last: rows[last]}
            first = last
    column = array("I", bytes(4 * (last - first + 1)))
    for seq, members in rows.items():
        column[seq - first] = soft[members[0]] if len(members) == 1 else vocabulary.merged([soft[i] for i in members])
    return first, column, {seq: members[0] for seq, members in rows.items()}
