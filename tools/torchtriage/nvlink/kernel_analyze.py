"""From the incidents of kernel logs to signals.

A kernel tells of every process of its host. Faults of hardware are told as trouble whoever met them; faults that the
program itself mostly causes only where a process of the job is named. What explains no failure is told without alarm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.evidence import quote_line
from torchtriage.nvlink.incidents import MAX_INCIDENTS, judge_incidents
from torchtriage.nvlink.kernel_read import events_of
from torchtriage.report import Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchtriage.nvlink.incident import Gpu, Incident
    from torchtriage.report import Evidence

Answer = tuple[str, "Mapping[str, Any]"]
MAX_SIGNALS = 64
MAX_QUOTES = 6
MAX_PIDS = 16
MIN_RATED_LINES = 20
MIN_RATED_S = 60.0
_FOLDER = "kernel"
# Faults of the program, and what is left of a process that ended.
_OF_A_PROCESS = frozenset({"application", "cleanup"})


@dataclass
class KernelFindings:
    """What kernel logs show."""

    signals: list[Signal] = field(default_factory=list[Signal])
    incidents: list[Incident] = field(default_factory=list["Incident"])
    notes: list[str] = field(default_factory=list[str])


def host_of(artefact: str) -> str | None:
    """The host's folder in a bundle, in which its kernel log lies in a folder of its own."""
    parts = artefact.split("/")
    return parts[-3] if len(parts) > 2 and parts[-2] == _FOLDER else None


def analyze(
    answers: Sequence[Answer],
    names: Mapping[str, str],
    ranks: Mapping[str, Sequence[int]],
    rank_of_pid: Mapping[int, int],
) -> KernelFindings:
    """Judge kernel logs, given as (artefact name, what the reader returned).

    Args:
        answers: of one or several hosts.
        names: product name of a GPU by bus id, or by ``host/bus id``.
        ranks: the ranks on a GPU, by the same keys.
        rank_of_pid: the job's processes.
    """
    found = KernelFindings()
    events = [event for name, answer in answers for event in events_of(answer, name)]
    for event in events:
        event.host = event.host or host_of(event.artefact)
    found.notes += [
        f"{clean_text(name)}: {clean_text(str(note))}" for name, answer in answers for note in answer["notes"]
    ]
    found.incidents = judge_incidents(events, names, ranks)
    if len(found.incidents) >= MAX_INCIDENTS:
        found.notes.append(f"kernel logs tell of more than {MAX_INCIDENTS} incidents: only the first ones were judged")
    alike: dict[tuple[object, ...], list[Incident]] = {}
    for incident in found.incidents:
        on = _ranks(incident, rank_of_pid)
        key = (_name(incident, on), incident.root.code, incident.culprit or incident.root.gpu, tuple(on))
        alike.setdefault(key, []).append(incident)
    for (name, *_), incidents in alike.items():
        found.signals.append(_signal(str(name), incidents, rank_of_pid))
    if len(found.signals) > MAX_SIGNALS:
        found.notes.append(f"{len(found.signals)} incidents in kernel logs: only the first {MAX_SIGNALS} are listed")
        del found.signals[MAX_SIGNALS:]
    return found


def _ranks(incident: Incident, rank_of_pid: Mapping[int, int]) -> list[int]:
    """The ranks at which the cause is: by the GPU, else (for what a process did or met itself) by the process."""
    if incident.family in _OF_A_PROCESS or (incident.family == "memory" and not incident.ranks):
        return sorted({rank_of_pid[pid] for pid in incident.pids() if pid in rank_of_pid})
    return incident.ranks


def _name(incident: Incident, ranks: Sequence[int]) -> str:
    root = incident.root
    if root.first.kind == "sxid":
        return "kernel.sxid_root" if root.decoded.role == "root" else "kernel.sxid_other"
    if incident.benign:
        return "kernel.xid_benign"
    if root.first.kind == "links_not_found":
        return "kernel.links_not_found"
    if root.decoded.family == "nvlink" and root.decoded.end == "link" and not root.decoded.fatal:
        return "kernel.link_marginal"
    if incident.family in _OF_A_PROCESS:
        return "kernel.xid_root" if ranks and root.decoded.role == "root" else "kernel.xid_other"
    told = root.decoded.role == "root" or incident.family == "memory" or root.decoded.fatal
    return "kernel.xid_root" if told and root.decoded.role != "informational" else "kernel.xid_other"


def _signal(name: str, incidents: Sequence[Incident], rank_of_pid: Mapping[int, int]) -> Signal:
    """One signal for incidents that repeat."""
    incident = incidents[0]
    root = incident.root
    links = sorted({link for each in incidents for link in each.root.links()})
    pids = sorted({pid for each in incidents for pid in each.pids()})
    gpus = list(dict.fromkeys(gpu for each in incidents for gpu in each.gpus()))
    last = incidents[-1]
    facts: dict[str, Any] = {
        "xid" if root.first.kind != "sxid" else "sxid": root.code,
        "name": root.decoded.name,
        "means": root.decoded.means,
        "family": incident.family,
        "action": last.action,
        "driver_said": last.driver_said,
        "recovered": last.recovered,
        "bus": root.first.bus,
        "switch": root.first.switch,
        "link": links[0] if len(links) == 1 else None,
        "n_links": len(links) or None,
        "end": root.decoded.end,
        "unit": root.first.unit,
        "n_gpus": len(gpus),
        "count": sum(each.n_lines() for each in incidents),
        "per_hour": _per_hour(incidents),
        "n_incidents": len(incidents),
        "pids": pids[:MAX_PIDS] or None,
        "also_xids": sorted({n.code for each in incidents for n in each.nodes[1:] if n.code and n.first.kind != "sxid"})
        or None,
        # Several may be at fault, or the device at the other end of a link.
        "sure": False if last.culprit is None and name == "kernel.xid_root" and last.family != "application" else None,
    }
    culprits = [each.culprit for each in incidents if each.culprit is not None]
    return Signal(
        name=name,
        scope=_scope(culprits, links if culprits else [], _ranks(incident, rank_of_pid), incident),
        facts={key: value for key, value in facts.items() if value is not None},
        evidence=_quotes(name, incidents),
        time_s=root.first.time_s if root.first.clock == "utc" else None,
    )


def _per_hour(incidents: Sequence[Incident]) -> float | None:
    """Lines per hour, where there are enough of them and their times span long enough to say so."""
    events = [event for each in incidents for node in each.nodes for event in node.events]
    times = [event.time_s for event in events if event.time_s is not None]
    n_lines = sum(event.count for event in events)
    span_s = max(times, default=0.0) - min(times, default=0.0)
    if n_lines < MIN_RATED_LINES or span_s < MIN_RATED_S:
        return None
    return round(n_lines / span_s * 3600, 1)


def _scope(culprits: Iterable[Gpu], links: Sequence[int], ranks: Sequence[int], incident: Incident) -> Scope:
    gpus = sorted({bus for _, bus in culprits if bus is not None})
    hosts = {incident.root.first.host} - {None}
    return Scope(
        ranks=sorted(ranks),
        gpus=gpus,
        links=[f"{gpus[0]} link {link}" for link in links] if len(gpus) == 1 else [],
        hosts=sorted(clean_text(str(host), 80) for host in hosts),
    )


def _quotes(name: str, incidents: Sequence[Incident]) -> list[Evidence]:
    """The root's line, then the first of each code that followed, then the roots that repeat."""
    of_code = {(node.first.kind, node.code): node for node in reversed(incidents[0].nodes[1:])}
    followed = sorted(of_code.values(), key=lambda node: node.position)
    nodes = [incidents[0].root, *followed, *(incident.root for incident in incidents[1:MAX_QUOTES])]
    return [quote_line(n.first.artefact, n.first.line, n.first.raw, name) for n in nodes[:MAX_QUOTES]]
