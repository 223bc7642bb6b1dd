"""Thin a large log to the lines that can matter, at the speed of the disk rather than of regular expressions.

A log of gigabytes repeats a few shapes for ever. Lines of one rank that hold the same telling texts (or none) form a
class; of each class the first lines, a sample at even distances, and the last ones are kept, each with the number of
lines it stands for. Exceptions are kept whole. What is kept is then read as any log is; nothing is judged here.

Runs in an isolated worker, on a part of one file. Needs ahocorasick_rs.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ahocorasick_rs import BytesAhoCorasick

from torchtriage.artefacts.text import decode_line, file_chunks, whole_lines
from torchtriage.logs.prefixes import parse_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

HEAD_LINES = 64
TAIL_LINES = 96
PLAIN_TAIL_LINES = 8
MIN_CLASS_LINES = 160
# The largest sample of one class of one rank, by what its lines hold; all shrink when the part's budget is spent.
BLOCK_BYTES = 2 << 20
PLAIN, HINTED, TELLING = range(3)
CLASS_LINES = (HEAD_LINES, 1024, 8192)
EXCEPTION_LINES = 400
MAX_EXCEPTIONS = 200
_MAX_SHAPES = 60_000
_MAX_SHAPE_BYTES = 24 << 20
_MAX_CLASSES = 4096
_HEAD_LENGTHS = (12, 24, 48, 96)
_MAX_HEADS = 20_000
_PREFIX_BYTES = 400
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
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

Kept = tuple[int, int, str]
"""Line number (from 1) in the part, how many lines it stands for (0: it is counted elsewhere), and its text."""


class _Bucket:
    """What is kept of the lines of one class that one rank printed."""

    __slots__ = ("count", "every", "head", "last_kept", "limit", "sample", "tail")

    def __init__(self, limit: int, tail_lines: int) -> None:
        self.count = 0
        self.limit = limit
        self.every = 1
        self.last_kept = 0  # its count
        self.head: list[tuple[int, bytes]] = []
        self.sample: list[tuple[int, int, bytes]] = []
        self.tail: deque[tuple[int, bytes]] = deque(maxlen=tail_lines)

    def add(self, positions: list[int], lines: list[bytes], first: int) -> list[int]:
        """Count the lines at these positions, the next ones of this class; return the positions of those kept."""
        missing = HEAD_LINES - len(self.head)
        kept = positions[:missing]
        self.head.extend((first + position, lines[position]) for position in kept)
        if kept:
            self.last_kept = self.count + len(kept)
        if self.limit > HEAD_LINES and len(positions) > missing:
            # The next line to sample is the one with the count last_kept + every.
            at = self.last_kept + self.every - self.count - 1
            sampled = positions[at :: self.every]
            self.sample.extend((first + position, self.every, lines[position]) for position in sampled)
            self.last_kept += self.every * len(sampled)
            kept = kept + sampled
        self.count += len(positions)
        self.tail.extend((first + position, lines[position]) for position in positions[-(self.tail.maxlen or 1) :])
        if len(self.head) + len(self.sample) > self.limit:
            self.thin()
        return kept

    def thin(self) -> None:
        """Let the sample shrink until it is within the limit."""
        while len(self.sample) > max(1, self.limit - HEAD_LINES):
            thinned: list[tuple[int, int, bytes]] = []
            held = 0
            for position, (number, weight, line) in enumerate(self.sample):
                held += weight
                if position % 2:
                    thinned.append((number, held, line))
                    held = 0
            self.last_kept -= held
            self.sample = thinned
            self.every *= 2

    def __len__(self) -> int:
        return len(self.head) + len(self.sample) + len(self.tail)

    def lines(self) -> Iterator[tuple[int, int, bytes]]:
        """All that is kept: number, how many lines it stands for, line. One may come twice, once with 0."""
        for number, line in self.head:
            yield number, 1, line
        yield from self.sample
        last = max(self.head[-1][0] if self.head else 0, self.sample[-1][0] if self.sample else 0)
        later = [(number, line) for number, line in self.tail if number > last]
        for number, line in self.tail:
            if number <= last:
                yield number, 0, line
        rest = self.count - self.last_kept
        for position, (number, line) in enumerate(later):
            yield number, 1 if position else rest - len(later) + 1, line


class _Class:
    """Lines that hold the same texts, by rank mark."""

    __slots__ = ("buckets", "level", "opens", "positions")

    def __init__(self, level: int, *, opens: bool) -> None:
        self.level = level
        self.opens = opens
        self.positions: dict[bytes, list[int]] = {}
        """Of the block that is being read; emptied after it."""
        self.buckets: dict[bytes, _Bucket] = {}


_Shape = tuple[slice, dict[bytes, list[int]]]
"""Where the rank mark of a line is, and the positions of its class."""


class Sifter:
    """Thins the lines of one part of a log, in order."""

    def __init__(self, telling: Sequence[str], hints: Sequence[str], *, labelled: str, budget: int) -> None:
        """``budget`` is about how many lines may be kept in all."""
        level = {text.encode().translate(_DIGITS): HINTED for text in hints if text}
        level |= {text.encode().translate(_DIGITS): TELLING for text in telling if text}
        level |= dict.fromkeys(OPENERS, TELLING)
        self._levels = list(level.values())
        self._openers = {i for i, text in enumerate(level) if text in OPENERS}
        self._automaton = BytesAhoCorasick(list(level))
        self._labelled = labelled
        self._budget = budget
        self._limits: list[int] = list(CLASS_LINES)
        self._shapes: dict[bytes, _Shape] = {}
        self._untimed: set[bytes] = set()
        self._shape_bytes = 0
        self._classes: dict[tuple[int, ...], _Class] = {}
        self._heads: tuple[dict[bytes, tuple[int, int, bool]], ...] = tuple({} for _ in _HEAD_LENGTHS)
        self._whole: dict[int, bytes] = {}  # lines of exceptions, and lines that give others their time
        self._open: dict[bytes, int] = {}
        self._n_exceptions = 0
        self._stamped: tuple[int, bytes] | None = None
        self.n_lines = 0

    def feed(self, block: bytes) -> None:
        """Take in whole lines; ``block`` has no line end behind the last one."""
        if len(self._shapes) > _MAX_SHAPES or self._shape_bytes > _MAX_SHAPE_BYTES:
            self._shapes.clear()
            self._untimed.clear()
            self._shape_bytes = 0
        shapes = self._shapes
        templates = block.translate(_DIGITS).split(b"\n")
        lines = block.split(b"\n")
        if new := set(templates).difference(shapes):
            self._learn(list(new))
        # All else of this room is done once per block; these few lines are done for every line of the log.
        position = 0
        for (mark_at, positions), line in zip(map(shapes.__getitem__, templates), lines, strict=True):
            try:
                positions[line[mark_at]].append(position)
            except KeyError:
                positions[line[mark_at]] = [position]
            position += 1  # noqa: SIM113  # enumerate would make one more tuple per line
        kept: list[int] = []
        openers: dict[int, bytes] = {}
        n_kept = 0
        for group in self._classes.values():
            for mark, positions in group.positions.items():
                bucket = group.buckets.get(mark)
                if positions:
                    if bucket is None:
                        tail_lines = TAIL_LINES if group.level else PLAIN_TAIL_LINES
                        bucket = group.buckets[mark] = _Bucket(self._limits[group.level], tail_lines)
                    added = bucket.add(positions, lines, self.n_lines + 1)
                    kept += added
                    if group.opens:
                        openers.update((position, mark) for position in added)
                    positions.clear()
                n_kept += len(bucket) if bucket is not None else 0
        if openers or self._open:
            self._keep_whole(templates, lines, openers)
        self._keep_stamps(templates, lines, sorted(kept))
        self.n_lines += len(lines)
        if n_kept > self._budget:
            self._shrink(n_kept)

    def _shrink(self, n_kept: int) -> None:
        """Spend less on every class from now on."""
        self._limits[HINTED:] = [max(MIN_CLASS_LINES, limit // 2) for limit in self._limits[HINTED:]]
        for group in self._classes.values():
            if group.level:
                for bucket in group.buckets.values():
                    bucket.limit = self._limits[group.level]
                    bucket.thin()
        if max(self._limits[HINTED:]) == MIN_CLASS_LINES:
            # With very many ranks even the least is more than the budget; then that is what it costs.
            self._budget = max(self._budget, 2 * n_kept)

    def _keep_whole(self, templates: list[bytes], lines: list[bytes], openers: dict[int, bytes]) -> None:
        """Keep what follows the first lines of exceptions, of the same rank."""
        shapes, opened = self._shapes, self._open
        start = 0 if opened else min(openers)
        for position in range(start, len(lines)):
            line = lines[position]
            mark = line[shapes[templates[position]][0]]
            if (left := opened.get(mark)) is not None:
                self._whole[self.n_lines + 1 + position] = line
                if left > 1:
                    opened[mark] = left - 1
                else:
                    del opened[mark]
            if position in openers and self._n_exceptions < MAX_EXCEPTIONS:
                self._n_exceptions += 1
                opened[mark] = EXCEPTION_LINES

    def _keep_stamps(self, templates: list[bytes], lines: list[bytes], kept: list[int]) -> None:
        """Keep the last timed line before each untimed one that is kept: its time is the latter's too."""
        untimed = self._untimed
        looked = 0
        for position in kept:
            if templates[position] in untimed:
                self._look_back(templates, lines, looked, position)
                looked = position
                if self._stamped is not None:
                    self._whole[self._stamped[0]] = self._stamped[1]
                    self._stamped = None
        self._look_back(templates, lines, looked, len(lines))

    def _look_back(self, templates: list[bytes], lines: list[bytes], start: int, end: int) -> None:
        for position in range(end - 1, start - 1, -1):
            if templates[position] not in self._untimed:
                self._stamped = (self.n_lines + 1 + position, lines[position])
                return

    def _learn(self, templates: list[bytes]) -> None:
        """Find the class and the prefix of shapes that were not met before."""
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
        for template, found in zip(templates, held, strict=True):
            group = self._class_of(found)
            a, b, timed = self._head(template)
            self._shapes[template] = (slice(a, b), group.positions)
            if not timed:
                self._untimed.add(template)
            self._shape_bytes += len(template) + 150

    def _class_of(self, found: set[int]) -> _Class:
        key = tuple(sorted(found))
        group = self._classes.get(key)
        if group is None:
            if len(self._classes) >= _MAX_CLASSES:
                # Texts in ever new company: what the most telling one says is enough.
                key = (max(found, key=lambda index: (self._levels[index], index)),) if found else ()
                if key in self._classes:
                    return self._classes[key]
            level = max((self._levels[index] for index in found), default=PLAIN)
            group = self._classes[key] = _Class(level, opens=not self._openers.isdisjoint(found))
        return group

    def _head(self, template: bytes) -> tuple[int, int, bool]:
        """Where the mark of the rank stands, and whether the line has a time; remembered by the line's first bytes."""
        for length, heads in zip(_HEAD_LENGTHS, self._heads, strict=True):
            found = heads.get(template[:length])
            if found is not None:
                return found
        # Every byte is one character here, so places in the text are places in the bytes.
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

    def kept(self) -> list[Kept]:
        """What is left, in order of line numbers, each line once."""
        weights: dict[int, int] = {}
        texts: dict[int, bytes] = {}
        for group in self._classes.values():
            for bucket in group.buckets.values():
                for number, weight, line in bucket.lines():
                    weights[number] = max(weight, weights.get(number, 0))
                    texts[number] = line
        for number, line in self._whole.items():
            weights.setdefault(number, 0)
            texts[number] = line
        return [(number, weights[number], decode_line(texts[number])) for number in sorted(texts)]


def sift(chunks: Iterable[bytes], sifter: Sifter) -> list[Kept]:
    """Thin a stream of bytes, with lines as :func:`torchtriage.artefacts.text.read_lines` counts them."""
    for block in whole_lines(chunks):
        sifter.feed(block)
    return sifter.kept()


def sift_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: thin one part of a log.

    Returns ``{"n_lines": int, "kept": [[number, weight, text], ...], "losses": [str]}``.
    """
    sifter = Sifter(args["telling"], args["hints"], labelled=args["labelled"], budget=args["budget"])
    losses: list[str] = []
    chunks = file_chunks(Path(path), compression, losses, start=args["start"], end=args["end"], chunk_bytes=BLOCK_BYTES)
    kept = sift(chunks, sifter)
    return {"n_lines": sifter.n_lines, "kept": kept, "losses": losses}
