"""Ranks that wait for each other in two process groups of which both are members.

Either one of them went alone into a call of one group while the other waits for it in the other group, or both wait in
both groups at once. Which of the two is wrong no log tells: each may be where the program should be.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from torchtriage.logs.watchdog.differ import MAX_COMPARED, call_facts, lag_of, signal_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchtriage.logs.records import Line
    from torchtriage.logs.watchdog.groups import GroupView, Job
    from torchtriage.logs.watchdog.lines import Timeout
    from torchtriage.report import Signal


def cross_signals(job: Job) -> list[Signal]:
    """``log.two_groups_cross``, where the lines name both groups."""
    views = [view for view in job.views.values() if view.timeouts and not view.mixed and view.key is not None]
    signals: list[Signal] = []
    for view in views:
        lag = lag_of(view)
        if lag is None or lag.first.rank is None:
            continue
        waits = lag.first.rank
        past = sorted(r for r in lag.behind if r in job.waits)[:MAX_COMPARED]
        for rank, other in ((r, other) for r in past for other in job.waits[r]):
            if other.mixed or other.key is None or waits in other.timeouts or waits not in job.members(other):
                continue
            second = other.timeouts[rank]
            facts = _pair(view, lag.first, other, second) | {
                "both_joined": False,
                "entered_alone": len(view.timeouts) == 1 and job.members(view) <= {waits, *lag.behind},
                "by_rank_zero": waits == 0,
            }
            signals.append(_pair_signal([waits, rank], view, other, facts, [lag.first.line, second.line]))
            break
    return signals[:MAX_COMPARED] or _both_wait(views)


def _both_wait(views: list[GroupView]) -> list[Signal]:
    """Ranks that wait in two groups at once, in the same calls: each holds up what the other needs first."""
    groups_of: Counter[int] = Counter(rank for view in views for rank in view.timeouts)
    twice = {rank for rank, n in groups_of.items() if n > 1}
    shared = [(view, common) for view in views if len(common := twice & view.timeouts.keys()) > 1]
    for (view, here), (other, there) in itertools.pairwise(shared):
        common = sorted(here & there)
        calls = [{(v.timeouts[r].seq, v.timeouts[r].words) for r in common} for v in (view, other)]
        if len(common) < 2 or any(len(same) > 1 for same in calls):
            continue
        first, second = view.timeouts[common[0]], other.timeouts[common[1]]
        facts = _pair(view, first, other, second) | {"both_joined": True, "entered_alone": False, "by_rank_zero": False}
        return [_pair_signal(common, view, other, facts, [first.line, second.line])]
    return []


def _pair(view: GroupView, first: Timeout, other: GroupView, second: Timeout) -> dict[str, Any]:
    facts: dict[str, Any] = {"group": view.name, "other_group": other.name}
    facts |= call_facts(first)
    return facts | {f"other_{name}": value for name, value in call_facts(second).items()}


def _pair_signal(
    ranks: Iterable[int], view: GroupView, other: GroupView, facts: dict[str, Any], lines: list[Line]
) -> Signal:
    signal = signal_of("log.two_groups_cross", ranks, view, facts, lines)
    signal.scope.groups = [*view.groups, *other.groups]
    return signal
