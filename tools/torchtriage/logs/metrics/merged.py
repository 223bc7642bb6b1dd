"""One signal for what several ranks show alike: the ranks are its scope, facts and lines are those of the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtriage.logs.quotes import quote
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchtriage.logs.metrics.collect import Row
    from torchtriage.logs.metrics.curves import Curves
    from torchtriage.logs.records import Owner

MAX_SIGNALS = 8
MAX_QUOTES = 3


@dataclass(frozen=True)
class Found:
    """What was seen at one owner."""

    owner: Owner
    metric: str
    facts: dict[str, Any]
    rows: list[Row]


def merge(name: str, found: Iterable[Found], curves: Mapping[Owner, Curves], *, shared: bool = False) -> list[Signal]:
    """One signal per metric.

    Args:
        name: of the signals.
        found: what was seen, at most once per owner and metric.
        curves: of all owners; tells who prints a metric.
        shared: ranks that run in step all have this metric in common, so that less than half of them prove nothing.
    """
    by_metric: dict[str, list[Found]] = {}
    for one in found:
        by_metric.setdefault(one.metric, []).append(one)
    signals: list[Signal] = []
    for metric, group in by_metric.items():
        n_ranks = sum(metric in of.by_metric for of in curves.values())
        if shared and 2 * len(group) < n_ranks:
            continue
        group.sort(key=lambda one: (not isinstance(one.owner, int), one.owner if isinstance(one.owner, int) else 0))
        first = group[0]
        rows = [*first.rows, *(one.rows[-1] for one in group[1:])][:MAX_QUOTES]
        signals.append(
            Signal(
                name=name,
                scope=Scope(ranks=[one.owner for one in group if isinstance(one.owner, int)]),
                facts={
                    "metric": metric,
                    **first.facts,
                    "n_ranks": n_ranks,
                    "all_ranks": n_ranks > 1 and len(group) == n_ranks,
                },
                evidence=[quote(row.line, name) for row in rows],
                time_s=first.rows[-1].line.time_s,
            )
        )
    signals.sort(key=lambda signal: str(signal.facts["metric"]))
    return signals[:MAX_SIGNALS]
