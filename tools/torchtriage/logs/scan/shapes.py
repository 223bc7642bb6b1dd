"""What can be told from a line's shape (the line with every digit replaced by "0"), learned once per shape: which
telling texts it holds, where the mark of its rank stands, whether it carries a time.

Bytes throughout: a byte is a character here, so places in one are places in the other. Needs ahocorasick_rs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ahocorasick_rs import BytesAhoCorasick

from torchtriage.logs.scan.prefixes import parse_prefix

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from torchtriage.logs.scan.buckets import Bucket

DIGITS = bytes.maketrans(b"123456789", b"000000000")
PLAIN, HINTED, TELLING = range(3)
# Behind these the next lines of the same rank belong to the same event.
OPENERS = (
    b"Traceback (most recent call last)",
    b"most recent call first",
    b"Fatal Python error",
    b"Stack trace of the failed collective",
    b"terminated with the following error",
    b"terminate called",
    b"Process received signal",
)
# A value that is no number makes a line another one, as digits alone do not.
NONFINITE = (b" nan", b":nan", b"=nan", b"'nan", b"NaN", b" inf", b":inf", b"=inf", b"-inf", b" Inf", b"Infinity")
_MAX_SHAPES = 60_000
_MAX_SHAPE_BYTES = 24 << 20
_MAX_CLASSES = 4096
_HEAD_LENGTHS = (12, 24, 48, 96)
_MAX_HEADS = 20_000
_PREFIX_BYTES = 400


class LineClass:
    """Lines that hold the same texts, by rank mark."""

    __slots__ = ("buckets", "level", "opens", "positions")

    def __init__(self, level: int, *, opens: bool) -> None:
        """A class of this level; ``opens`` says whether what follows its lines belongs to them."""
        self.level = level
        self.opens = opens
        self.positions: dict[bytes, list[int]] = {}
        """Of the block that is being read; the lists are emptied after it."""
        self.buckets: dict[bytes, Bucket] = {}


Shape = tuple[slice, dict[bytes, list[int]]]
"""Where the rank mark of a line is, and the positions of its class."""


class Shapes:
    """The shapes met so far, and the classes of lines that they make."""

    def __init__(self, telling: Sequence[str], hints: Sequence[str], *, labelled: str) -> None:
        """``labelled`` is what ``prefixes.looks_labelled`` says of the log."""
        level = {text.encode().translate(DIGITS): HINTED for text in hints if text}
        level |= dict.fromkeys(NONFINITE, HINTED)
        level |= {text.encode().translate(DIGITS): TELLING for text in telling if text}
        level |= dict.fromkeys(OPENERS, TELLING)
        self._levels = list(level.values())
        self._openers = {i for i, text in enumerate(level) if text in OPENERS}
        self._automaton = BytesAhoCorasick(list(level))
        self._labelled = labelled
        self.of: dict[bytes, Shape] = {}
        self.untimed: set[bytes] = set()
        self.classes: dict[tuple[int, ...], LineClass] = {}
        self._class_of_shape: dict[bytes, LineClass] = {}
        self._bytes = 0
        self._heads: tuple[dict[bytes, tuple[int, int, bool]], ...] = tuple({} for _ in _HEAD_LENGTHS)

    def learn(self, templates: Iterable[bytes]) -> bool:
        """Make sure that all these shapes are known; return whether some were not."""
        wanted = set(templates)
        if len(self.of) > _MAX_SHAPES or self._bytes > _MAX_SHAPE_BYTES:
            self.of.clear()
            self.untimed.clear()
            self._class_of_shape.clear()
            self._bytes = 0
        new = list(wanted.difference(self.of))
        for template, found in zip(new, self._texts_in(new), strict=True):
            group = self._class_of_texts(found)
            a, b, timed = self._head(template)
            self.of[template] = (slice(a, b), group.positions)
            self._class_of_shape[template] = group
            if not timed:
                self.untimed.add(template)
            self._bytes += len(template) + 200
        return bool(new)

    def count(self, templates: Counter[bytes]) -> dict[LineClass, int]:
        """How many lines of each class there are; all shapes must be known."""
        counts: dict[LineClass, int] = {}
        for template, count in templates.items():
            group = self._class_of_shape[template]
            counts[group] = counts.get(group, 0) + count
        return counts

    def _texts_in(self, templates: list[bytes]) -> list[set[int]]:
        """The texts that each of some shapes holds; all are searched at once."""
        held: list[set[int]] = [set() for _ in templates]
        ends: list[int] = []
        end = 0
        for template in templates:
            end += len(template) + 1
            ends.append(end)
        at = 0
        for index, _, stop in self._automaton.find_matches_as_indexes(b"\n".join(templates), overlapping=True):
            while ends[at] <= stop - 1:
                at += 1
            held[at].add(index)
        return held

    def _class_of_texts(self, found: set[int]) -> LineClass:
        key = tuple(sorted(found))
        group = self.classes.get(key)
        if group is None:
            if len(self.classes) >= _MAX_CLASSES:
                # Texts in ever new company: what the most telling one says is enough.
                key = (max(found, key=lambda index: (self._levels[index], index)),) if found else ()
                if key in self.classes:
                    return self.classes[key]
            level = max((self._levels[index] for index in found), default=PLAIN)
            group = self.classes[key] = LineClass(level, opens=not self._openers.isdisjoint(found))
        return group

    def _head(self, template: bytes) -> tuple[int, int, bool]:
        """Where the mark of the rank stands, and whether the line has a time; remembered by the line's first bytes."""
        for length, heads in zip(_HEAD_LENGTHS, self._heads, strict=True):
            found = heads.get(template[:length])
            if found is not None:
                return found
        text = template[:_PREFIX_BYTES].decode("latin-1")
        prefix = parse_prefix(text, 0, len(text), labelled=self._labelled)
        a, b = prefix.owner or (0, 0)
        answer = (a, b, prefix.time is not None)
        needed = max(prefix.body, b) + 1
        for length, heads in zip(_HEAD_LENGTHS, self._heads, strict=True):
            if needed <= length:
                if len(heads) >= _MAX_HEADS:
                    heads.clear()
                heads[template[:length]] = answer
                break
        return answer
