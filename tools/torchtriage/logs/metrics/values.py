"""From named numbers to signals: values that are not finite, that grew out of bounds, or that differ at one rank."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.metrics.curves import curves_of, row_limit
from torchtriage.logs.metrics.losses import loss_signals
from torchtriage.logs.metrics.memory_growth import memory_signals
from torchtriage.logs.metrics.pace import pace_signals
from torchtriage.logs.metrics.plans import is_loss_like
from torchtriage.logs.metrics.slow_ranks import slow_rank_signals
from torchtriage.logs.quotes import quote
from torchtriage.report import Scope, Signal
from torchtriage.wording import rank_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchtriage.logs.metrics.collect import IntegerField, NonFinite, OwnerMetrics, Row
    from torchtriage.logs.records import Owner, Timeline

MAX_SIGNALS = 8
RISE_BEFORE_NONFINITE = 10.0
RISE_FOR_GOOD = 100.0
_WINDOW = 8
_MUST_BE_FINITE = lazy_re(
    r"loss|grad|reward|(?:^|_)kl(?:_|$)|entropy|advantage|log_?prob|perplexity|ppl|logits?(?:_|$)"
    # Statistics of a batch tell whether it came in with values that are not finite.
    r"|(?:^|_)(?:inputs?|targets?|labels?|features?|pixels?|images?|data|batch|x)_(?:mean|std|var|min|max|norm)(?:_|$)"
)
# Infinite as a matter of course: what overflows in an early step, and what a search starts from.
_MAY_OVERFLOW = lazy_re(
    r"perplexity|ppl|scale|(?:^|_)(?:best|max|min|limit|threshold|tolera\w*|clip\w*|init\w*|target)(?:_|$)"
)
_GRADIENT = lazy_re(r"grad")
_MIN_USUAL = 2
_MIN_STEPS = 4
_MAX_DEVIANTS = 3


class _Found(NamedTuple):
    owner: Owner
    seen: NonFinite


def value_signals(timeline: Timeline) -> tuple[list[Signal], bool]:
    """Signals about values; also whether all values that should be finite and equal are."""
    signals = _nonfinite(timeline) + _diverged_for_good(timeline)
    outliers = _outliers(timeline)
    limit = row_limit(len(timeline.metrics.owners))
    curves = {owner: curves_of(own, limit) for owner, own in timeline.metrics.owners.items()}
    diverged = {signal.facts["metric"] for signal in signals}
    losses = [
        signal
        for signal in loss_signals(curves, timeline.metrics.owners)
        if signal.name != "log.metric_diverged" or signal.facts["metric"] not in diverged
    ]
    well = not signals and not outliers and not any(signal.name == "log.metric_diverged" for signal in losses)
    others = [*losses, *pace_signals(curves), *slow_rank_signals(curves), *memory_signals(curves)]
    return signals + outliers + others, well


def _nonfinite(timeline: Timeline) -> list[Signal]:
    by_metric: dict[str, list[_Found]] = {}
    for owner, own in timeline.metrics.owners.items():
        for name, seen in own.nonfinite.items():
            if _is_trouble(name, seen, own):
                by_metric.setdefault(name, []).append(_Found(owner, seen))
    signals: list[Signal] = []
    for metric, found in sorted(by_metric.items(), key=_earliest):
        n_ranks = sum(_prints(own, metric) for own in timeline.metrics.owners.values())
        found.sort(key=_first_mover)
        rise = _rise(metric, found, n_ranks)
        signals.append(_nonfinite_signal(metric, found, n_ranks, rose_before=rise is not None))
        if rise is not None:
            signals.append(rise)
    return signals[: 2 * MAX_SIGNALS]


def _is_trouble(name: str, seen: NonFinite, own: OwnerMetrics) -> bool:
    if not _MUST_BE_FINITE.search(name):
        return False
    text = _text_of(seen.row, name)
    if text != "nan" and _MAY_OVERFLOW.search(name):
        return False
    # A loss scaler that still looks for its scale skips steps whose gradients overflow: no harm if that passes.
    return not (_GRADIENT.search(name) and seen.finite_after and not any("loss" in other for other in own.nonfinite))


def _text_of(row: Row, name: str) -> str:
    value = row.values.get(name)
    return "nan" if value is not None and math.isnan(value) else "inf"


def _prints(own: OwnerMetrics, metric: str) -> bool:
    return any(spot.name == metric for row in (*own.head[:8], *list(own.tail)[-8:]) for spot in row.plan.fields)


def _first_mover(found: _Found) -> tuple[float, int]:
    """Order by step; where steps are equal or unknown, the order in which lines came says little, so by rank."""
    step = found.seen.row.step
    rank = found.owner if isinstance(found.owner, int) else -1
    return (math.inf if step is None else step), rank


def _earliest(item: tuple[str, list[_Found]]) -> tuple[float, int, int]:
    """Order of metrics by step; of those of one step, the metric that fewest ranks lost then: no sum spread it."""
    found = item[1]
    step = min(_first_mover(f)[0] for f in found)
    return step, sum(_first_mover(f)[0] == step for f in found), min(f.seen.row.line.order for f in found)


def _nonfinite_signal(metric: str, found: list[_Found], n_ranks: int, *, rose_before: bool) -> Signal:
    name = "log.nonfinite_metric"
    first = found[0]
    ranks = sorted(f.owner for f in found if isinstance(f.owner, int))
    steps = {f.seen.row.step for f in found}
    first_step = min((step for step in steps if step is not None), default=None)
    firsts = [f.owner for f in found if isinstance(f.owner, int) and f.seen.row.step == first_step]
    return Signal(
        name=name,
        scope=Scope(ranks=ranks),
        facts={
            "metric": metric,
            "step": first_step,
            "all_ranks": n_ranks > 1 and len(found) == n_ranks,
            "first_rank": first.owner if isinstance(first.owner, int) else None,
            "first_ranks": firsts,
            "first_seen": _first_seen(first_step, firsts, n_ranks),
            "n_ranks": n_ranks,
            "same_step": len(steps) == 1,
            "recovered": all(f.seen.finite_after for f in found),
            "value": _text_of(first.seen.row, metric),
            "last_finite": _last_finite(metric, first.seen),
            "rose_before": rose_before,
        },
        evidence=[quote(f.seen.row.line, name) for f in found[:3]],
        time_s=first.seen.row.line.time_s,
    )


def _first_seen(step: int | None, firsts: list[int], n_ranks: int) -> str | None:
    """When it began, and on whom where not on all of the ranks that print the metric."""
    if step is None:
        return None
    return f"first on {rank_words(firsts)}, at step {step}" if 0 < len(firsts) < n_ranks else f"at step {step}"


def _last_finite(metric: str, seen: NonFinite) -> float | None:
    values = [row.values[metric] for row in seen.before if metric in row.values]
    return values[-1] if values and math.isfinite(values[-1]) else None


def _rise(metric: str, found: list[_Found], n_ranks: int) -> Signal | None:
    """A metric that grew tenfold within the few rows before it was no number any more."""
    if not is_loss_like(metric) and not _GRADIENT.search(metric):
        return None
    name = "log.metric_diverged"
    risen: list[tuple[_Found, float, float, Row]] = []
    for one in found:
        points = [(row, abs(row.values[metric])) for row in one.seen.before if metric in row.values]
        points = [(row, value) for row, value in points if math.isfinite(value) and value > 0]
        if len(points) < 2:
            continue
        row, peak = max(points, key=lambda point: point[1])
        low = min(value for at, value in points if at.line.order <= row.line.order)
        if peak >= RISE_BEFORE_NONFINITE * low:
            risen.append((one, low, peak, row))
    if not risen:
        return None
    _, low, peak, row = risen[0]
    return Signal(
        name=name,
        scope=Scope(ranks=sorted(one.owner for one, *_ in risen if isinstance(one.owner, int))),
        facts={
            "metric": metric, "from": low, "to": peak, "step": row.step,
            "all_ranks": n_ranks > 1 and len(risen) == n_ranks, "n_ranks": n_ranks, "became_nonfinite": True,
        },
        evidence=[quote(row.line, name) for *_, row in risen[:3]],
        time_s=row.line.time_s,
    )  # fmt: skip


def _diverged_for_good(timeline: Timeline) -> list[Signal]:
    """A loss or gradient norm that ended a hundred times above where it began, without becoming non-finite."""
    name = "log.metric_diverged"
    by_metric: dict[str, list[tuple[Owner, float, float, Row]]] = {}
    for owner, own in timeline.metrics.owners.items():
        rows = own.rows
        if len(rows) < 2 * _WINDOW:
            continue
        for metric in {spot.name for spot in rows[0].plan.fields if is_loss_like(spot.name)}:
            if metric in own.nonfinite:
                continue
            early, late = _level(rows[:_WINDOW], metric), _level(rows[-_WINDOW:], metric)
            if early is not None and late is not None and early > 0 and late >= RISE_FOR_GOOD * early:
                by_metric.setdefault(metric, []).append((owner, early, late, rows[-1]))
    signals: list[Signal] = []
    for metric, found in by_metric.items():
        n_ranks = sum(_prints(own, metric) for own in timeline.metrics.owners.values())
        _, early, late, row = found[0]
        signals.append(
            Signal(
                name=name,
                scope=Scope(ranks=sorted(owner for owner, *_ in found if isinstance(owner, int))),
                facts={
                    "metric": metric, "from": early, "to": late, "step": row.step,
                    "all_ranks": n_ranks > 1 and len(found) == n_ranks, "n_ranks": n_ranks, "became_nonfinite": False,
                },
                evidence=[quote(row.line, name) for *_, row in found[:3]],
                time_s=row.line.time_s,
            )
        )  # fmt: skip
    return signals[:MAX_SIGNALS]


def _level(rows: Iterable[Row], metric: str) -> float | None:
    values = [abs(row.values[metric]) for row in rows if metric in row.values]
    return statistics.median(values) if len(values) >= _WINDOW // 2 else None


def _outliers(timeline: Timeline) -> list[Signal]:
    signals: list[Signal] = []
    for (index, metric), table in timeline.metrics.integers.items():
        if not table.dead and (signal := _outlier(timeline, index, metric, table)):
            signals.append(signal)
    return signals[:MAX_SIGNALS]


def _outlier(timeline: Timeline, index: str, metric: str, table: IntegerField) -> Signal | None:
    """One rank's number that is another one than that of all ranks at all other steps."""
    ranks = {owner for owner in table.owners if isinstance(owner, int)}
    if len(ranks) < 2 or len(table.counts) < 2:
        return None
    usual = max(table.counts, key=lambda text: table.counts[text])
    odd = [text for text in table.counts if text != usual]
    n_odd = sum(table.counts[text] for text in odd)
    usual_ranks = {owner for owner, _ in table.examples[usual]}
    value = _integer(usual)
    if n_odd > _MAX_DEVIANTS or table.counts[usual] < max(2 * _MIN_STEPS - 1, 8 * n_odd) or value is None:
        return None
    deviants = [(owner, row) for text in odd for owner, row in table.examples[text]]
    owners = {owner for owner, _ in deviants}
    if abs(value) < _MIN_USUAL or len(owners) != 1 or len(usual_ranks) < 2 or len(table.steps) < _MIN_STEPS:
        return None
    owner, row = min(deviants, key=lambda deviant: deviant[1].line.order)
    if not isinstance(owner, int):
        return None
    name = "log.metric_outlier"
    # Best is what a peer printed at the same step; else any line with the usual number.
    others = [r for o, own in timeline.metrics.owners.items() if o != owner for r in own.rows if r.step == row.step]
    others += [r for o, r in table.examples[usual] if o != owner]
    others = [r for r in others if r.plan.index == index and r.values.get(metric) == value]
    if not others:
        return None
    peer = next((r for r in others if r.step == row.step), others[0])
    return Signal(
        name=name,
        scope=Scope(ranks=[owner]),
        facts={
            "metric": metric,
            "index": index,
            "step": row.step,
            "usual": value,
            "value": int(row.values.get(metric, 0)),
            "n_ranks": len(ranks),
            "peer_at_step": peer.step == row.step,
        },
        evidence=[quote(row.line, name), quote(peer.line, name)],
        time_s=row.line.time_s,
    )


def _integer(text: str) -> int | None:
    digits = text.replace(",", "").lstrip("+")
    return int(digits) if digits.lstrip("-").isdecimal() and len(digits) <= 18 else None
