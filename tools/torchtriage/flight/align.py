"""Align the calls of a group's ranks and find the first place where they do not fit together.

Ranks are compared as sequences of calls. A rank that lacks one call has all later ones one place early, so what is at
the same sequence number is not the same call; the shift after which the ranks agree again tells a missing call from a
wrong one. With more than two ranks the majority is right; with two the pattern before says who departed from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.flight.history import CONTINUES, MAX_HISTORY, followers, place_of
from torchtriage.flight.ops import how_they_differ, is_barrier

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from torchtriage.flight.model import Group, Track, Vocabulary

MAX_SHIFT = 256
MAX_SITE_TRIES = 8


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


def find_departures(group: Group, vocabulary: Vocabulary, check_conserved: bool = True) -> list[Departure]:
    """The first divergence of a group: one entry per kind and place of the ranks that deviate; empty when all agree."""
    tracks = [track for track in group.tracks if len(track.soft)]
    if len(tracks) < 2:
        return []
    start = max(track.first for track in tracks)
    hard = _first_difference(tracks, start, soft=False)
    end = hard if hard is not None else max(track.last for track in tracks) + 1
    complete = len(tracks) == len(group.ranks)
    if check_conserved and complete and (unequal := _first_unconserved(tracks, start, end, vocabulary)) is not None:
        return [_unconserved_at(unequal, tracks)]
    if shifted := _shifted_by_site(tracks, start, end):
        return shifted
    return [] if hard is None else _depart_at(hard, tracks, vocabulary)


def n_compared(group: Group) -> int:
    """How many calls of the group at least two dumps hold."""
    tracks = group.tracks
    if len(tracks) < 2:
        return 0
    lasts = sorted(track.last for track in tracks)
    return max(0, lasts[-2] - max(track.first for track in tracks) + 1)


def _first_difference(tracks: Sequence[Track], start: int, *, soft: bool) -> int | None:
    """The first sequence number at which two tracks hold different calls."""
    reference = max(tracks, key=lambda t: t.last)
    ours = reference.soft if soft else reference.hard
    best: int | None = None
    for track in tracks:
        if track is reference:
            continue
        theirs = track.soft if soft else track.hard
        end = track.last if best is None else min(track.last, best - 1)
        n = end - start + 1
        if n <= 0:
            continue
        at = _mismatch(ours, start - reference.first, theirs, start - track.first, n)
        if at is not None:
            best = start + at
    return best


def _mismatch(a: array[int], i: int, b: array[int], j: int, n: int) -> int | None:
    """The first offset below ``n`` at which both hold a call and the calls differ."""
    step = 4096
    for offset in range(0, n, step):
        size = min(step, n - offset)
        left = a[i + offset : i + offset + size]
        right = b[j + offset : j + offset + size]
        if left != right:
            for k in range(size):
                if left[k] != right[k] and left[k] and right[k]:
                    return offset + k
    return None


def _agree(a: array[int], i: int, b: array[int], j: int) -> int:
    """How many calls agree from ``a[i]`` and ``b[j]`` on, to the end of the shorter one; 0 when any of them differs."""
    n = min(len(a) - i, len(b) - j)
    if n <= 0 or i < 0 or j < 0 or (a[i] != b[j] and a[i] and b[j]):
        return 0
    return n if _mismatch(a, i, b, j, n) is None else 0


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
    return Departure("size_mismatch", tuple(t.rank for t in deviators), seq, witness, deviator, sure=sure)


def _history(track: Track, seq: int) -> array[int]:
    return track.soft[: max(0, seq - track.first)]


def _shifted_by_site(tracks: Sequence[Track], start: int, end: int) -> list[Departure]:
    """Missing or extra calls that only the call sites show: the calls before ``end`` fit together as such.

    Accepted only when a shift makes all later calls agree, call sites included: code that differs by rank ("if rank ==
    0") has other sites on purpose.
    """
    alike = list(tracks)
    for _ in range(MAX_SITE_TRIES):
        at = _first_difference(alike, start, soft=True) if len(alike) > 1 else None
        if at is None or at >= end:
            return []
        found = _by_shift(at, alike, hard=False)
        if found and all(_earlier_sites_equal(d, start) for d in found):
            return found
        _, others, _ = _sides(at, alike, hard=False)
        alike = [track for track in alike if track not in others]
    return []


def _earlier_sites_equal(departure: Departure, start: int) -> bool:
    a, b = departure.witness, departure.deviator
    n = departure.seq - start
    return n > 0 and _mismatch(a.soft, start - a.first, b.soft, start - b.first, n) is None


def _by_shift(seq: int, tracks: Sequence[Track], *, hard: bool) -> list[Departure]:
    """Departures at ``seq`` that a shift explains for every deviating rank; else none."""
    witness_side, deviating, sure = _sides(seq, tracks, hard=hard)
    witness = max(witness_side, key=lambda t: (t.last, -t.rank))
    found: dict[tuple[str, int], list[Track]] = {}
    for track in deviating:
        shift = _shift(seq, witness, track, hard=hard)
        if shift is None:
            return []
        # Without call sites as proof, one agreeing call may be chance.
        if not hard and shift[2] < 2 and abs(witness.last - track.last) != shift[1]:
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


def _sides(seq: int, tracks: Sequence[Track], *, hard: bool) -> tuple[list[Track], list[Track], bool]:
    """(those whose call at ``seq`` is right, those whose call is not, whether that is known)."""
    classes: dict[int, list[Track]] = {}
    for track in tracks:
        call = track.hard_at(seq) if hard else track.soft_at(seq)
        if call:
            classes.setdefault(call, []).append(track)
    ordered = sorted(classes.values(), key=lambda side: (-len(side), side[0].rank))
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


def _shift(seq: int, witness: Track, track: Track, *, hard: bool) -> tuple[str, int, int] | None:
    """(kind, number of calls, agreeing calls after them) of the shift after which most calls agree, to the end.

    A loop agrees with itself at many shifts; the right one also brings the ends together. Of equals the smallest.
    Call sites must agree as well where that is possible; ``hard`` allows agreement without them.
    """
    at_w, at_t = seq - witness.first, seq - track.first
    columns = [(track.soft, witness.soft), (track.hard, witness.hard)]
    for theirs, ours in columns if hard else columns[:1]:
        best: tuple[str, int, int] | None = None
        for shift in range(1, MAX_SHIFT + 1):
            for kind, agreeing in (
                ("collective_missing", _agree(ours, at_w + shift, theirs, at_t)),
                ("collective_extra", _agree(ours, at_w, theirs, at_t + shift)),
            ):
                if agreeing > (best[2] if best else 0):
                    best = (kind, shift, agreeing)
            if at_w + shift >= len(ours) and at_t + shift >= len(theirs):
                break
        if best is not None:
            return best
    return None


def _depart_at(seq: int, tracks: Sequence[Track], vocabulary: Vocabulary) -> list[Departure]:
    """Judge the calls at the first sequence number where they do not fit together."""
    witness_side, deviating, sure = _sides(seq, tracks, hard=True)
    witness = max(witness_side, key=lambda t: (t.last, -t.rank))
    found: dict[tuple[str, int, bool], list[Track]] = {}
    swap: Departure | None = None
    for track in deviating:
        kind, shift = _judge(seq, witness, track, vocabulary)
        if not sure and kind in ("collective_missing", "collective_extra"):
            swap = swap or _unsure_shift(seq, (kind, shift), witness, track)
        left = kind != "dtype_mismatch" and _left_loop(seq, track, witness, vocabulary)
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
            peers_left_loop=not left and not shift and _left_loop(seq, witness, group[0], vocabulary),
        )
        for (kind, shift, left), group in sorted(found.items(), key=lambda item: item[1][0].rank)
    ]


def _judge(seq: int, witness: Track, track: Track, vocabulary: Vocabulary) -> tuple[str, int]:
    """(kind, number of missing or extra calls) of one rank's departure."""
    kind = how_they_differ(
        vocabulary.calls[witness.soft_at(seq)].signatures, vocabulary.calls[track.soft_at(seq)].signatures
    )
    # A call that is only of another size, after which both go on alike, is a wrong call and not a missing one.
    if _agree(witness.hard, seq + 1 - witness.first, track.hard, seq + 1 - track.first):
        return kind, 0
    shift = _shift(seq, witness, track, hard=True)
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


def _left_loop(seq: int, track: Track, other: Track, vocabulary: Vocabulary) -> bool:
    """Whether a rank went on to another part of the program while its peers go on with what all of them did before.

    New sizes at a place where it called before are not that, nor is a call after which both go on alike.
    """
    history = _history(track, seq)
    if len(history) < 2 or _agree(other.hard, seq + 1 - other.first, track.hard, seq + 1 - track.first):
        return False
    call = vocabulary.calls[track.soft_at(seq)]
    before = [vocabulary.calls[soft] for soft in set(history[-MAX_HISTORY:])]
    seen = any((c.site == call.site if call.site else c.op == call.op) for c in before)
    return not seen and place_of(other.soft_at(seq), _history(other, seq)) == CONTINUES


def is_barrier_call(track: Track, seq: int, vocabulary: Vocabulary) -> bool:
    """Whether the call is a barrier."""
    return is_barrier(vocabulary.calls[track.soft_at(seq)].signatures[0].op)
