"""What the error counters of links say: growth between two readings, a life's count against peers, rates. Pure.

Three kinds of evidence that are kept apart. Growth tells that a link fails now. A count over its life tells only where
it stands far out from the links beside it, as resets of a peer count too. What fell between two readings was reset:
that is said, and only what came afterwards counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from torchtriage.nvlink.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchtriage.nvlink.findings import Kind
    from torchtriage.nvlink.gpus import Gpu, Line, Link, LinkReading
    from torchtriage.nvlink.health_catalogue import Counter, Fec, HealthCatalogue, Level

MIN_PEERS = 3


@dataclass(frozen=True)
class Change:
    """A counter over its readings."""

    value: float
    growth: float
    compared: bool
    """Whether there are two readings to compare."""
    reset: bool
    line: Line


def change_of(readings: Sequence[LinkReading], before: Sequence[LinkReading]) -> Change:
    """How a counter moved: from the baseline on if there is one, else from the first reading on."""
    series = [*before[-1:], *readings]
    start = 0
    for at in range(1, len(series)):
        if series[at].value < series[at - 1].value:
            start = at
    last = series[-1]
    return Change(last.value, last.value - series[start].value, len(series) > 1, start > 0, last.line)


class CounterJudge:
    """Judges the links of a node's GPUs of one kind, each against the others."""

    def __init__(self, gpus: Sequence[Gpu], catalogue: HealthCatalogue) -> None:
        """Learn what is usual among the links of these GPUs."""
        self._catalogue = catalogue
        self._values: dict[str, list[float]] = {}
        self._deep: list[float] = []
        for gpu in gpus:
            for link in gpu.links.values():
                for label, readings in link.readings.items():
                    if label in catalogue.counters:
                        self._values.setdefault(label, []).append(readings[-1].value)
                if (bins := self._bins(link)) is not None:
                    self._deep.append(self._deep_of({n: c.value for n, c in bins.items()}))
        self._medians = {label: median(values) for label, values in self._values.items()}
        self._deep_median = median(self._deep) if self._deep else 0.0

    def judge(self, gpu: Gpu) -> Iterator[Finding]:
        """The findings about one of them."""
        for _, link in sorted(gpu.links.items()):
            for label, readings in link.readings.items():
                change = change_of(readings, link.before.get(label, ()))
                if (counter := self._catalogue.counters.get(label)) is not None:
                    yield from self._count(gpu, link, label, counter, change)
                elif (rate := self._catalogue.rates.get(label)) is not None:
                    yield from self._rate(gpu, link, label, rate, change)
            yield from self._fec(gpu, link)

    def unknown(self, gpu: Gpu) -> set[str]:
        """Words of counters that the catalogue does not know."""
        known = self._catalogue
        return {
            label
            for link in gpu.links.values()
            for label in link.readings
            if label not in known.counters and label not in known.rates and not known.shown.match(label)
        }

    def _count(self, gpu: Gpu, link: Link, label: str, counter: Counter, change: Change) -> Iterator[Finding]:
        if change.reset:
            yield self._found("errors_grow", "ok", gpu, link, f"{label} fell: the counter was reset in between", change)
        stuck = change.value in self._catalogue.saturates
        facts: dict[str, Any] = {"counter": counter.name, "count": int(change.value), "growth": int(change.growth)}
        if change.compared and change.growth >= counter.growth:
            says = f"{label} grew by {int(change.growth)} to {int(change.value)} between two readings"
            yield self._found("errors_grow", "degraded", gpu, link, says, change, counter, facts)
        elif change.compared and link.before.get(label) and not stuck:
            if change.value:
                says = f"{int(change.value)} {label} over its life, {int(change.growth)} since the baseline"
                yield self._found("errors_grow", "ok", gpu, link, says, change)
        elif self._stands_out(label, counter, change.value):
            usual = self._medians[label]
            beside = f"; {usual:g} is the median of {len(self._values[label])} links"
            end = ", where this counter ends" if stuck else ""
            says = f"{int(change.value)} {label}{end}{beside if len(self._values[label]) > MIN_PEERS else ''}"
            facts["median"] = usual
            yield self._found("errors_stand_out", "degraded", gpu, link, says, change, counter, facts)
        elif change.value:
            yield self._found("errors_stand_out", "ok", gpu, link, f"{int(change.value)} {label} over its life", change)

    def _stands_out(self, label: str, counter: Counter, value: float) -> bool:
        rules, n_peers = self._catalogue, len(self._values[label]) - 1
        if value >= counter.floor * rules.alone_times:
            return True
        enough = counter.floor if n_peers >= MIN_PEERS else counter.floor * rules.times_peers
        return n_peers > 0 and value >= enough and value > rules.times_peers * self._medians[label]

    def _rate(self, gpu: Gpu, link: Link, label: str, rate: Counter, change: Change) -> Iterator[Finding]:
        if change.value > max(rate.limit, self._catalogue.rate_floor):
            says = f"{label} {change.value:g}, above {rate.limit:g}"
            yield self._found(
                "bit_errors_high", "degraded", gpu, link, says, change, rate,
                {"counter": rate.name, "rate": change.value},
            )  # fmt: skip

    def _bins(self, link: Link) -> dict[int, Change] | None:
        """The histogram of forward error correction, by symbols repaired in a word."""
        found = {
            int(named[1]): change_of(readings, link.before.get(label, ()))
            for label, readings in link.readings.items()
            if (named := self._catalogue.fec.label.match(label)) is not None
        }
        return found or None

    def _deep_of(self, bins: dict[int, float]) -> float:
        return sum(count for number, count in bins.items() if number >= self._catalogue.fec.deep_bin)

    def _fec(self, gpu: Gpu, link: Link) -> Iterator[Finding]:
        bins = self._bins(link)
        if bins is None:
            return
        fec = self._catalogue.fec
        counts = {number: change.value for number, change in bins.items()}
        total, deep = sum(counts.values()), self._deep_of(counts)
        grown = self._deep_of({number: change.growth for number, change in bins.items()})
        told = bins[max((number for number, count in counts.items() if count), default=min(counts))]
        facts = {"counter": "fec", "deep_words": int(deep), "growth": int(grown)}
        outlier = len(self._deep) > MIN_PEERS and deep >= fec.deep_growth
        outlier = outlier and deep > self._catalogue.times_peers * self._deep_median
        based = any(link.before.get(label) for label in link.readings if fec.label.match(label))
        if told.compared and grown >= fec.deep_growth:
            says = f"words with {fec.deep_bin} or more repaired symbols grew by {int(grown)} between two readings"
            yield self._found("errors_grow", "degraded", gpu, link, says, told, fec, facts)
        elif not based and (deep >= fec.deep_words or outlier):
            says = f"{int(deep)} words with {fec.deep_bin} or more repaired symbols"
            yield self._found("bit_errors_high", "degraded", gpu, link, says, told, fec, facts)
        elif total >= fec.min_words and 0 in counts and (total - counts[0]) / total > fec.repaired_share:
            share = (total - counts[0]) / total
            says = f"a share of {share:.1g} of all words had to be repaired, above {fec.repaired_share:g}"
            yield self._found("bit_errors_high", "degraded", gpu, link, says, told, fec, {**facts, "share": share})

    def _found(
        self, kind: Kind, level: Level, gpu: Gpu, link: Link, says: str, change: Change,
        rule: Counter | Fec | None = None, facts: dict[str, Any] | None = None,
    ) -> Finding:  # fmt: skip
        return Finding(
            kind, level, gpu, f"{gpu.label}, link {link.number}: {says}", rule.action if rule else "none",
            (link.number,), (change.line,), facts or {},
        )  # fmt: skip
