"""The report of ``nvlink_health`` as text: the answer first, a line for each GPU, links when asked, the next call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.nvlink.report import code_words
from torchtriage.wording import next_lines

if TYPE_CHECKING:
    from typing import Any

    from torchtriage.nvlink.report import NvlinkGpu, NvlinkLink, NvlinkReport

MAX_GPUS = 32
MAX_INCIDENTS = 6
MAX_GAPS = 6
MAX_EVIDENCE = 6
MAX_REASONS = 3


def render(report: NvlinkReport) -> str:
    """Compact text for a terminal or an agent."""
    lines = [f"{report.status}: {report.summary}"]
    if report.action != "none":
        lines.append(f"action: {report.action}")
    if report.gpus:
        lines += _table(report)
    for incident in report.incidents[:MAX_INCIDENTS]:
        lines.append(f"  {clean_text(_incident(incident), 300)}")
    if len(report.incidents) > MAX_INCIDENTS:
        lines.append(f"  and {len(report.incidents) - MAX_INCIDENTS} more incidents (--json lists them)")
    if report.evidence:
        lines.append("evidence:")
    lines += [f"  {clean_text(f'{e.artefact}:{e.where} {e.quote[:160]}', 400)}" for e in report.evidence[:MAX_EVIDENCE]]
    lines += [f"gap: {clean_text(gap, 300)}" for gap in report.gaps[:MAX_GAPS]]
    if len(report.gaps) > MAX_GAPS:
        lines.append(f"gap: {len(report.gaps) - MAX_GAPS} more")
    if report.output_dir:
        lines.append(f"answers kept in {report.output_dir}")
    lines += next_lines(report.next_checks[:2])
    return "\n".join(lines)


def _table(report: NvlinkReport) -> list[str]:
    rows = [("GPU", "status", "links", "name")]
    rows += [(_which(gpu), gpu.status, _links(gpu), clean_text(gpu.name or "-", 40)) for gpu in report.gpus[:MAX_GPUS]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines: list[str] = []
    for at, row in enumerate(rows):
        lines.append("  " + "  ".join([*(row[c].ljust(widths[c]) for c in range(3)), row[3]]).rstrip())
        if at == 0:
            continue
        gpu = report.gpus[at - 1]
        lines += [f"      {clean_text(reason, 200)}" for reason in gpu.reasons[:MAX_REASONS]]
        if len(gpu.reasons) > MAX_REASONS:
            lines.append(f"      and {len(gpu.reasons) - MAX_REASONS} more")
        if report.per_link:
            lines += [f"      {_link(link)}" for link in gpu.links]
    if len(report.gpus) > MAX_GPUS:
        lines.append(f"  and {len(report.gpus) - MAX_GPUS} more GPUs (--json lists them)")
    return lines


def _which(gpu: NvlinkGpu) -> str:
    own = str(gpu.index) if gpu.index is not None else ""
    named = f"{own} {gpu.pci_bus_id}".strip() if gpu.pci_bus_id else own or "?"
    return clean_text(f"{gpu.host} {named}".strip() if gpu.host else named, 60)


def _links(gpu: NvlinkGpu) -> str:
    if gpu.active_links is None:
        return "-"
    return f"{gpu.active_links}/{gpu.expected_links}" if gpu.expected_links is not None else str(gpu.active_links)


def _link(link: NvlinkLink) -> str:
    speed = f" {link.bw_gb_s:g} GB/s" if link.bw_gb_s is not None else ""
    counters = [f"{name} {value:g}" for name, value in link.counters.items() if value]
    told = f"; {', '.join(counters[:8])}" if counters else ""
    return clean_text(f"link {link.link}: {link.status}, {link.state or 'state not told'}{speed}{told}", 300)


def _incident(incident: dict[str, Any]) -> str:
    root = incident["root"]
    link = f", link {root['link']}" if root["link"] is not None else ""
    followed = f"; {len(incident['sympathetic'])} that followed" if incident["sympathetic"] else ""
    benign = " (comes on sound machines too)" if incident.get("benign") else ""
    what = f"{code_words(root)} on {root['pci_bus_id'] or '?'}{link}: {root['meaning']}"
    return f"{what}{followed}; action {incident['action']}{benign}"
