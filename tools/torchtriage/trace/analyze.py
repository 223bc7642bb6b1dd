"""From the traces of several ranks to the rank that the others wait for.

A collective ends on all ranks at once, so the rank that comes last spends least time in it: the others' longer stay is
their wait. Whether the late rank's GPU was busy meanwhile tells a slow GPU from a slow host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.evidence import quote_value
from torchtriage.artefacts.identity import identity_of
from torchtriage.report import Evidence, Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

# Share of the span that a rank spends longer in collectives than the last comer. In recorded two-rank runs a steady job
# had 0.16 and a host straggler 0.83; between the two bounds nothing is said.
STRAGGLER_FROM = 0.3
BALANCED_BELOW = 0.2


@dataclass
class TraceFindings:
    """What several traces say together."""

    signals: list[Signal] = field(default_factory=list[Signal])
    notes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _Rank:
    name: str
    rank: int
    summary: dict[str, Any]


def analyze(traces: Sequence[tuple[str, dict[str, Any]]]) -> TraceFindings:
    """Compare traces of one moment; ``traces`` are (artefact name, summary)."""
    found = TraceFindings()
    ranks: dict[int, _Rank] = {}
    for name, summary in traces:
        found.notes.extend(f"{name}: {note}" for note in summary["notes"])
        rank = summary["rank"] if summary["rank"] is not None else identity_of(name).rank
        if rank is None:
            found.notes.append(f"{name}: which rank it is of cannot be told")
        elif rank not in ranks or len(summary["collectives"]) > len(ranks[rank].summary["collectives"]):
            ranks[rank] = _Rank(name, rank, summary)
    usable = [r for r in ranks.values() if r.summary["collectives"] and r.summary["span_us"] > 0]
    if len(usable) < 2:
        found.notes.append("fewer than two ranks' traces hold collectives: ranks cannot be compared")
        return found
    late = min(usable, key=lambda r: (r.summary["comm_us"], r.rank))
    others = [r for r in usable if r is not late]
    waits_us = sorted(r.summary["comm_us"] - late.summary["comm_us"] for r in others)
    typical_us = waits_us[len(waits_us) // 2]
    span_us = max(r.summary["span_us"] for r in usable)
    share = typical_us / span_us
    facts = {
        "wait_ms": round(typical_us / 1000, 1),
        "span_ms": round(span_us / 1000, 1),
        "share": round(share, 3),
        "n_ranks": len(usable),
    }
    if share < BALANCED_BELOW:
        scope = Scope(ranks=sorted(r.rank for r in usable))
        name = "trace.balanced"
        found.signals.append(Signal(name=name, scope=scope, facts=facts, evidence=_longest(usable[:2], name)))
    elif share >= STRAGGLER_FROM:
        compute_us = sorted(r.summary["compute_us"] for r in others)
        longer_us = late.summary["compute_us"] - compute_us[len(compute_us) // 2]
        name = "trace.straggler_gpu" if longer_us > typical_us / 2 else "trace.straggler_host"
        evidence = _longest([others[0], late], name)
        found.signals.append(Signal(name=name, scope=Scope(ranks=[late.rank]), facts=facts, evidence=evidence))
    return found


def _longest(ranks: Sequence[_Rank], signal: str) -> list[Evidence]:
    """The same collective on each rank: the one in which the first of them spent longest."""
    first = ranks[0].summary["collectives"]
    at = max(range(len(first)), key=lambda i: first[i][2])
    return [
        quote_value(
            r.name, f"/traceEvents/{int(r.summary['collectives'][at][0])}/dur", r.summary["collectives"][at][2], signal
        )
        for r in ranks
        if at < len(r.summary["collectives"])
    ]
