"""Memory that grows step after step, over most of the run: what a leak looks like in a log."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torchtriage.logs.metrics.curves import work_grew
from torchtriage.logs.metrics.merged import Found, merge
from torchtriage.logs.metrics.names import MEMORY, is_host_memory
from torchtriage.logs.metrics.trends import N_BLOCKS, steady_rise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchtriage.logs.metrics.curves import Curve, Curves
    from torchtriage.logs.records import Owner
    from torchtriage.report import Signal

GPU_GROWTH = 1.1
# A peak over batches of different sizes rises a few times, ever more rarely; a leak rises again and again.
MIN_RISES = 24
_SHARE_OF_RISES = 0.4
HOST_GROWTH = 1.25
_KINDS = ("reserved", "alloc", "active", "peak", "max", "rss")


def memory_signals(curves: Mapping[Owner, Curves]) -> list[Signal]:
    """``log.memory_growth``, per metric; a peak that creeps up more and more slowly is none."""
    found = [
        growth
        for owner, own in curves.items()
        for curve in own.of(MEMORY)
        if (growth := _growth(owner, curve, own)) is not None
    ]
    return merge("log.memory_growth", found, curves)


def _growth(owner: Owner, curve: Curve, own: Curves) -> Found | None:
    points = curve.settled()
    on_host = is_host_memory(curve.metric)
    rise = steady_rise(points, HOST_GROWTH if on_host else GPU_GROWTH)
    if rise is None or work_grew(own, rise.last / rise.first):
        return None
    n_rises = sum(b.value > a.value for a, b in itertools.pairwise(points))
    if n_rises < min(MIN_RISES, _SHARE_OF_RISES * len(points)):
        return None
    first, last = points[0], points[-1]
    steps = (last.x - first.x) * (N_BLOCKS - 1) / N_BLOCKS
    facts = {
        "kind": next((kind for kind in _KINDS if kind in curve.metric), "memory"),
        "on_host": on_host,
        "from_bytes": int(first.value),
        "to_bytes": int(last.value),
        "bytes_per_step": int((rise.last - rise.first) / steps),
        "first_step": first.step,
        "step": last.step,
    }
    return Found(owner, curve.metric, facts, [first.row, last.row])
