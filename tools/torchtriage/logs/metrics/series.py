"""What is kept of a rank's metrics over a whole run, in bounded space: rows at even distances, and exact extremes.

A sample is a function of how many rows came, never of when: ranks whose lines are mixed in another way keep the same.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchtriage.logs.metrics.collect import Row

MAX_SAMPLE_ROWS = 512
MIN_SAMPLE_ROWS = 24
JOB_SAMPLE_ROWS = 40_000
EARLY_ROWS = 32
MAX_SLOWEST = 48


def sample_limit(n_owners: int) -> int:
    """How many rows each of so many owners may keep."""
    return max(MIN_SAMPLE_ROWS, min(MAX_SAMPLE_ROWS, JOB_SAMPLE_ROWS // max(1, n_owners)))


class RowSample:
    """Every n-th row; n doubles when there are too many."""

    __slots__ = ("rows", "stride", "wanted")

    def __init__(self) -> None:
        """Start empty."""
        self.rows: list[Row] = []
        self.stride = 1
        self.wanted = 0
        """Number of the next row to keep."""

    def keep(self, row: Row, limit: int) -> None:
        """Keep the row whose number is ``wanted``."""
        self.rows.append(row)
        self.wanted += self.stride
        if len(self.rows) > limit:
            self.thin(limit)

    def thin(self, limit: int) -> None:
        """Drop every other row until there are no more than ``limit``."""
        while len(self.rows) > limit:
            last = self.wanted - self.stride
            self.rows = self.rows[::2]
            self.stride *= 2
            self.wanted = last - last % self.stride + self.stride


class Extremes:
    """The smallest and the largest value of one metric, the largest after the first rows, and the slowest steps."""

    __slots__ = ("heap", "late", "late_row", "least_slow", "maximum", "maximum_row", "minimum", "minimum_row")

    def __init__(self, value: float, row: Row) -> None:
        """Start with the first value."""
        self.minimum = self.maximum = value
        self.minimum_row = self.maximum_row = row
        self.late = -math.inf
        self.late_row = row
        self.heap: list[tuple[float, int, Row]] = []
        self.least_slow = -math.inf
        """What a step must exceed to be among the slowest ones."""

    def add(self, value: float, number: int, row: Row) -> None:
        """Take in the value of the row with this number."""
        if value < self.minimum:
            self.minimum, self.minimum_row = value, row
        if value > self.maximum:
            self.maximum, self.maximum_row = value, row
        if number >= EARLY_ROWS and value > self.late:
            self.late, self.late_row = value, row

    def add_slow(self, slowness: float, number: int, row: Row) -> None:
        """Keep the row among the slowest ones."""
        if len(self.heap) < MAX_SLOWEST:
            heapq.heappush(self.heap, (slowness, number, row))
        else:
            heapq.heapreplace(self.heap, (slowness, number, row))
        if len(self.heap) == MAX_SLOWEST:
            self.least_slow = self.heap[0][0]

    def rows(self) -> Iterator[Row]:
        """All rows that are kept here; some may come twice."""
        yield self.minimum_row
        yield self.maximum_row
        yield self.late_row
        for _, _, row in self.heap:
            yield row
