"""From the summaries of memory snapshots to findings and signals, each with the rank that it is about.

Pure. One snapshot is judged by :mod:`torchtriage.memory.judge`; what several say together by
:mod:`torchtriage.memory.compare`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.evidence import quote_value
from torchtriage.artefacts.identity import identity_of
from torchtriage.memory.compare import Difference, compare_moments, compare_ranks
from torchtriage.memory.judge import (
    MIN_STEPS_FOR_HEALTHY,
    MIN_STEPS_OF_A_REST,
    Beside,
    Finding,
    judge_device,
    leak_between,
    rises_in_all,
)
from torchtriage.report import Evidence, Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Snapshot:
    """One snapshot's summary under the name of its artefact."""

    artefact: str
    rank: int | None
    summary: Mapping[str, Any]

    def device(self, number: int) -> Mapping[str, Any]:
        """The summary of one of its devices."""
        return next(device for device in self.summary["devices"] if device["device"] == number)


@dataclass(frozen=True)
class Judged:
    """A finding and the snapshot that it is from."""

    snapshot: Snapshot
    finding: Finding

    def evidence(self, signal: str) -> list[Evidence]:
        """The quotation that stands for it; none where its value is not known."""
        value = self.finding.value
        return [] if value is None else [quote_value(self.snapshot.artefact, self.finding.where, value, signal)]


@dataclass
class MemoryFindings:
    """What all snapshots say."""

    snapshots: list[Snapshot] = field(default_factory=list[Snapshot])
    judged: list[Judged] = field(default_factory=list[Judged])
    differences: list[Difference] = field(default_factory=list[Difference])
    signals: list[Signal] = field(default_factory=list[Signal])
    notes: list[str] = field(default_factory=list[str])
    steady: bool = False
    """Whether enough was seen, on every device, to say that nothing grows."""

    @property
    def faults(self) -> list[Judged]:
        """The findings that mean trouble."""
        return [one for one in self.judged if not one.finding.harmless]


def snapshots_of(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Snapshot]:
    """The snapshots with the ranks that their names tell."""
    return [Snapshot(name, identity_of(name).rank, summary) for name, summary in summaries]


def beside(observed: Iterable[tuple[str, Collection[int], Mapping[str, Any]]]) -> dict[int | None, Beside]:
    """What logs say of the GPU of each rank (None: of a rank that is not named), from (signal, ranks, facts)."""
    known: dict[int | None, Beside] = {}
    for name, ranks, facts in observed:
        total, others = facts.get("total_bytes"), facts.get("other_processes_bytes")
        if name == "log.cuda_out_of_memory" and isinstance(total, (int, float)):
            about = Beside(int(total), int(sum(others)) if others else None)
            for rank in ranks or (None,):
                known.setdefault(rank, about)
    return known


def analyze(snapshots: Sequence[Snapshot], logs: Mapping[int | None, Beside] | None = None) -> MemoryFindings:
    """Judge snapshots of one job.

    Args:
        snapshots: those that could be read.
        logs: what they say of the GPUs, see :func:`beside`.
    """
    found = MemoryFindings(list(snapshots))
    known = logs or {}
    for snapshot in snapshots:
        found.notes.extend(f"{snapshot.artefact}: {note}" for note in snapshot.summary["notes"])
        for device in snapshot.summary["devices"]:
            about = known.get(snapshot.rank) or known.get(None)
            judged = [Judged(snapshot, finding) for finding in judge_device(device, about)]
            found.judged.extend(judged)
            found.signals.extend(_signal(one) for one in judged)
            if device["ooms"]:
                found.signals.append(_out_of_memory(snapshot, device))
    found.differences = [*compare_moments(snapshots), *compare_ranks(snapshots)]
    found.signals.extend(_heavier(d, snapshots) for d in found.differences if d.of == "ranks")
    last_stages = {d.after for d in found.differences if d.last_rank}
    for one in found.judged:
        one.finding.facts["last_stage"] = one.snapshot.artefact in last_stages
    for grown in _grown_between(found):
        found.judged.insert(len(found.faults), grown)
        found.signals.append(_signal(grown))
    devices = [d for s in snapshots for d in s.summary["devices"]]
    found.steady = bool(devices) and not found.faults and all(map(_steady, devices)) and not found.notes
    if found.steady:
        found.signals.append(_steady_signal(snapshots))
    return found


def _grown_between(found: MemoryFindings) -> list[Judged]:
    """Leaks that two moments of a rank show and no history: far more blocks of one place, kept at both moments."""
    leaking = {(o.snapshot.artefact, o.finding.device) for o in found.judged if o.finding.kind == "leak"}
    grown: list[Judged] = []
    for difference in found.differences:
        if difference.of != "moments" or (difference.after, difference.device) in leaking:
            continue
        snapshot = _named(difference.after, found.snapshots)
        finding = leak_between(snapshot.device(difference.device), difference)
        if finding is not None:
            grown.append(Judged(snapshot, finding))
    return grown


def _steady(device: Mapping[str, Any]) -> bool:
    """Whether its history shows steps, none of which left more behind than the one before.

    Of a ring that lost its beginning the steps that are left have to be enough to tell growth from warming up.
    """
    enough = MIN_STEPS_OF_A_REST if device["truncated"] else MIN_STEPS_FOR_HEALTHY
    return not device["ooms"] and device["n_steps"] >= enough and not rises_in_all(device)


def _signal(judged: Judged) -> Signal:
    finding = judged.finding
    name = f"memory.{finding.kind}"
    facts = {**finding.facts, "held_bytes": finding.bytes, "site": finding.site, "sure": finding.sure}
    return Signal(name=name, scope=_scope(judged.snapshot), facts=facts, evidence=judged.evidence(name))


def _named(artefact: str, snapshots: Sequence[Snapshot]) -> Snapshot:
    return next(snapshot for snapshot in snapshots if snapshot.artefact == artefact)


def _scope(snapshot: Snapshot) -> Scope:
    return Scope(ranks=[] if snapshot.rank is None else [snapshot.rank])


def _out_of_memory(snapshot: Snapshot, device: Mapping[str, Any]) -> Signal:
    oom, name = device["ooms"][-1], "memory.out_of_memory"
    facts = {key: oom[key] for key in ("requested", "allocated", "reserved", "device_free", "site", "in_state_dict")}
    return Signal(
        name=name,
        scope=_scope(snapshot),
        facts={**facts, "requested_bytes": oom["requested"], "n_failed": len(device["ooms"])},
        evidence=[quote_value(snapshot.artefact, oom["where"] + "/size", oom["requested"], name)],
    )


def _heavier(difference: Difference, snapshots: Sequence[Snapshot]) -> Signal:
    name = "memory.rank_heavier"
    top = difference.changes[0] if difference.changes else None
    snapshot = _named(difference.after, snapshots)
    holders = snapshot.device(difference.device)["holders"]
    holder = next((h for h in holders if top is not None and h["site"] == top.site and h["where"]), None)
    evidence = (
        [quote_value(snapshot.artefact, holder["where"], holder["largest_bytes"], name)] if holder is not None else []
    )
    facts = {
        "more_bytes": difference.more_bytes, "typical_bytes": difference.typical_bytes,
        "share": round(difference.more_bytes / max(1, difference.typical_bytes), 3),
        "category": top.category if top else "unknown", "site": top.site if top else "",
        "last_rank": difference.last_rank, "n_ranks": difference.n_ranks,
    }  # fmt: skip
    return Signal(name=name, scope=_scope(snapshot), facts=facts, evidence=evidence)


def _steady_signal(snapshots: Sequence[Snapshot]) -> Signal:
    name = "memory.steady"
    ranks = sorted({s.rank for s in snapshots if s.rank is not None})
    first = next((s for s in snapshots if s.summary["devices"] and s.summary["devices"][0]["first_action"]), None)
    evidence: list[Evidence] = []
    if first is not None:
        device = first.summary["devices"][0]
        where = f"/device_traces/{device['device']}/0/action"
        evidence = [quote_value(first.artefact, where, device["first_action"], name)]
    n_steps = min((d["n_steps"] for s in snapshots for d in s.summary["devices"]), default=0)
    return Signal(name=name, scope=Scope(ranks=ranks), facts={"n_steps": n_steps}, evidence=evidence)
