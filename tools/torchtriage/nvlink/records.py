"""From the judgement to the report: a record for each GPU and link, one status, one action, one sentence. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.nvlink.analyze import signal_evidence
from torchtriage.nvlink.findings import worst
from torchtriage.nvlink.gpus import Seen
from torchtriage.nvlink.health_catalogue import load_health
from torchtriage.nvlink.judge import Judged, status_of
from torchtriage.nvlink.judge_counters import change_of
from torchtriage.nvlink.kernel_analyze import KernelFindings
from torchtriage.nvlink.report import NvlinkGpu, NvlinkLink, NvlinkReport, code_words
from torchtriage.report import Culprits
from torchtriage.wording import some

if TYPE_CHECKING:
    from torchtriage.nvlink.findings import Finding
    from torchtriage.nvlink.gpus import Gpu, Link
    from torchtriage.nvlink.health_catalogue import Level, Model
    from torchtriage.nvlink.incident import Incident
    from torchtriage.nvlink.report import NvlinkStatus
    from torchtriage.nvlink.xid_catalogue import Action
    from torchtriage.report import Evidence

MAX_EVIDENCE = 24
MAX_INCIDENTS = 32
MAX_REASONS = 16
# What a program did, or its end, says nothing of the hardware.
_NOT_OF_THE_GPU = frozenset({"application", "cleanup", "recovery", "unknown"})
_DOWN = frozenset({"reset_gpu", "drain_and_reset", "reboot_node", "replace_hardware"})


@dataclass
class Gathered:
    """Everything that the tool found."""

    seen: Seen = field(default_factory=Seen)
    judged: Judged = field(default_factory=Judged)
    kernel: KernelFindings = field(default_factory=KernelFindings)
    hung: list[str] = field(default_factory=list[str])
    """Questions to nvidia-smi that got no answer in time."""
    gaps: list[str] = field(default_factory=list[str])
    compared: bool = False
    output_dir: str | None = None


def report_of(gathered: Gathered, *, per_link: bool) -> NvlinkReport:
    """The report; gaps and next checks are the caller's."""
    catalogue, judged = load_health(), gathered.judged
    gpus = [_gpu(gpu, gathered, per_link=per_link) for gpu in judged.gpus]
    bad = [incident for incident in gathered.kernel.incidents if _level(incident) != "ok"]
    levels: list[Level] = [f.level for f in judged.faults]
    levels += map(_level, bad)
    if gathered.hung:
        levels.append("failed")
    status = _status(worst(levels), gpus)
    actions: list[Action] = []
    actions.extend(f.action for f in judged.faults)
    actions.extend(incident.action for incident in bad)
    if gathered.hung:
        actions.append(catalogue.lost_action)
    return NvlinkReport(
        tool="nvlink_health",
        status=status,
        summary=clean_text(_summary(status, gathered, gpus, bad), 900),
        gpus=gpus,
        incidents=[incident.report() for incident in gathered.kernel.incidents[:MAX_INCIDENTS]],
        action=catalogue.gravest(actions),
        culprits=_culprits(judged, bad),
        evidence=_evidence(gathered),
        per_link=per_link,
        output_dir=gathered.output_dir,
    )


def _level(incident: Incident) -> Level:
    """How bad an incident is for the hardware, as far as it was not mended since."""
    if incident.benign or incident.recovered or incident.root.decoded.role != "root":
        return "ok"
    if incident.family in _NOT_OF_THE_GPU:
        return "ok"
    return "failed" if incident.action in _DOWN else "degraded"


def _status(level: Level, gpus: list[NvlinkGpu]) -> NvlinkStatus:
    """The worst of everything; a GPU that could not be judged keeps the whole from being called sound."""
    if level != "ok":
        return level
    statuses = {gpu.status for gpu in gpus}
    if not statuses or "unknown" in statuses:
        return "unknown"
    return "ok" if "ok" in statuses else "not_applicable"


def _gpu(gpu: Gpu, gathered: Gathered, *, per_link: bool) -> NvlinkGpu:
    model = load_health().model(gpu.name)
    about = gathered.judged.about(gpu)
    states = [link for link in gpu.links.values() if link.state is not None]
    links = [_link(link, about, per_link=per_link) for _, link in sorted(gpu.links.items())]
    missing = {number for f in about if f.kind == "link_down" and f.level == "failed" for number in f.links}
    links += [
        NvlinkLink(link=number, state="missing", status="failed", reasons=["is not listed"])
        for number in sorted(missing - set(gpu.links))
        if states
    ]
    reasons = [finding.says for finding in about if finding.level != "ok"]
    return NvlinkGpu(
        index=gpu.index,
        name=gpu.name,
        uuid=gpu.uuid,
        pci_bus_id=gpu.bus,
        host=gpu.host,
        status=status_of(gpu, gathered.judged, gathered.seen),
        expected_links=_expected(model),
        active_links=sum(link.up for link in states) if states else 0 if gpu.inactive is not None else None,
        reasons=[clean_text(reason, 300) for reason in reasons[:MAX_REASONS]],
        links=links,
    )


def _expected(model: Model | None) -> int | None:
    return model.links if model is not None and model.on_board else None


def _link(link: Link, about: list[Finding], *, per_link: bool) -> NvlinkLink:
    own = [f for f in about if link.number in f.links]
    level = worst([f.level for f in own])
    changes = {label: change_of(r, link.before.get(label, ())) for label, r in link.readings.items()}
    return NvlinkLink(
        link=link.number,
        state=link.state,
        bw_gb_s=link.bw_gb_s,
        status="unknown" if level == "ok" and link.state is None and not link.readings else level,
        reasons=[clean_text(f.says, 300) for f in own[:MAX_REASONS]],
        counters={label: change.value for label, change in changes.items() if per_link or change.value},
        growth={label: change.growth for label, change in changes.items() if change.compared and change.growth},
    )


def _summary(status: NvlinkStatus, gathered: Gathered, gpus: list[NvlinkGpu], bad: list[Incident]) -> str:
    if gathered.hung:
        return f"nvidia-smi does not answer ({gathered.hung[0]}): a GPU or the driver hangs; drain the node"
    told = [finding.says for finding in gathered.judged.faults]
    incidents = [_incident_words(incident) for incident in bad]
    if told or incidents:
        faults = [*told, *incidents]
        more = f"; and {len(faults) - 2} more" if len(faults) > 2 else ""
        return f"{'; '.join(faults[:2])}{more}"
    names = some(sorted({gpu.name for gpu in gpus if gpu.name}) or ["a GPU that is not named"])
    many = f"{len(gpus)} GPU{'s' if len(gpus) != 1 else ''} ({names})"
    if status == "not_applicable":
        return f"{many}: no NVLink to judge"
    if status == "unknown":
        return f"{many}: too little was told to judge the NVLinks" if gpus else "nothing about NVLinks could be read"
    active = sorted({gpu.active_links for gpu in gpus if gpu.active_links is not None})
    links = f"{active[0]} active links each" if len(active) == 1 else "links as they should be" if active else ""
    counted = any(link.readings for gpu in gathered.judged.gpus for link in gpu.links.values())
    errors = "no error counter stands out" if counted else "error counters were not given"
    return "; ".join(part for part in (many, links, errors) if part)


def _incident_words(incident: Incident) -> str:
    root = incident.report()["root"]
    return f"{code_words(root)} on {root['pci_bus_id'] or 'a device'}: {root['meaning']}"


def _culprits(judged: Judged, bad: list[Incident]) -> Culprits:
    gpus: list[str] = []
    links: list[str] = []
    hosts: list[str] = []
    for finding in judged.faults:
        if finding.gpu is None:
            continue
        gpus.append(finding.gpu.key)
        hosts.append(finding.gpu.host)
        links += [f"{finding.gpu.key} link {number}" for number in finding.links]
    gpus += [incident.culprit_pci_bus_id for incident in bad if incident.culprit_pci_bus_id is not None]
    return Culprits(
        gpus=list(dict.fromkeys(gpus))[:64],
        links=list(dict.fromkeys(links))[:64],
        hosts=[host for host in dict.fromkeys(hosts) if host][:64],
    )


def _evidence(gathered: Gathered) -> list[Evidence]:
    quotes = [quote for finding in gathered.judged.faults for quote in signal_evidence(finding)]
    quotes += [quote for signal in gathered.kernel.signals for quote in signal.evidence]
    return list({(quote.artefact, quote.where): quote for quote in quotes}.values())[:MAX_EVIDENCE]
