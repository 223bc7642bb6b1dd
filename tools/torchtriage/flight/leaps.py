"""Sequence numbers and group ids that damage has changed, found by what stands around them.

The calls of a group are numbered without holes and a dump leaves calls out only at its front, or all finished ones, so
the record ids (else the places) of two entries say by how much their numbers can differ at most. What a neighbour
on each side refutes is known to be damage. A leap with nothing behind it may also be calls that are never recorded
(those of a captured graph): there the peers tell, who would have the same leap. Which calls were lost is never guessed.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise
from operator import gt
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.columns import Columns, pack_columns, unpack_column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchtriage.flight.model import RankDump

MAX_LEAPS = 16
MAX_STRAYS = 2
"""More entries than this under another id of a group are a group of their own."""
MAX_PEERS = 64
_Row = tuple[int, int, int, int, int]
_Key = tuple[str, str, Any]


def fold_strays(groups: dict[tuple[str, str, int], Columns], known: set[int]) -> tuple[int, bool]:
    """Put single entries with an id that no group has back where their numbers fit; else leave them out.

    Returns:
        how many were left out, and whether one of those was the last of its group.
    """
    n_odd, at_end = 0, False
    for key in [key for key in groups if key[2] not in known] if known else ():
        stray = groups[key]
        homes = [other for other in groups if other[:2] == key[:2] and other[2] in known]
        if len(homes) != 1 or stray.n_p2p or not 0 < len(stray.rows) <= MAX_STRAYS:
            continue
        home = groups[homes[0]]
        rows = sorted([*home.rows, *stray.rows])
        numbers = [row[1] for row in rows]
        places = [place for place, row in enumerate(rows) if row in stray.rows]
        if all(place and 0 <= numbers[place] - numbers[place - 1] <= 1 for place in places):
            home.rows = rows
        else:
            n_odd += len(stray.rows)
            at_end |= places[-1] == len(rows) - 1
        del groups[key]
    return n_odd, at_end


def leave_out_odd_numbers(columns: Columns, record_id: Callable[[int], int]) -> int:
    """Forget calls whose number their neighbours refute, who fit each other; returns how many those are."""
    rows = columns.rows
    gone: set[int] = set()
    for at in _steep(rows, record_id):
        for odd in (at, at + 1):
            if 0 < odd < len(rows) - 1 and _refuted(rows[odd - 1], rows[odd], rows[odd + 1], record_id):
                gone.add(odd)
    if gone:
        columns.rows = [row for at, row in enumerate(rows) if at not in gone]
    return len(gone)


def leaps_of(columns: Columns, record_id: Callable[[int], int]) -> list[list[int]]:
    """Where the numbers rise by more than the entries between allow, as [rows before it, last number, next number]."""
    rows = columns.rows
    found = _steep(rows, record_id)
    if not found:
        return []
    epoch = max((at for at in range(1, len(rows)) if rows[at][1] < rows[at - 1][1]), default=0)
    return [[at + 1, rows[at][1], rows[at + 1][1]] for at in found if at >= epoch][-MAX_LEAPS:]


def _steep(rows: Sequence[_Row], record_id: Callable[[int], int]) -> list[int]:
    """Rows after which the number rises by more than the entries between allow."""
    ahead = [row[1] - row[0] for row in rows]
    if not any(map(gt, islice(ahead, 1, None), ahead)):
        return []  # the usual case
    return [
        at
        for at in range(len(rows) - 1)
        if ahead[at + 1] > ahead[at] and rows[at + 1][1] - rows[at][1] > _room(rows[at], rows[at + 1], record_id)
    ][-4 * MAX_LEAPS :]


def _room(one: _Row, other: _Row, record_id: Callable[[int], int]) -> int:
    return max(other[0] - one[0], record_id(other[0]) - record_id(one[0]))


def _refuted(before: _Row, odd: _Row, after: _Row, record_id: Callable[[int], int]) -> bool:
    # Of two threads that call at once the numbers may be swapped: then the neighbours leave no room between them.
    rise = after[1] - before[1]
    return 2 <= rise <= _room(before, after, record_id) and not before[1] <= odd[1] <= after[1]


def settle_leaps(dumps: Mapping[int, RankDump], gaps: list[str]) -> dict[int, RankDump]:
    """The dumps without what lies beyond leaps that their peers' calls refute; those count as damaged."""
    settled = dict(dumps)
    leaping = [rank for rank, dump in dumps.items() if any(track["leaps"] for track in dump.summary["tracks"])]
    if not leaping:
        return settled
    peers: dict[_Key, dict[Any, Sequence[int]]] = {}
    for dump in dumps.values():
        for track in dump.summary["tracks"]:
            of_group = peers.setdefault(_key(dump, track), {})
            if len(of_group) < MAX_PEERS and (text := (track["n"], *track["seq"])) not in of_group:
                of_group[text] = _newest_epoch(unpack_column(track["seq"], track["n"]))
    for rank in leaping:
        settled[rank] = _settled(dumps[rank], peers, gaps)
    return settled


def _key(dump: RankDump, track: Mapping[str, Any]) -> _Key:
    packed = next((row[3] for row in dump.summary["config"] if row[0] == track["name"]), "")
    return (track["name"], track["desc"], packed if isinstance(packed, str) else tuple(packed))


def _newest_epoch(numbers: Sequence[int]) -> Sequence[int]:
    if isinstance(numbers, range):
        return numbers
    return numbers[max((at for at in range(1, len(numbers)) if numbers[at] < numbers[at - 1]), default=0) :]


def _settled(dump: RankDump, peers: Mapping[_Key, Mapping[Any, Sequence[int]]], gaps: list[str]) -> RankDump:
    summary = dict(dump.summary)
    tracks: list[dict[str, Any]] = []
    for track in summary["tracks"]:
        others = peers[_key(dump, track)].values()
        # Its own numbers are among these, and have none within its own leaps.
        refuted = [leap for leap in track["leaps"] if any(_has_within(leap, numbers) for numbers in others)]
        if not refuted:
            tracks.append(track)
            continue
        ends = [0, *(leap[0] for leap in refuted), track["n"]]
        start, end = max(pairwise(ends), key=lambda part: part[1] - part[0])
        tracks.append(_part(track, start, end))
        summary["damaged"] = True
        summary["cut"] |= end < track["n"]
        summary["first_id"] = max(summary["first_id"], int(start > 0))
        _, last, following = refuted[0]
        gaps.append(
            f"{clean_text(dump.artefact)}: its calls of group {clean_text(track['name'], 80)} are numbered {last} and "
            f"then {following}, which the peers' calls refute; {track['n'] - end + start} of them were left out"
        )
    summary["tracks"] = tracks
    return replace(dump, summary=summary)


def _has_within(leap: Sequence[int], numbers: Sequence[int]) -> bool:
    _, last, following = leap
    return any(last < number < following for number in numbers)


def _part(track: Mapping[str, Any], start: int, end: int) -> dict[str, Any]:
    """The same columns, only of the rows from ``start`` up to ``end``."""
    n, base_ms = track["n"], track["base_ms"]
    columns = Columns(track["name"], track["desc"], track["uid"])
    unpacked = [unpack_column(track[name], n) for name in ("index", "seq", "token", "finished", "ms")]
    columns.rows = [
        (index, seq, token, finished, base_ms + ms - 1 if ms else 0)
        for index, seq, token, finished, ms in islice(zip(*unpacked, strict=True), start, end)
    ]
    columns.p2p.extend(track["p2p"])
    columns.n_p2p = track["n_p2p"]
    return {**pack_columns(columns), "open_batches": track["open_batches"]}
