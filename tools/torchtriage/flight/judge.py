"""How one rank departs from another at a call: it lacks calls, has more, made another one, or left the loop.

Says only what two histories of calls show; whose fault that is, is decided with all ranks (:mod:`..flight.align`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchtriage.flight.history import CONTINUES, MAX_HISTORY, followers, place_of
from torchtriage.flight.ops import how_they_differ

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchtriage.flight.compare import Comparer, Level
    from torchtriage.flight.model import Calls, Vocabulary

MAX_SHIFT = 256
MAX_SKIPPED = 16


class Shift(NamedTuple):
    """Calls that a rank lacks or has more than another one, and how many agree after them."""

    kind: str
    n_calls: int
    agreeing: int


class Judgement(NamedTuple):
    """How a rank departs; ``shift``: the number of missing or extra calls, 0 when it is neither."""

    kind: str
    shift: int
    left_loop: bool


def is_settled(seq: int, histories: Iterable[Calls]) -> bool:
    """Whether all finished the call and the one after it: what they then hang in is not the difference in this one."""
    return all(
        calls.last > seq and calls.all_known and (calls.first_unfinished is None or calls.first_unfinished > seq + 1)
        for calls in histories
    )


def place(calls: Calls, seq: int) -> int:
    """How the call ``seq`` fits what the rank called before it."""
    return place_of(calls.soft_at(seq), calls.before(seq))


def judge(seq: int, witness: Calls, other: Calls, vocabulary: Vocabulary, comparer: Comparer) -> Judgement:
    """How one rank departs from the witness."""
    kind, shift = _kind_and_shift(seq, witness, other, vocabulary, comparer)
    left = kind != "dtype_mismatch" and left_loop(seq, other, witness, vocabulary, comparer)
    return Judgement(kind, shift, left)


def _kind_and_shift(
    seq: int, witness: Calls, other: Calls, vocabulary: Vocabulary, comparer: Comparer
) -> tuple[str, int]:
    kind = how_they_differ(
        vocabulary.calls[witness.soft_at(seq)].signatures, vocabulary.calls[other.soft_at(seq)].signatures
    )
    # A call that is only of another size, after which both go on alike, is a wrong call and not a missing one.
    if comparer.hard.agree_after(seq, witness, other):
        return kind, 0
    # Where all finished and the next calls fit as they are, one call differs and none is missing.
    if is_settled(seq, (witness, other)) and comparer.hard.fits(witness.hard_at(seq + 1), other.hard_at(seq + 1)):
        return kind, 0
    shift = shift_of(seq, witness, other, comparer.soft) or shift_of(seq, witness, other, comparer.hard)
    if shift is None:
        return ("collective_missing", 1) if _skipped_by_pattern(seq, witness, other, 1) else (kind, 0)
    if shift.kind == "collective_extra":
        # Peers that wait in the skipped call have none after it to agree on; a whole further step would look extra.
        n_skipped = witness.last - seq + 1
        if n_skipped < shift.n_calls and _skipped_by_pattern(seq, witness, other, n_skipped):
            return "collective_missing", n_skipped
    return shift.kind, shift.n_calls


def shift_of(seq: int, witness: Calls, other: Calls, level: Level) -> Shift | None:
    """The shift after which most calls agree, to the end.

    A loop agrees with itself at many shifts; the right one also brings the ends together. Of equals the smallest.
    """
    best: Shift | None = None
    for shift in _shifts(seq, witness, other, level):
        if shift.agreeing > (best.agreeing if best else 0):
            best = shift
    return best


def most_agreeing(seq: int, witness: Calls, other: Calls, level: Level) -> dict[str, int]:
    """The most agreeing calls per kind of shift, over all shifts after which any agree."""
    best: dict[str, int] = {}
    for shift in _shifts(seq, witness, other, level):
        if shift.agreeing:
            best[shift.kind] = max(shift.agreeing, best.get(shift.kind, 0))
    return best


def _shifts(seq: int, witness: Calls, other: Calls, level: Level) -> Iterator[Shift]:
    at_w, at_o = seq - witness.first, seq - other.first
    for n in range(1, MAX_SHIFT + 1):
        yield Shift("collective_missing", n, level.agree(witness, at_w + n, other, at_o))
        yield Shift("collective_extra", n, level.agree(witness, at_w, other, at_o + n))
        if seq + n > witness.last and seq + n > other.last:
            break


def _skipped_by_pattern(seq: int, witness: Calls, other: Calls, n_calls: int) -> bool:
    """Whether the rank did what the pattern has right after the ``n_calls`` that its peers issued instead."""
    before = other.before(seq)
    found = other.soft_at(seq)
    expected = witness.soft[seq - witness.first :][:n_calls]
    return (
        n_calls <= MAX_SKIPPED
        and found in before
        and all(call in before for call in expected)
        and found not in followers(before)
        and found in followers([*before, *expected])
    )


def left_loop(seq: int, calls: Calls, other: Calls, vocabulary: Vocabulary, comparer: Comparer) -> bool:
    """Whether a rank went on to another part of the program while its peers go on with what all of them did before.

    New sizes at a place where it called before are not that, nor is a call after which both go on alike.
    """
    before = calls.before(seq)
    if len(before) < 2 or comparer.hard.agree_after(seq, other, calls):
        return False
    call = vocabulary.calls[calls.soft_at(seq)]
    earlier = [vocabulary.calls[soft] for soft in set(before[-MAX_HISTORY:])]
    seen = any((c.site == call.site if call.site else c.op == call.op) for c in earlier)
    return not seen and place(other, seq) == CONTINUES
