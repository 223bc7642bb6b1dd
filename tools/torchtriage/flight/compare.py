"""Compare columns of calls: where they first differ, and how far they agree. What is not known fits everything."""

from __future__ import annotations

from array import array
from operator import attrgetter
from typing import TYPE_CHECKING

from torchtriage.flight.ops import fit_together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchtriage.flight.model import Calls, Track, Vocabulary

MAX_STEPS = 20_000_000
_CHUNK = 4096


class TooMuchWorkError(Exception):
    """The calls are so irregular that comparing them would take too long."""


class Comparer:
    """Compares calls at two levels, with one bound on the work of both."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Numbers are those of ``vocabulary``."""
        budget = _Budget()

        def fit_hard(one: int, other: int) -> bool:
            return fit_together(vocabulary.comparables[one], vocabulary.comparables[other])

        def fit_soft(one: int, other: int) -> bool:
            a, b = vocabulary.calls[one], vocabulary.calls[other]
            return (
                a.site == b.site
                and len(a.signatures) == len(b.signatures)
                and all(s.may_be(t) for s, t in zip(a.signatures, b.signatures, strict=True))
            )

        self.hard = Level(attrgetter("hard"), vocabulary.vague_hard, fit_hard, budget)
        """Only what must fit together for the call to work."""
        self.soft = Level(attrgetter("soft"), vocabulary.vague_soft, fit_soft, budget)
        """Also where in the program the call is."""
        self._vocabulary = vocabulary
        self._numbers: dict[tuple[str, str], int] = {}
        self._places: dict[Calls, array[int]] = {}
        self.place = Level(self._places_of, set(), fit_soft, budget)
        """Only the operation and where in the program it is: of calls whose sizes differ between ranks by design."""

    def _places_of(self, calls: Calls) -> array[int]:
        found = self._places.get(calls)
        if found is None:
            number_of = {0: 0}
            for soft in set(calls.soft) - {0}:
                call = self._vocabulary.calls[soft]
                number_of[soft] = self._numbers.setdefault((call.op, call.site), len(self._numbers) + 1)
            found = self._places[calls] = array("I", map(number_of.__getitem__, calls.soft))
        return found


class _Budget:
    def __init__(self) -> None:
        self._steps_left = MAX_STEPS

    def spend(self, n_steps: int) -> None:
        self._steps_left -= n_steps
        if self._steps_left < 0:
            raise TooMuchWorkError


class Level:
    """Compares calls by one of their two numbers; remembers which numbers fit each other."""

    def __init__(
        self,
        column: Callable[[Calls], array[int]],
        vague: set[int],
        may_fit: Callable[[int, int], bool],
        budget: _Budget,
    ) -> None:
        """``column`` gives the numbers; of ``vague`` ones ``may_fit`` decides, others fit only themselves."""
        self.column = column
        self._vague = vague
        self._may_fit = may_fit
        self._fits: dict[tuple[int, int], bool] = {}
        self._budget = budget

    def at(self, calls: Calls, seq: int) -> int:
        """The number of the call ``seq``, 0 when it is not recorded."""
        return self.column(calls)[seq - calls.first] if calls.first <= seq <= calls.last else 0

    def fits(self, one: int, other: int) -> bool:
        """Whether two numbers may be the same call; 0, a call that was not recorded, fits all."""
        if one == other or not one or not other:
            return True
        if one not in self._vague and other not in self._vague:
            return False
        found = self._fits.get((one, other))
        if found is None:
            found = self._fits[one, other] = self._may_fit(one, other)
        return found

    def mismatch(self, one: Calls, i: int, other: Calls, j: int, n: int) -> int | None:
        """The first offset below ``n`` from ``i`` and ``j`` on at which both hold a call and the calls differ.

        Raises:
            TooMuchWorkError: the bound on work was reached.
        """
        a, b = self.column(one), self.column(other)
        if a is b and i == j:
            return None
        for offset in range(0, n, _CHUNK):
            size = min(_CHUNK, n - offset)
            left = a[i + offset : i + offset + size]
            right = b[j + offset : j + offset + size]
            if left != right:
                for k in range(size):
                    if left[k] != right[k] and not self.fits(left[k], right[k]):
                        self._budget.spend(k)
                        return offset + k
                self._budget.spend(size)
        return None

    def agree(self, one: Calls, i: int, other: Calls, j: int) -> int:
        """How many calls agree from row ``i`` and ``j`` to the end of the shorter one; 0 when any of them differs."""
        a, b = self.column(one), self.column(other)
        n = min(len(a) - i, len(b) - j)
        if n <= 0 or i < 0 or j < 0 or not self.fits(a[i], b[j]):
            return 0
        return n if self.mismatch(one, i, other, j, n) is None else 0

    def agree_after(self, seq: int, one: Calls, other: Calls) -> int:
        """How many calls after ``seq`` two ranks have in common, to the end of the shorter history."""
        return self.agree(one, seq + 1 - one.first, other, seq + 1 - other.first)

    def first_difference(self, tracks: Sequence[Track], start: int) -> int | None:
        """The first sequence number from ``start`` on at which two tracks hold different calls."""
        different = one_per_calls(tracks)
        # What is vague fits two that do not fit each other: the reference is a track that says all.
        reference = max(different, key=lambda calls: (self._says_all(calls), calls.last))
        best: int | None = None
        for calls in different:
            if calls is reference:
                continue
            n = min(calls.last, reference.last, calls.last if best is None else best - 1) - start + 1
            if n <= 0:
                continue
            at = self.mismatch(reference, start - reference.first, calls, start - calls.first, n)
            if at is not None:
                best = start + at
        return best

    def _says_all(self, calls: Calls) -> bool:
        return not self._vague or self._vague.isdisjoint(self.column(calls))

    def sides(self, seq: int, tracks: Sequence[Track]) -> list[list[Track]]:
        """Tracks by what they call, most first; one that fits several sides because it says little is in none."""
        classes: dict[int, list[Track]] = {}
        unclear: list[tuple[Track, int]] = []
        for track in tracks:
            call = self.at(track.calls, seq)
            if call in self._vague:
                unclear.append((track, call))
            elif call:
                classes.setdefault(call, []).append(track)
        for track, call in unclear:
            if not any(known != call and self.fits(known, call) for known in classes):
                classes.setdefault(call, []).append(track)
        return sorted(classes.values(), key=lambda side: (-len(side), side[0].rank))


def one_per_calls(tracks: Sequence[Track]) -> list[Calls]:
    """The different histories of calls among tracks, in the order of the first track that has each."""
    return list({id(track.calls): track.calls for track in tracks}.values())
