"""Align the calls of a group's ranks and find the first place where they do not fit together.

Ranks are compared as sequences of calls. A rank that lacks one call has all later ones one place early, so what is at
the same sequence number is not the same call; the shift after which the ranks agree again tells a missing call from a
wrong one. With more than two ranks the majority is right; with two the pattern before says who departed from it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchtriage.flight.compare import Comparer, TooMuchWorkError, one_per_calls
from torchtriage.flight.history import CONTINUES
from torchtriage.flight.judge import Judgement, is_settled, judge, left_loop, most_agreeing, place, shift_of
from torchtriage.flight.ops import is_barrier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.flight.compare import Level
    from torchtriage.flight.judge import Shift
    from torchtriage.flight.model import Calls, Group, Track, Vocabulary

MAX_SITE_TRIES = 8
MAX_SETTLED = 64
MIN_SEEN = 2


@dataclass(frozen=True)
class Departure:
    """Ranks that depart from their peers at one call of a group.

    ``kind`` is a divergence kind; ``witness`` and ``deviator`` are the two tracks that evidence quotes; ``seq`` is
    where both stand; ``shift`` how many calls are missing or extra (0: none); ``sure``: it is known who deviates.
    """

    kind: str
    ranks: tuple[int, ...]
    seq: int
    witness: Track
    deviator: Track
    shift: int = 0
    sure: bool = True
    left_loop: bool = False
    peers_left_loop: bool = False
    conserved: bool = False
    """Found by sums over all members, which need no later call to be right."""


@dataclass
class Comparison:
    """What comparing a group's tracks gave: the first departures that count, and what cannot be one.

    ``settled``: differences in calls that all members finished and went on after; ``undecided``: differences after
    which the end of a damaged dump is missing, so that nobody can tell what they are.
    """

    departures: list[Departure] = field(default_factory=list[Departure])
    settled: list[Departure] = field(default_factory=list[Departure])
    undecided: list[Departure] = field(default_factory=list[Departure])


def find_departures(group: Group, vocabulary: Vocabulary, check_conserved: bool = True) -> Comparison:
    """The first divergence of a group: one entry per kind and place of the ranks that deviate; empty when all agree.

    Raises:
        TooMuchWorkError: the calls are too irregular to be compared in bounded time.
    """
    tracks = group.tracks
    found = _compared(tracks, len(group.ranks), Comparer(vocabulary), vocabulary, check_conserved)
    whole = [track for track in tracks if not track.cut]
    if found.undecided and len(whole) > 1:
        among_whole = _compared(whole, len(group.ranks), Comparer(vocabulary), vocabulary, check_conserved)
        found.departures = among_whole.departures
    return found


def _compared(
    tracks: Sequence[Track], n_ranks: int, comparer: Comparer, vocabulary: Vocabulary, check_conserved: bool
) -> Comparison:
    result = Comparison()
    if len(tracks) < 2:
        return result
    start = max(track.first_whole for track in tracks)
    conserved = check_conserved and len(tracks) == n_ranks
    for _ in range(MAX_SETTLED):
        found = _first_departures(tracks, start, comparer, vocabulary, conserved)
        if not found or any(d.shift for d in found) or not is_settled(found[0].seq, one_per_calls(tracks)):
            decided = all(_can_be_judged(d, tracks, comparer) for d in found)
            return replace(result, departures=found) if decided else replace(result, undecided=found)
        result.settled += found
        start = found[0].seq + 1
    raise TooMuchWorkError


def _first_departures(
    tracks: Sequence[Track], start: int, comparer: Comparer, vocabulary: Vocabulary, check_conserved: bool
) -> list[Departure]:
    hard = comparer.hard.first_difference(tracks, start)
    end = hard if hard is not None else max(track.last for track in tracks) + 1
    unequal = _first_unconserved(tracks, start, end, vocabulary) if check_conserved else None
    if unequal is not None:
        # A call that one rank lacks brings other all-to-alls together than were meant to meet: their places say so.
        shifted = _shifted_by_site(tracks, start, unequal + 1, comparer.place)
        return shifted or [_unconserved_at(unequal, tracks)]
    if shifted := _shifted_by_site(tracks, start, end, comparer.soft):
        return shifted
    return [] if hard is None else _depart_at(hard, tracks, vocabulary, comparer)


def _can_be_judged(departure: Departure, tracks: Sequence[Track], comparer: Comparer) -> bool:
    """Whether lost ends of the tracks cannot change what kind of departure it is, and whose."""
    seq, witness, ranks = departure.seq, departure.witness, frozenset(departure.ranks)
    deviating = [t for t in tracks if t.rank in ranks]
    if departure.conserved or not (witness.cut or any(t.cut for t in deviating)):
        return True
    for calls in one_per_calls([t for t in deviating if t.cut or witness.cut]):
        if departure.shift:
            kinds = most_agreeing(seq, witness.calls, calls, comparer.hard)
            if len(kinds) != 1 or max(kinds.values()) < MIN_SEEN:
                return False
        elif comparer.hard.agree_after(seq, witness.calls, calls) < MIN_SEEN:
            return False
    return True


def n_compared(group: Group) -> int:
    """How many calls of the group at least two dumps hold."""
    tracks = group.tracks
    if len(tracks) < 2:
        return 0
    lasts = sorted(track.last for track in tracks)
    return max(0, lasts[-2] - max(track.first_whole for track in tracks) + 1)


def _first_unconserved(tracks: Sequence[Track], start: int, end: int, vocabulary: Vocabulary) -> int | None:
    """The first all-to-all at which the members together send another number of elements than they receive."""
    moved = vocabulary.moved
    if not any(moved):
        return None
    histories = Counter(track.calls for track in tracks)
    for seq in range(start, min(end, min(calls.last for calls in histories) + 1)):
        sums = [(moved[calls.soft[seq - calls.first]], n) for calls, n in histories.items()]
        if sums[0][0] is None:
            continue
        known = [(total, n) for total, n in sums if total is not None]
        if len(known) == len(sums) and sum(t[0] * n for t, n in known) != sum(t[1] * n for t, n in known):
            return seq
    return None


def _unconserved_at(seq: int, tracks: Sequence[Track]) -> Departure:
    """Name the rank whose call departs from its own earlier ones while the others' does not."""
    places = {calls: place(calls, seq) for calls in one_per_calls(tracks)}
    odd = [track for track in tracks if places[track.calls] < CONTINUES]
    sure = 0 < len(odd) < len(tracks) and len(odd) * 2 <= len(tracks)
    deviators = odd if sure else list(tracks)
    witness = next(t for t in tracks if places[t.calls] == CONTINUES) if sure else tracks[-1]
    return Departure(
        "size_mismatch", tuple(t.rank for t in deviators), seq, witness, deviators[0], sure=sure, conserved=True
    )


def _shifted_by_site(tracks: Sequence[Track], start: int, end: int, level: Level) -> list[Departure]:
    """Missing or extra calls that only the call sites show: the calls before ``end`` fit together as such.

    Accepted only when a shift makes all later calls agree, call sites included: code that differs by rank ("if rank ==
    0") has other sites on purpose.
    """
    alike = list(tracks)
    for _ in range(MAX_SITE_TRIES):
        at = level.first_difference(alike, start) if len(alike) > 1 else None
        if at is None or at >= end:
            return []
        found = _by_shift(at, alike, level)
        if found and all(_earlier_sites_equal(d, start, level) for d in found):
            return found
        _, others, _ = _sides(at, alike, level)
        left_out = {track.rank for track in others}
        alike = [track for track in alike if track.rank not in left_out]
    return []


def _earlier_sites_equal(departure: Departure, start: int, level: Level) -> bool:
    a, b = departure.witness.calls, departure.deviator.calls
    n = departure.seq - start
    return n > 0 and level.mismatch(a, start - a.first, b, start - b.first, n) is None


def _by_shift(seq: int, tracks: Sequence[Track], level: Level) -> list[Departure]:
    """Departures at ``seq`` that a shift of call sites explains for every deviating rank; else none."""
    witness_side, deviating, sure = _sides(seq, tracks, level)
    if not witness_side:
        return []
    witness = max(witness_side, key=_fullness)
    shifts: dict[Calls, Shift | None] = {}
    found: dict[tuple[str, int], list[Track]] = {}
    for track in deviating:
        if track.calls not in shifts:
            shifts[track.calls] = shift_of(seq, witness.calls, track.calls, level)
        shift = shifts[track.calls]
        # One call that agrees may be chance, unless the shift also brings the ends together.
        if shift is None or (shift.agreeing < 2 and abs(witness.last - track.last) != shift.n_calls):
            return []
        found.setdefault((shift.kind, shift.n_calls), []).append(track)
    if not sure:
        return [_unsure_shift(seq, key, witness, group[0]) for key, group in found.items()]
    return [
        Departure(kind, tuple(t.rank for t in group), seq, witness, group[0], shift)
        for (kind, shift), group in sorted(found.items())
    ]


def _unsure_shift(seq: int, key: tuple[str, int], witness: Track, track: Track) -> Departure:
    """Two ranks and no pattern: skipping is the commoner fault, so the one that lacks the call is named."""
    kind, shift = key
    if kind == "collective_extra":
        witness, track = track, witness
    return Departure("collective_missing", (track.rank,), seq, witness, track, shift, sure=False)


def _sides(seq: int, tracks: Sequence[Track], level: Level) -> tuple[list[Track], list[Track], bool]:
    """(those whose call at ``seq`` is right, those whose call is not, whether that is known)."""
    ordered = level.sides(seq, tracks)
    if not ordered:
        return [], [], False
    best = len(ordered[0])
    rivals = [side for side in ordered if len(side) == best]
    sure = len(rivals) == 1
    right = ordered[0]
    if not sure:
        places = [place(side[0].calls, seq) for side in rivals]
        top = max(places)
        sure = places.count(top) == 1
        if sure:
            right = rivals[places.index(top)]
    return right, [track for side in ordered if side is not right for track in side], sure


def _depart_at(seq: int, tracks: Sequence[Track], vocabulary: Vocabulary, comparer: Comparer) -> list[Departure]:
    """Judge the calls at the first sequence number where they do not fit together."""
    witness_side, deviating, sure = _sides(seq, tracks, comparer.hard)
    if not deviating:
        return []
    witness = max(witness_side, key=_fullness)
    judged = {calls: judge(seq, witness.calls, calls, vocabulary, comparer) for calls in one_per_calls(deviating)}
    found: dict[Judgement, list[Track]] = {}
    for track in deviating:
        one = judged[track.calls]
        if not sure and one.kind in ("collective_missing", "collective_extra"):
            return [_unsure_shift(seq, (one.kind, one.shift), witness, track)]
        found.setdefault(one, []).append(track)
    return [
        Departure(
            one.kind,
            tuple(t.rank for t in group),
            seq,
            witness,
            group[0],
            one.shift,
            sure=sure,
            left_loop=one.left_loop and not one.shift,
            peers_left_loop=not one.left_loop
            and not one.shift
            and left_loop(seq, witness.calls, group[0].calls, vocabulary, comparer),
        )
        for one, group in sorted(found.items(), key=lambda item: item[1][0].rank)
    ]


def _fullness(track: Track) -> tuple[bool, int, int]:
    """The better witness: whole, then the one that reaches further, then the lower rank."""
    return (not track.cut, track.last, -track.rank)


def is_barrier_call(track: Track, seq: int, vocabulary: Vocabulary) -> bool:
    """Whether the call is a barrier."""
    return is_barrier(vocabulary.calls[track.soft_at(seq)].signatures[0].op)
