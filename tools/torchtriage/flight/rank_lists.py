"""Lists of a group's ranks: short on the way to the parent, parsed once per distinct list there. Stdlib only.

Every rank's dump lists all ranks of its groups, which is longer than its calls in a job of thousands; but they are
nearly always a few stretches of numbers at even distances.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_RANK = 1 << 20
MAX_LISTED_RANKS = 2_000_000
MAX_STRETCHES = 64
_MIN_CHARS = 32
_NUMBER = re.compile(r"\d+")
_MAX_DIGITS = 7
_CANONICAL = re.compile(r"\[[0-9, ]{1,2000000}\]\Z")


Packed = str | list[int]
"""A list of ranks as text, or as stretches: first, last, distance, first, last, distance, ..."""


def pack_ranks(text: str) -> Packed:
    """The same list as stretches; the text itself where that is not exact or not shorter."""
    if len(text) < _MIN_CHARS or not _CANONICAL.match(text):
        return text
    try:
        numbers = list(map(int, text[1:-1].split(", ")))
    except ValueError:
        return text
    packed: list[int] = []
    start = 0
    while start < len(numbers) and len(packed) < 3 * MAX_STRETCHES:
        distance = numbers[start + 1] - numbers[start] if start + 1 < len(numbers) else 1
        end = start
        while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == distance > 0:
            end += 1
        packed += [numbers[start], numbers[end], max(distance, 1)]
        start = end + 1
    return packed if 3 * len(packed) < len(numbers) and unpack_ranks(packed) == text else text


def unpack_ranks(packed: Packed) -> str:
    """The text of which :func:`pack_ranks` made ``packed``."""
    if isinstance(packed, str):
        return packed
    stretches = [range(packed[i], packed[i + 1] + 1, packed[i + 2]) for i in range(0, len(packed), 3)]
    return f"[{', '.join(str(rank) for stretch in stretches for rank in stretch)}]"


class RankList:
    """The ranks of a group in order; one object per distinct list, so that it is compared and hashed by identity."""

    __slots__ = ("members", "ranks")

    def __init__(self, ranks: tuple[int, ...]) -> None:
        """``ranks`` are in order."""
        self.ranks = ranks
        self.members = frozenset(ranks)


class RankLists:
    """The ranks of groups, parsed once per distinct text; bounded over the whole job."""

    def __init__(self) -> None:
        """Nothing parsed yet."""
        self.n_refused = 0
        """How many lists were left out because all together would be too long."""
        self._parsed: dict[str | tuple[int, ...], RankList | None] = {}
        self._lists: dict[tuple[int, ...], RankList] = {}
        self._ints: dict[int, int] = {}
        self._left = MAX_LISTED_RANKS

    def of(self, packed: Packed) -> RankList | None:
        """The list that :func:`pack_ranks` packed; None when it is not known: empty, no possible ranks, or too many."""
        key = packed if isinstance(packed, str) else tuple(packed)
        if key not in self._parsed:
            self._parsed[key] = self._parse(unpack_ranks(packed))
        return self._parsed[key]

    def _parse(self, text: str) -> RankList | None:
        if text.count(",") >= self._left:
            self.n_refused += 1
            return None
        numbers = _NUMBER.findall(text)
        # A list of which a part is no rank would be another group.
        if not numbers or any(len(number) > _MAX_DIGITS or int(number) >= MAX_RANK for number in numbers):
            return None
        if len(numbers) > self._left:
            self.n_refused += 1
            return None
        self._left -= len(numbers)
        return self.listed(sorted({int(number) for number in numbers}))

    def listed(self, numbers: Iterable[int]) -> RankList:
        """The one object for these ranks, given in order."""
        share = self._ints.setdefault
        ranks = tuple(share(n, n) for n in numbers)
        found = self._lists.get(ranks)
        if found is None:
            found = self._lists[ranks] = RankList(ranks)
        return found
