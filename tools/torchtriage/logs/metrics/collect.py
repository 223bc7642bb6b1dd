"""Progress lines of every owner, kept in bounded space: first and last rows, a sample and the extremes of those between
them, where values stop being finite, and which numbers are always the same. Collects; does not judge.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.logs.metrics.series import EARLY_ROWS, Extremes, RowSample, sample_limit

if TYPE_CHECKING:
    from torchtriage.logs.metrics.plans import Field, MetricPlan
    from torchtriage.logs.records import Line, Owner

HEAD_ROWS = 48
TAIL_ROWS = 96
ROWS_BEFORE_NONFINITE = 8
_MANY_OWNERS = 512
_MAX_STEPS_KEPT = 4096
_MAX_VALUES = 6
_MAX_EXAMPLES = 8
_MAX_PER_OWNER = 2
_MAX_FIELDS = 512
_MAX_TRACKED = 16
_HUGE = 1e300


@dataclass(slots=True)
class Row:
    """One progress line; values are read when asked for. ``offset`` is where ``line.text`` starts in the line."""

    line: Line
    plan: MetricPlan
    step: int | None
    offset: int

    @property
    def values(self) -> dict[str, float]:
        """The named numbers of the line."""
        found: dict[str, float] = {}
        for spot in self.plan.fields:
            value = _number(self.line.text[spot.start - self.offset : spot.end - self.offset])
            if value is not None:
                found[spot.name] = value
        return found


@dataclass
class NonFinite:
    """Where a metric of one owner first was NaN or infinite, and what came before and after."""

    row: Row
    before: list[Row]
    count: int = 1
    finite_after: bool = False


@dataclass
class OwnerMetrics:
    """The progress lines of one owner."""

    head: list[Row] = field(default_factory=list[Row])
    tail: deque[Row] = field(default_factory=deque[Row])
    n_rows: int = 0
    n_stepped: int = 0
    first_step: int | None = None
    last_step: int | None = None
    last_step_row: Row | None = None
    steps: set[int] | None = field(default_factory=set[int])
    """All step numbers; None when there are too many to keep."""
    nonfinite: dict[str, NonFinite] = field(default_factory=dict[str, NonFinite])
    sample: RowSample = field(default_factory=RowSample)
    extremes: dict[str, Extremes] = field(default_factory=dict[str, Extremes])

    @property
    def rows(self) -> list[Row]:
        """First and last rows, the sample and the extremes of those between them; in order, without doubles."""
        kept = {id(row): row for row in (*self.head, *self.sample.rows, *self.tail)}
        for extremes in self.extremes.values():
            kept.update((id(row), row) for row in extremes.rows())
        return sorted(kept.values(), key=lambda row: row.line.key)


@dataclass
class IntegerField:
    """How often each value of a whole-number field was seen, and examples; given up when there are many values."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    examples: dict[str, list[tuple[Owner, Row]]] = field(default_factory=dict[str, "list[tuple[Owner, Row]]"])
    owners: set[Owner] = field(default_factory=set["Owner"])
    steps: set[int] = field(default_factory=set[int])
    """Some of the steps (or layers, ...) at which it was printed."""
    dead: bool = False


@dataclass
class Metrics:
    """All progress lines of a job."""

    owners: dict[Owner, OwnerMetrics] = field(default_factory=dict["Owner", OwnerMetrics])
    integers: dict[tuple[str, str], IntegerField] = field(default_factory=dict[tuple[str, str], IntegerField])
    rows_per_owner: int = sample_limit(1)
    """How many rows the sample of each owner may hold."""

    def add(self, owner: Owner, line: Line, plan: MetricPlan, text: str, offset: int) -> bool:
        """Take in one progress line; ``text`` is the whole physical line. Returns whether it is a step of the loop."""
        own = self.owners.get(owner) or self._add_owner(owner)
        step = int(text[plan.step[0] : plan.step[1]]) if plan.step is not None else None
        row = Row(line, plan, step, offset)
        is_step = plan.index == "step"
        for spot in plan.fields:
            if not spot.finite:
                self._add_nonfinite(own, spot.name, row)
            elif own.nonfinite and spot.name in own.nonfinite:
                own.nonfinite[spot.name].finite_after = True
            if spot.compared and step is not None:
                self._add_integer(owner, (plan.index, spot.name), text[spot.start : spot.end], row)
        if is_step:
            if plan.tracked:
                _track(own, plan.tracked, text, row)
            if own.n_rows == own.sample.wanted:
                own.sample.keep(row, self.rows_per_owner)
            own.n_rows += 1
            if len(own.head) < HEAD_ROWS:
                own.head.append(row)
            own.tail.append(row)
            if step is not None:
                _add_step(own, step, row)
        return is_step and step is not None

    def _add_owner(self, owner: Owner) -> OwnerMetrics:
        n_others = len(self.owners)
        own = self.owners[owner] = OwnerMetrics(
            tail=deque(maxlen=TAIL_ROWS if n_others < _MANY_OWNERS else ROWS_BEFORE_NONFINITE)
        )
        limit = sample_limit(n_others + 1)
        # All owners keep as many, whenever they came; but not so often that it costs.
        if limit * 2 <= self.rows_per_owner:
            self.rows_per_owner = limit
            for other in self.owners.values():
                other.sample.thin(limit)
        return own

    def _add_nonfinite(self, own: OwnerMetrics, name: str, row: Row) -> None:
        seen = own.nonfinite.get(name)
        if seen is not None:
            seen.count += 1
            seen.finite_after = False
        elif len(own.nonfinite) < _MAX_FIELDS:
            own.nonfinite[name] = NonFinite(row, list(own.tail)[-ROWS_BEFORE_NONFINITE:])

    def _add_integer(self, owner: Owner, key: tuple[str, str], text: str, row: Row) -> None:
        table = self.integers.get(key)
        if table is None:
            if len(self.integers) >= _MAX_FIELDS:
                return
            table = self.integers[key] = IntegerField()
        if table.dead:
            return
        if row.step is not None and len(table.steps) < _MAX_EXAMPLES:
            table.steps.add(row.step)
        count = table.counts.get(text)
        table.owners.add(owner)
        if count is None:
            if len(table.counts) >= _MAX_VALUES:
                table.dead = True
                table.examples.clear()
                return
            table.counts[text] = 1
            table.examples[text] = [(owner, row)]
            return
        table.counts[text] = count + 1
        examples = table.examples[text]
        # Two of each owner, so that files which are read one after the other all have a say.
        if len(examples) < _MAX_EXAMPLES and sum(who == owner for who, _ in examples) < _MAX_PER_OWNER:
            examples.append((owner, row))


def _track(own: OwnerMetrics, spots: tuple[Field, ...], text: str, row: Row) -> None:
    """Hold the row against the extremes so far; this runs for every row, so it is written for speed."""
    known, number = own.extremes, own.n_rows
    for spot in spots:
        value = float(text[spot.start : spot.end].replace(",", "") if spot.commas else text[spot.start : spot.end])
        seen = known.get(spot.name)
        if seen is None:
            if len(known) < _MAX_TRACKED and abs(value) < _HUGE:
                seen = known[spot.name] = Extremes(value, row)
            else:
                continue
        elif (value < seen.minimum or (value > seen.late and number >= EARLY_ROWS) or value > seen.maximum) and abs(
            value
        ) < _HUGE:
            seen.add(value, number, row)
        if spot.paces:
            slowness = -value if spot.meaning is not None and spot.meaning.inverse else value
            if slowness > seen.least_slow:
                seen.add_slow(slowness, number, row)


def _add_step(own: OwnerMetrics, step: int, row: Row) -> None:
    own.n_stepped += 1
    if own.first_step is None:
        own.first_step = step
    if own.last_step is None or step >= own.last_step:
        own.last_step, own.last_step_row = step, row
    if own.steps is not None:
        own.steps.add(step)
        if len(own.steps) > _MAX_STEPS_KEPT:
            own.steps = None


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "")[:40])
    except ValueError:
        return None
