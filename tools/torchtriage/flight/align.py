"""Align the calls of a group's ranks and find the first place where they do not fit together.

Ranks are compared as sequences of calls. A rank that lacks one call has all later ones one place early, so what is at
the same sequence number is not the same call; the shift after which the ranks agree again tells a missing call from a
wrong one. With more than two ranks the majority is right; with two the pattern before says who departed from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchtriage.flight.compare import Comparer, TooMuchWorkError
from torchtriage.flight.history import CONTINUES, MAX_HISTORY, followers, place_of
from torchtriage.flight.ops import how_they_differ, is_barrier

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from torchtriage.flight.model import Group, Track, Vocabulary

MAX_SHIFT = 256
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
    tracks = [track for track in group.tracks if len(track.soft)]
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
    start = max(track.first for track in tracks)
    conserved = check_conserved and len(tracks) == n_ranks
    for _ in range(MAX_SETTLED):
        found = _first_departures(tracks, start, comparer, vocabulary, conserved)
        if not found or any(d.shift for d in found) or not _is_settled(found[0].seq, tracks):
            decided = all(_can_be_judged(d, tracks, comparer) for d in found)
            return replace(result, departures=found) if decided else replace(result, undecided=found)
        result.settled += found
        start = found[0].seq + 1
    raise TooMuchWorkError


def _first_departures(
    tracks: Sequence[Track], start: int, comparer: Comparer, vocabulary: Vocabulary, check_conserved: bool
) -> list[Departure]:
    hard = comparer.first_difference(tracks, start, hard=True)
    end = hard if hard is not None else max(track.last for track in tracks) + 1
    if check_conserved and (unequal := _first_unconserved(tracks, start, end, vocabulary)) is not None:
        return [_unconserved_at(unequal, tracks)]
    if shifted := _shifted_by_site(tracks, start, end, comparer):
        return shifted
    return [] if hard is None else _depart_at(hard, tracks, vocabulary, comparer)


def _is_settled(seq: int, tracks: Sequence[Track]) -> bool:
    """Whether all finished the call and the one after it: what they then hang in is not the difference in this one."""
    return all(
        track.last > seq and track.all_known and (track.first_unfinished is None or track.first_unfinished > seq + 1)
        for track in tracks
    )


def _can_be_judged(departure: Departure, tracks: Sequence[Track], comparer: Comparer) -> bool:
    """Whether lost ends of the tracks cannot change what kind of departure it is, and whose."""
    cut = [t for t in tracks if t.cut and (t.rank in departure.ranks or t is departure.witness)]
    if not cut or departure.conserved:
        return True
    for track in [t for t in tracks if t.rank in departure.ranks and (t.cut or departure.witness.cut)]:
        if departure.shift:
            kinds = _shifts(departure.seq, departure.witness, track, comparer)
            if len(kinds) != 1 or max(kinds.values()) < MIN_SEEN:
                return False
        elif comparer.agree_after(departure.seq, departure.witness, track) < MIN_SEEN:
            return False
    return True


def _shifts(seq: int, witness: Track, track: Track, comparer: Comparer) -> dict[str, int]:
    """The most agreeing calls per kind of shift, over all shifts."""
    at_w, at_t = seq - witness.first, seq - track.first
    best: dict[str, int] = {}
    for shift in range(1, MAX_SHIFT + 1):
        for kind, i, j in (("collective_missing", shift, 0), ("collective_extra", 0, shift)):
            agreeing = comparer.agree(witness.hard, at_w + i, track.hard, at_t + j, hard=True)
            if agreeing:
                best[kind] = max(agreeing, best.get(kind, 0))
        if at_w + shift >= len(witness.hard) and at_t + shift >= len(track.hard):
            break
    return best


def n_compared(group: Group) -> int:
    """How many calls of the group at least two dumps hold."""
    tracks = group.tracks
    if len(tracks) < 2:
        return 0
    lasts = sorted(track.last for track in tracks)
    return max(0, lasts[-2] - max(track.first for track in tracks) + 1)


def _first_unconserved(tracks: Sequence[Track], start: int, end: int, vocabulary: Vocabulary) -> int | None:
    """The first all-to-all at which the members together send another number of elements than they receive."""
    moved = vocabulary.moved
    for seq in range(start, min(end, min(track.last for track in tracks) + 1)):
        if moved[tracks[0].soft_at(seq)] is None:
            continue
        totals = [moved[track.soft_at(seq)] for track in tracks]
        known = [total for total in totals if total is not None]
        if len(known) == len(totals) and sum(s for s, _ in known) != sum(r for _, r in known):
            return seq
    return None


def _unconserved_at(seq: int, tracks: Sequence[Track]) -> Departure:
    """Name the rank whose call departs from its own earlier ones while the others' does not."""
    places = {track.rank: place_of(track.soft_at(seq), _history(track, seq)) for track in tracks}
    odd = [track for track in tracks if places[track.rank] < CONTINUES]
    sure = 0 < len(odd) < len(tracks) and len(odd) * 2 <= len(tracks)
    deviators = odd if sure else list(tracks)
    deviator = deviators[0]
    witness = next((t for t in tracks if t not in deviators), tracks[-1])
    return Departure(
        "size_mismatch", tuple(t.rank for t in deviators), seq, witness, deviator, sure=sure, conserved=True
    )


def _history(track: Track, seq: int) -> array[int]:
    return track.soft[: max(0, seq - track.first)]


def _shifted_by_site(tracks: Sequence[Track], start: int, end: int, comparer: Comparer) -> list[Departure]:
    """Missing or extra calls that only the call sites show: the calls before ``end`` fit together as such.

    Accepted only when a shift makes all later calls agree, call sites included: code that differs by rank ("if rank ==
    0") has other sites on purpose.
    """
    alike = list(tracks)
    for _ in range(MAX_SITE_TRIES):
        at = comparer.first_difference(alike, start, hard=False) if len(alike) > 1 else None
        if at is None or at >= end:
            return []
        found = _by_shift(at, alike, comparer)
        if found and all(_earlier_sites_equal(d, start, comparer) for d in found):
            return found
        _, others, _ = _sides(at, alike, comparer, hard=False)
        alike = [track for track in alike if track not in others]
    return []


def _earlier_sites_equal(departure: Departure, start: int, comparer: Comparer) -> bool:
    a, b = departure.witness, departure.deviator
    n = departure.seq - start
    return n > 0 and comparer.mismatch(a.soft, start - a.first, b.soft, start - b.first, n, hard=False) is None


def _by_shift(seq: int, tracks: Sequence[Track], comparer: Comparer) -> list[Departure]:
    """Departures at ``seq`` that a shift of call sites explains for every deviating rank; else none."""
    witness_side, deviating, sure = _sides(seq, tracks, comparer, hard=False)
    if not witness_side:
        return []
    witness = max(witness_side, key=_fullness)
    found: dict[tuple[str, int], list[Track]] = {}
    for track in deviating:
        shift = _shift(seq, witness, track, comparer, hard=False)
        if shift is None:
            return []
        # Without call sites as proof, one agreeing call may be chance.
        if shift[2] < 2 and abs(witness.last - track.last) != shift[1]:
            return []
        found.setdefault(shift[:2], []).append(track)
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


def _sides(
    seq: int, tracks: Sequence[Track], comparer: Comparer, *, hard: bool
) -> tuple[list[Track], list[Track], bool]:
    """(those whose call at ``seq`` is right, those whose call is not, whether that is known)."""
    ordered = comparer.sides([(t, t.hard_at(seq) if hard else t.soft_at(seq)) for t in tracks], hard=hard)
    if not ordered:
        return [], [], False
    best = len(ordered[0])
    rivals = [side for side in ordered if len(side) == best]
    sure = len(rivals) == 1
    right = ordered[0]
    if not sure:
        places = [place_of(side[0].soft_at(seq), _history(side[0], seq)) for side in rivals]
        top = max(places)
        sure = places.count(top) == 1
        if sure:
            right = rivals[places.index(top)]
    return right, [track for side in ordered if side is not right for track in side], sure


def _shift(seq: int, witness: Track, track: Track, comparer: Comparer, *, hard: bool) -> tuple[str, int, int] | None:
    """(kind, number of calls, agreeing calls after them) of the shift after which most calls agree, to the end.

    A loop agrees with itself at many shifts; the right one also brings the ends together. Of equals the smallest.
    Call sites must agree as well where that is possible; ``hard`` allows agreement without them.
    """
    at_w, at_t = seq - witness.first, seq - track.first
    for by_hard in (False, True) if hard else (False,):
        theirs, ours = (track.hard, witness.hard) if by_hard else (track.soft, witness.soft)
        best: tuple[str, int, int] | None = None
        for shift in range(1, MAX_SHIFT + 1):
            for kind, agreeing in (
                ("collective_missing", comparer.agree(ours, at_w + shift, theirs, at_t, hard=by_hard)),
                ("collective_extra", comparer.agree(ours, at_w, theirs, at_t + shift, hard=by_hard)),
            ):
                if agreeing > (best[2] if best else 0):
                    best = (kind, shift, agreeing)
            if at_w + shift >= len(ours) and at_t + shift >= len(theirs):
                break
        if best is not None:
            return best
    return None


def _depart_at(seq: int, tracks: Sequence[Track], vocabulary: Vocabulary, comparer: Comparer) -> list[Departure]:
    """Judge the calls at the first sequence number where they do not fit together."""
    witness_side, deviating, sure = _sides(seq, tracks, comparer, hard=True)
    if not deviating:
        return []
    witness = max(witness_side, key=_fullness)
    found: dict[tuple[str, int, bool], list[Track]] = {}
    swap: Departure | None = None
    for track in deviating:
        kind, shift = _judge(seq, witness, track, vocabulary, comparer)
        if not sure and kind in ("collective_missing", "collective_extra"):
            swap = swap or _unsure_shift(seq, (kind, shift), witness, track)
        left = kind != "dtype_mismatch" and _left_loop(seq, track, witness, vocabulary, comparer)
        found.setdefault((kind, shift, left), []).append(track)
    if swap is not None:
        return [swap]
    return [
        Departure(
            kind,
            tuple(t.rank for t in group),
            seq,
            witness,
            group[0],
            shift,
            sure=sure,
            left_loop=left and not shift,
            peers_left_loop=not left and not shift and _left_loop(seq, witness, group[0], vocabulary, comparer),
        )
        for (kind, shift, left), group in sorted(found.items(), key=lambda item: item[1][0].rank)
    ]


def _judge(seq: int, witness: Track, track: Track, vocabulary: Vocabulary, comparer: Comparer) -> tuple[str, int]:
    """(kind, number of missing or extra calls) of one rank's departure."""
    kind = how_they_differ(
        vocabulary.calls[witness.soft_at(seq)].signatures, vocabulary.calls[track.soft_at(seq)].signatures
    )
    # A call that is only of another size, after which both go on alike, is a wrong call and not a missing one.
    if comparer.agree_after(seq, witness, track):
        return kind, 0
    # Where all finished and the next calls fit as they are, one call differs and none is missing.
    if _is_settled(seq, (witness, track)) and comparer.fits(
        witness.hard_at(seq + 1), track.hard_at(seq + 1), hard=True
    ):
        return kind, 0
    shift = _shift(seq, witness, track, comparer, hard=True)
    if shift is not None:
        return shift[0], shift[1]
    if _skipped_by_pattern(seq, witness, track):
        return "collective_missing", 1
    return kind, 0


def _skipped_by_pattern(seq: int, witness: Track, track: Track) -> bool:
    """Whether the rank did what the pattern has right after the expected call; the peers still wait in that one."""
    history = _history(track, seq)
    found = track.soft_at(seq)
    expected = witness.soft_at(seq)
    return (
        found in history
        and expected in history
        and found not in followers(history)
        and found in followers([*history, expected])
    )


def _left_loop(seq: int, track: Track, other: Track, vocabulary: Vocabulary, comparer: Comparer) -> bool:
    """Whether a rank went on to another part of the program while its peers go on with what all of them did before.

    New sizes at a place where it called before are not that, nor is a call after which both go on alike.
    """
    history = _history(track, seq)
    if len(history) < 2 or comparer.agree_after(seq, other, track):
        return False
    call = vocabulary.calls[track.soft_at(seq)]
    before = [vocabulary.calls[soft] for soft in set(history[-MAX_HISTORY:])]
    seen = any((c.site == call.site if call.site else c.op == call.op) for c in before)
    return not seen and place_of(other.soft_at(seq), _history(other, seq)) == CONTINUES


def _fullness(track: Track) -> tuple[bool, int, int]:
    """The better witness: whole, then the one that reaches further, then the lower rank."""
    return (not track.cut, track.last, -track.rank)


def is_barrier_call(track: Track, seq: int, vocabulary: Vocabulary) -> bool:
    """Whether the call is a barrier."""
    return is_barrier(vocabulary.calls[track.soft_at(seq)].signatures[0].op)
