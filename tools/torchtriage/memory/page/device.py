"""The part of the page that is about one device of one snapshot: findings, numbers, pictures, holders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.memory.page.charts import category_bar, flame_graph, swatch, timeline
from torchtriage.memory.page.markup import MAX_SENTENCE_CHARS, esc, items, stack, table
from torchtriage.wording import bytes_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torchtriage.tool_reports import MemoryDevice, MemoryFinding

_MEANING = {
    "activations": "made by forward and kept for backward",
    "temporaries": "given back within the phase that asked for them",
    "retained": "kept over steps though it is neither parameters nor optimizer state",
    "workspace": "scratch memory of libraries such as cuBLAS",
    "graphs": "in private pools of CUDA graphs",
    "before_history": "allocated before the history that was recorded",
    "other": "with a stack that tells no purpose",
    "unknown": "without a stack",
}
_LEGEND = (("user", "the job's own code"), ("library", "Python of libraries"), ("native", "C++"))


def who(device: MemoryDevice) -> str:
    """The device in words."""
    return f"rank {device.rank}, device {device.device}" if device.rank is not None else f"device {device.device}"


def findings_list(findings: Sequence[MemoryFinding]) -> str:
    """What is wrong, each with how sure that is and where."""
    return items(
        (
            f"<b>{esc(finding.kind.replace('_', ' '))}</b> {_sure(finding.sure)}<br>"
            f"{esc(finding.says, MAX_SENTENCE_CHARS)}.{stack(finding.frames)}"
            for finding in findings
        ),
        of_class="findings",
    )


def _sure(sure: str) -> str:
    return f'<span class="sure {sure}">{sure} certainty</span>'


def device_section(
    anchor: str, device: MemoryDevice, summary: Mapping[str, Any], findings: Sequence[MemoryFinding], budget: int
) -> str:
    """All about one device.

    Args:
        anchor: the section's id.
        device: its record.
        summary: the reader's, for what the record leaves out.
        findings: those about it.
        budget: characters that its flame graph may take.
    """
    moment = _moment(device)
    total = sum(device.by_category.values())
    told = findings_list(findings) or '<p class="note">No finding is about this device.</p>'
    graph = flame_graph(who(device), [(names, size) for names, size in summary.get("flame", [])], total, budget)
    return (
        f'<section class="device" id="{anchor}"><h2>{who(device)} <span class="artefact">{esc(device.artefact)}</span>'
        f"</h2>{told}{_numbers(device)}{_failed(device)}"
        f'<h3>Over time</h3><p class="key"><svg class="swatch" width="11" height="11" aria-hidden="true">'
        '<rect class="key-a" width="11" height="11" rx="2"/></svg> allocated '
        '<svg class="swatch" width="11" height="11" aria-hidden="true"><rect class="key-r" width="11" height="11" '
        f'rx="2"/></svg> reserved</p><figure>{timeline(device)}<p class="readout" hidden></p></figure>'
        + (f"<h3>What it is for, {moment}</h3>{category_bar(device.by_category)}{_meanings(device)}" if total else "")
        + _holders(device, summary, moment, total)
        + (f"<h3>By stack, {moment}</h3>{_flame_key()}<figure>{graph}</figure>" if graph else "")
        + "</section>"
    )


def _moment(device: MemoryDevice) -> str:
    if device.moment == "oom" and device.failed_requests:
        return f"at the failed request (event {device.failed_requests[-1].event:,})"
    return "at the peak" if device.peak_event is None else f"at the peak (event {device.peak_event:,})"


def _numbers(device: MemoryDevice) -> str:
    free_when = "at the failed request" if device.failed_requests else "at the end"
    told = [
        ("Peak allocated", bytes_words(device.peak_allocated_bytes)),
        ("Peak reserved", bytes_words(device.peak_reserved_bytes)),
        ("Allocated at the end", bytes_words(device.allocated_bytes)),
        ("Reserved at the end", bytes_words(device.reserved_bytes)),
        (f"Free in reserved {free_when}", bytes_words(device.fragmentation_bytes)),
        ("Largest free piece of that", bytes_words(device.largest_free_bytes)),
        ("Steps seen", f"{device.n_steps:,}"),
        ("Events recorded", f"{device.n_events:,}"),
    ]
    if device.private_pool_bytes:
        told.append(("Reserved in private pools", bytes_words(device.private_pool_bytes)))
    if device.expandable_would_free_bytes:
        told.append(("Expandable segments could free", bytes_words(device.expandable_would_free_bytes)))
    entries = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in told)
    lost = (
        '<p class="note">The history lost its oldest events: what is older has no call site.</p>'
        if device.history_truncated
        else ""
    )
    return f'<dl class="numbers">{entries}</dl>{lost}'


def _failed(device: MemoryDevice) -> str:
    if not device.failed_requests:
        return ""
    rows = [
        (
            f"{failed.event:,}",
            bytes_words(failed.requested_bytes),
            bytes_words(failed.allocated_bytes),
            bytes_words(failed.reserved_bytes),
            "not known" if failed.device_free_bytes is None else bytes_words(failed.device_free_bytes),
            "not known" if failed.others_hold_bytes is None else bytes_words(failed.others_hold_bytes),
            f"<code>{esc(failed.site)}</code>",
        )
        for failed in device.failed_requests
    ]
    heads = ("Event", "Requested", "Allocated then", "Reserved then", "Free on the GPU", "Others held", "Asked for at")
    return f"<h3>Requests that failed</h3>{table(heads, rows, numeric=6)}"


def _meanings(device: MemoryDevice) -> str:
    told = [(category, _MEANING[category]) for category in _MEANING if category in device.by_category]
    if not told:
        return ""
    entries = "".join(f"<dt>{category.replace('_', ' ')}</dt><dd>{meaning}</dd>" for category, meaning in told)
    return f'<details class="meanings"><summary>What these words mean</summary><dl>{entries}</dl></details>'


def _holders(device: MemoryDevice, summary: Mapping[str, Any], moment: str, total: int) -> str:
    if not device.top_holders:
        return ""
    rows = [
        (
            bytes_words(holder.bytes),
            f"{holder.bytes / max(1, total):.1%}",
            f"{holder.blocks:,}",
            f"{swatch(holder.category)} {esc(holder.category.replace('_', ' '))} {_sure(holder.sure)}",
            f"<code>{esc(holder.site)}</code>{stack(holder.frames)}",
        )
        for holder in device.top_holders
    ]
    n_holders = max(len(rows), int(summary.get("n_holders", 0)))
    more = f'<p class="note">The largest {len(rows)} of {n_holders:,}.</p>' if n_holders > len(rows) else ""
    heads = ("Bytes", "Share", "Blocks", "What for", "Call site")
    return f"<h3>Who holds it, {moment}</h3>{table(heads, rows, numeric=3)}{more}"


def _flame_key() -> str:
    colours = " ".join(
        f'<svg class="swatch" width="11" height="11" aria-hidden="true"><rect class="f-{kind}" width="11" height="11" '
        f'rx="2"/></svg> {words}'
        for kind, words in _LEGEND
    )
    return (
        f'<p class="key">{colours}. Callers stand above what they call, as wide as the bytes below them.</p>'
        '<p class="readout flame-readout" hidden>Click a frame, or press Enter on it, to zoom; arrow keys move, Escape '
        'goes back.</p><button type="button" class="reset" hidden>Show all</button>'
    )
