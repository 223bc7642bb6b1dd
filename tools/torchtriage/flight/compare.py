"""Compare columns of calls: where they first differ, and how far they agree. What is not known fits everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.flight.ops import fit_together

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from torchtriage.flight.model import Track, Vocabulary

MAX_STEPS = 20_000_000
_CHUNK = 4096


class TooMuchWorkError(Exception):
    """The calls are so irregular that comparing them would take too long."""


class Comparer:
    """Compares calls by their numbers; remembers which numbers fit each other, and bounds its work."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Numbers are those of ``vocabulary``."""
        self._vocabulary = vocabulary
        self._fits: dict[tuple[int, int, bool], bool] = {}
        self._steps_left = MAX_STEPS

    def fits(self, one: int, other: int, *, hard: bool) -> bool:
        """Whether two numbers may be the same call; 0, a call that was not recorded, fits all."""
        if one == other or not one or not other:
            return True
        vague = self._vocabulary.vague_hard if hard else self._vocabulary.vague_soft
        if one not in vague and other not in vague:
            return False
        key = (one, other, hard)
        found = self._fits.get(key)
        if found is None:
            found = self._fits[key] = self._may_be(one, other, hard=hard)
        return found

    def _may_be(self, one: int, other: int, *, hard: bool) -> bool:
        if hard:
            comparables = self._vocabulary.comparables
            return fit_together(comparables[one], comparables[other])
        a, b = self._vocabulary.calls[one], self._vocabulary.calls[other]
        return (
            a.site == b.site
            and len(a.signatures) == len(b.signatures)
            and all(s.may_be(t) for s, t in zip(a.signatures, b.signatures, strict=True))
        )

    def mismatch(self, a: array[int], i: int, b: array[int], j: int, n: int, *, hard: bool) -> int | None:
        """The first offset below ``n`` at which both hold a call and the calls differ.

        Raises:
            TooMuchWorkError: the bound on work was reached.
        """
        for offset in range(0, n, _CHUNK):
            size = min(_CHUNK, n - offset)
            left = a[i + offset : i + offset + size]
            right = b[j + offset : j + offset + size]
            if left != right:
                for k in range(size):
                    if left[k] != right[k] and not self.fits(left[k], right[k], hard=hard):
                        self._spend(k)
                        return offset + k
                self._spend(size)
        return None

    def _spend(self, n_steps: int) -> None:
        self._steps_left -= n_steps
        if self._steps_left < 0:
            raise TooMuchWorkError

    def agree(self, a: array[int], i: int, b: array[int], j: int, *, hard: bool) -> int:
        """How many calls agree from ``a[i]`` and ``b[j]`` to the end of the shorter one; 0 when any of them differs."""
        n = min(len(a) - i, len(b) - j)
        if n <= 0 or i < 0 or j < 0 or not self.fits(a[i], b[j], hard=hard):
            return 0
        return n if self.mismatch(a, i, b, j, n, hard=hard) is None else 0

    def agree_after(self, seq: int, one: Track, other: Track) -> int:
        """How many calls after ``seq`` two ranks have in common, to the end of the shorter track."""
        return self.agree(one.hard, seq + 1 - one.first, other.hard, seq + 1 - other.first, hard=True)

    def first_difference(self, tracks: Sequence[Track], start: int, *, hard: bool) -> int | None:
        """The first sequence number from ``start`` on at which two tracks hold different calls."""
        vague = self._vocabulary.vague_hard if hard else self._vocabulary.vague_soft
        # What is vague fits two that do not fit each other: the reference is a track that says all.
        reference = max(tracks, key=lambda t: (not vague or not _holds(t, vague, hard=hard), t.last))
        ours = reference.hard if hard else reference.soft
        best: int | None = None
        for track in tracks:
            if track is reference:
                continue
            theirs = track.hard if hard else track.soft
            n = min(track.last, reference.last, track.last if best is None else best - 1) - start + 1
            if n <= 0:
                continue
            at = self.mismatch(ours, start - reference.first, theirs, start - track.first, n, hard=hard)
            if at is not None:
                best = start + at
        return best

    def sides(self, calls: Sequence[tuple[Track, int]], *, hard: bool) -> list[list[Track]]:
        """Tracks by what they call, most first; one that fits several sides because it says little is in none."""
        vague = self._vocabulary.vague_hard if hard else self._vocabulary.vague_soft
        classes: dict[int, list[Track]] = {}
        unclear: list[tuple[Track, int]] = []
        for track, call in calls:
            if call in vague:
                unclear.append((track, call))
            elif call:
                classes.setdefault(call, []).append(track)
        for track, call in unclear:
            if not any(known != call and self.fits(known, call, hard=hard) for known in classes):
                classes.setdefault(call, []).append(track)
        return sorted(classes.values(), key=lambda side: (-len(side), side[0].rank))


def _holds(track: Track, vague: set[int], *, hard: bool) -> bool:
    return not vague.isdisjoint(track.hard if hard else track.soft)
