"""What is kept of lines of one kind that come again and again: first ones, some at even distances, last ones."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD_LINES = 64
SATURATED_EVERY = 16


class Bucket:
    """What is kept of the lines of one class that one rank printed."""

    __slots__ = ("count", "every", "head", "last_kept", "limit", "passed", "sample", "tail")

    def __init__(self, limit: int, tail_lines: int) -> None:
        """An empty one that keeps up to ``limit`` lines, and the last ``tail_lines``."""
        self.count = 0
        self.limit = limit
        self.every = 1
        self.last_kept = 0  # its count
        self.passed = 0  # lines that nobody looked at, beyond those that a sampled line stands for
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

    @property
    def saturated(self) -> bool:
        """Whether more lines of this kind change little: few of them are kept, or the last ones alone matter."""
        return self.every >= SATURATED_EVERY or (self.limit == HEAD_LINES and len(self.head) == HEAD_LINES)

    def pass_over(self, n_lines: int) -> None:
        """Count lines that nobody looked at."""
        self.count += n_lines
        self.last_kept += n_lines
        if self.sample:
            number, weight, line = self.sample[-1]
            self.sample[-1] = (number, weight + n_lines, line)
        else:
            self.passed += n_lines

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
        for position, (number, line) in enumerate(self.head):
            yield number, 1 if position else 1 + self.passed, line
        yield from self.sample
        last = max(self.head[-1][0] if self.head else 0, self.sample[-1][0] if self.sample else 0)
        later = [(number, line) for number, line in self.tail if number > last]
        for number, line in self.tail:
            if number <= last:
                yield number, 0, line
        rest = self.count - self.last_kept
        for position, (number, line) in enumerate(later):
            yield number, 1 if position else rest - len(later) + 1, line
