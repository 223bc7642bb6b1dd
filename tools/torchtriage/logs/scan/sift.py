"""Thin a large log to the lines that can matter, at the speed of the disk rather than of regular expressions.

A log of gigabytes repeats a few shapes for ever. Lines of one rank that hold the same telling texts (or none) form a
class; of each class the first lines, a sample at even distances, and the last ones are kept, each with the number of
lines it stands for. Exceptions are kept whole, and what a rank printed just before a new kind of line. What is kept is
then read as any log is; nothing is judged here.

Once every class of a log has been thinned, three of four blocks of lines are only looked through for shapes that are
new; they are read after all when a rank or a class falls silent, or speaks up, behind them.

Runs in an isolated worker, on a part of one file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.text import decode_line, file_chunks, whole_lines
from torchtriage.logs.scan.buckets import HEAD_LINES, Bucket
from torchtriage.logs.scan.shapes import DIGITS, HINTED, PLAIN, LineClass, Shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TAIL_LINES = 96
PLAIN_TAIL_LINES = 8
MIN_CLASS_LINES = 160
# The largest sample of one class of one rank: plain, hinted, telling lines. All shrink when the part's budget is spent.
CLASS_LINES = (HEAD_LINES, 1024, 8192)
CONTEXT_LINES = 8
EXCEPTION_LINES = 400
MAX_EXCEPTIONS = 200
BLOCK_BYTES = 2 << 20
MAX_PASSED_BLOCKS = 3
# No job prints under so many marks in so many ways; beyond, lines count as nobody's.
MAX_MARKS = 40_000

Kept = tuple[int, int, str]
"""Line number (from 1) in the part, how many lines it stands for (0: it is counted elsewhere), and its text."""
_Speakers = frozenset[tuple[int, bytes]]
"""Which classes of which ranks a block holds."""


class Sifter:
    """Thins the lines of one part of a log, in order."""

    def __init__(self, telling: Sequence[str], hints: Sequence[str], *, labelled: str, budget: int) -> None:
        """``budget`` is about how many lines may be kept in all."""
        self._shapes = Shapes(telling, hints, labelled=labelled)
        self._budget = budget
        self._limits: list[int] = list(CLASS_LINES)
        self._whole: dict[int, bytes] = {}  # lines that are kept for the sake of others, and do not count
        self._open: dict[bytes, int] = {}
        self._n_exceptions = 0
        self._n_marks = 0
        self._stamped: tuple[int, bytes] | None = None
        self._passed: list[tuple[bytes, Counter[bytes]]] = []
        self._speakers: _Speakers = frozenset()
        self._settled = False
        self.n_lines = 0

    def feed(self, block: bytes) -> None:
        """Take in whole lines; ``block`` has no line end behind the last one."""
        templates = block.translate(DIGITS).split(b"\n")
        if self._shapes.learn(templates):
            self._settled = False
        if self._settled and not self._open and len(self._passed) < MAX_PASSED_BLOCKS:
            counts = Counter(templates)
            if all(_is_saturated(group) for group in self._shapes.count(counts)):
                self._passed.append((block, counts))
                return
        lines = block.split(b"\n")
        self._place(templates, lines)
        if self._passed:
            speakers = self._speaking()
            if speakers != self._speakers:
                # Somebody fell silent or spoke up in between: those blocks matter after all.
                self._clear()
                self._read_passed()
                self._place(templates, lines)
            else:
                self._drop_passed()
        self._speakers = self._speaking()
        self._add(templates, lines)

    def finish(self) -> None:
        """Take in what is still held back; nothing may be fed afterwards."""
        self._read_passed()

    def _read_passed(self) -> None:
        held, self._passed = self._passed, []
        for block, _ in held:
            templates = block.translate(DIGITS).split(b"\n")
            lines = block.split(b"\n")
            self._shapes.learn(templates)
            self._place(templates, lines)
            self._add(templates, lines)

    def _drop_passed(self) -> None:
        """Count the lines of blocks that nobody needs to look at, spread evenly over the ranks with such lines."""
        for block, counts in self._passed:
            self._shapes.learn(counts)
            for group, count in self._shapes.count(counts).items():
                share, rest = divmod(count, len(group.buckets))
                for position, bucket in enumerate(group.buckets.values()):
                    bucket.pass_over(share + (position < rest))
            self.n_lines += counts.total()
            last = block[block.rfind(b"\n") + 1 :]
            if last.translate(DIGITS) not in self._shapes.untimed:
                self._stamped = (self.n_lines, last)
        self._passed = []

    def _place(self, templates: list[bytes], lines: list[bytes]) -> None:
        """Give every line's position to its class and rank: the few statements that are done for every line."""
        position = 0
        for (mark_at, positions), line in zip(map(self._shapes.of.__getitem__, templates), lines, strict=True):
            try:
                positions[line[mark_at]].append(position)
            except KeyError:
                mark = line[mark_at] if self._n_marks < MAX_MARKS else b""
                self._n_marks += mark not in positions
                positions.setdefault(mark, []).append(position)
            position += 1  # noqa: SIM113  # enumerate would make one more tuple per line

    def _clear(self) -> None:
        for group in self._shapes.classes.values():
            for positions in group.positions.values():
                positions.clear()

    def _speaking(self) -> _Speakers:
        return frozenset(
            (id(group), mark)
            for group in self._shapes.classes.values()
            for mark, positions in group.positions.items()
            if positions
        )

    def _add(self, templates: list[bytes], lines: list[bytes]) -> None:
        """Let the buckets keep what they want of the lines that were placed."""
        kept: list[int] = []
        openers: dict[int, bytes] = {}
        n_kept = 0
        for group in self._shapes.classes.values():
            for mark, positions in group.positions.items():
                if positions and mark not in group.buckets:
                    self._add_bucket(group, mark, lines)
        for group in self._shapes.classes.values():
            for mark, positions in group.positions.items():
                if positions:
                    added = group.buckets[mark].add(positions, lines, self.n_lines + 1)
                    kept += added
                    if group.opens:
                        openers.update((position, mark) for position in added)
                    positions.clear()
            for bucket in group.buckets.values():
                n_kept += len(bucket)
        if openers or self._open:
            self._keep_whole(templates, lines, openers)
        self._keep_stamps(templates, lines, sorted(kept))
        self.n_lines += len(lines)
        self._settled = True
        if n_kept > self._budget:
            self._shrink(n_kept)

    def _add_bucket(self, group: LineClass, mark: bytes, lines: list[bytes]) -> None:
        """A rank prints a kind of line for the first time: what it printed just before is kept as well."""
        tail_lines = TAIL_LINES if group.level else PLAIN_TAIL_LINES
        group.buckets[mark] = Bucket(self._limits[group.level], tail_lines)
        if group.level == PLAIN or not self.n_lines:
            return
        first = group.positions[mark][0]
        before: list[tuple[int, bytes]] = []
        for other in self._shapes.classes.values():
            if other.level and other is not group:
                positions = other.positions.get(mark, ())
                end = bisect_left(positions, first)
                before += [(self.n_lines + 1 + p, lines[p]) for p in positions[max(0, end - CONTEXT_LINES) : end]]
                if (bucket := other.buckets.get(mark)) is not None:
                    before += list(bucket.tail)[-CONTEXT_LINES:]
        self._whole.update(sorted(before)[-CONTEXT_LINES:])

    def _shrink(self, n_kept: int) -> None:
        """Spend less on every class from now on."""
        self._limits[HINTED:] = [max(MIN_CLASS_LINES, limit // 2) for limit in self._limits[HINTED:]]
        for group in self._shapes.classes.values():
            if group.level:
                for bucket in group.buckets.values():
                    bucket.limit = self._limits[group.level]
                    bucket.thin()
        if max(self._limits[HINTED:]) == MIN_CLASS_LINES:
            # With very many ranks even the least is more than the budget; then that is what it costs.
            self._budget = max(self._budget, 2 * n_kept)

    def _keep_whole(self, templates: list[bytes], lines: list[bytes], openers: dict[int, bytes]) -> None:
        """Keep what follows the first lines of exceptions, of the same rank."""
        shapes, opened = self._shapes.of, self._open
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
        untimed = self._shapes.untimed
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
            if templates[position] not in self._shapes.untimed:
                self._stamped = (self.n_lines + 1 + position, lines[position])
                return

    def kept(self) -> list[Kept]:
        """What is left, in order of line numbers, each line once."""
        weights: dict[int, int] = {}
        texts: dict[int, bytes] = {}
        for group in self._shapes.classes.values():
            for bucket in group.buckets.values():
                for number, weight, line in bucket.lines():
                    weights[number] = max(weight, weights.get(number, 0))
                    texts[number] = line
        for number, line in self._whole.items():
            weights.setdefault(number, 0)
            texts[number] = line
        return [(number, weights[number], decode_line(texts[number])) for number in sorted(texts)]


def _is_saturated(group: LineClass) -> bool:
    return bool(group.buckets) and all(bucket.saturated for bucket in group.buckets.values())


def sift(chunks: Iterable[bytes], sifter: Sifter) -> list[Kept]:
    """Thin a stream of bytes, with lines as :func:`torchtriage.artefacts.text.read_lines` counts them."""
    for block in whole_lines(chunks):
        sifter.feed(block)
    sifter.finish()
    return sifter.kept()


def sift_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: thin one part of a log.

    Returns ``{"n_lines": int, "kept": [[number, weight, text], ...], "losses": [str]}``.
    """
    sifter = Sifter(args["telling"], args["hints"], labelled=args["labelled"], budget=args["budget"])
    losses: list[str] = []
    start, end = args["start"], args["end"]
    chunks = file_chunks(Path(path), compression, losses, start=start, end=end, chunk_bytes=BLOCK_BYTES)
    kept = sift(chunks, sifter)
    return {"n_lines": sifter.n_lines, "kept": kept, "losses": losses}
