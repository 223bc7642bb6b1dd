"""The memory report as text: the answer first, then who holds what, a small timeline, the fixes, the next call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.wording import bytes_words, next_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.tool_reports import MemoryComparison, MemoryDevice, MemoryFix, MemoryReport

MAX_DEVICES = 2
MAX_HOLDERS = 5
MAX_FIXES = 4
_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 48


def render(report: MemoryReport) -> str:
    """Compact text for a terminal or an agent."""
    lines = [f"{report.status}: {report.summary}"]
    leading = report.findings[0].kind if report.findings else ""
    others = list({f.kind: f for f in report.findings if f.kind not in ("history_truncated", leading)}.values())
    lines += [clean_text(f"  also {f.kind.replace('_', ' ')} ({f.sure}): {f.says}", 400) for f in others[:3]]
    shown = _most_telling(report)
    for device in shown:
        lines += _device_lines(device)
    if len(report.devices) > len(shown):
        lines.append(f"  and {len(report.devices) - len(shown)} more devices or snapshots (--json lists them)")
    if report.pinned_host_bytes:
        lines.append(f"  pinned host memory: {bytes_words(report.pinned_host_bytes)}")
    lines += [line for comparison in report.comparisons[:3] for line in _comparison_lines(comparison)]
    lines += _fix_lines(report.fixes)
    if report.evidence:
        lines.append("evidence (quoted from the snapshot):")
    lines += [f"  {clean_text(f'{e.artefact} {e.where} {e.quote[:80]}', 600)}" for e in report.evidence[:3]]
    lines += [f"gap: {clean_text(gap, 240)}" for gap in report.gaps[:4]]
    if len(report.gaps) > 4:
        lines.append(f"gap: {len(report.gaps) - 4} more")
    lines += [f"written: {path}" for path in report.written]
    lines += next_lines(report.next_checks[:2])
    return "\n".join(lines)


def _most_telling(report: MemoryReport) -> list[MemoryDevice]:
    """The devices that findings are about, else those that held most."""
    about = [(f.artefact, f.device) for f in report.findings]
    ordered = sorted(report.devices, key=lambda d: ((d.artefact, d.device) not in about[:1], -d.peak_allocated_bytes))
    return ordered[:MAX_DEVICES]


def _device_lines(device: MemoryDevice) -> list[str]:
    who = f"rank {device.rank}, device {device.device}" if device.rank is not None else f"device {device.device}"
    event = "" if device.peak_event is None else f" (event {device.peak_event})"
    lines = [
        f"  {who} ({device.artefact}): allocated {bytes_words(device.allocated_bytes)} of "
        f"{bytes_words(device.reserved_bytes)} reserved now, {bytes_words(device.peak_allocated_bytes)} at the "
        f"peak{event}; free in reserved {bytes_words(device.fragmentation_bytes)}, "
        f"largest piece {bytes_words(device.largest_free_bytes)}"
    ]
    if len(device.timeline) > 8:
        lines.append(f"    {_sparkline([sample[1] for sample in device.timeline])} allocated, first to last event")
    if device.by_category:
        ordered = sorted(device.by_category.items(), key=lambda item: -item[1])
        held = ", ".join(f"{name.replace('_', ' ')} {bytes_words(size)}" for name, size in ordered[:6])
        lines.append(f"    at the {'failed request' if device.moment == 'oom' else 'peak'}: {held}")
    for holder in device.top_holders[:MAX_HOLDERS]:
        blocks = f"{holder.blocks} block{'s' if holder.blocks > 1 else ''}"
        lines.append(
            f"    {bytes_words(holder.bytes):>11}  {blocks:<11} {holder.category.replace('_', ' ')} ({holder.sure}) "
            f"{clean_text(holder.site, 120)}"
        )
    if device.history_truncated:
        lines.append("    the history lost its oldest events: what is older has no call site")
    return lines


def _sparkline(values: Sequence[int]) -> str:
    top = max(*values, 1)
    piece = max(1, -(-len(values) // _WIDTH))
    highest = [max(values[i : i + piece]) for i in range(0, len(values), piece)]
    return "".join(_BARS[max(0, round(value * (len(_BARS) - 1) / top))] for value in highest)


def _comparison_lines(comparison: MemoryComparison) -> list[str]:
    who = f"rank {comparison.rank}" if comparison.rank is not None else "the job"
    sign = "more" if comparison.more_bytes >= 0 else "less"
    amount = bytes_words(abs(comparison.more_bytes))
    if comparison.of == "ranks":
        last = " (the last rank, as the last pipeline stage is)" if comparison.last_rank else ""
        head = f"  {who}{last} held {amount} {sign} at its peak than {comparison.before}"
    else:
        head = f"  {who}: {amount} {sign} in {comparison.after} than in {comparison.before}"
    grown = [c for c in comparison.changes if c.after_bytes > c.before_bytes]
    return [
        head,
        *(
            f"    {bytes_words(c.before_bytes)} to {bytes_words(c.after_bytes)}  {c.category.replace('_', ' ')} "
            f"{clean_text(c.site, 120)}"
            for c in grown[:5]
        ),
    ]


def _fix_lines(fixes: Sequence[MemoryFix]) -> list[str]:
    lines = ["fix, by what it would free here:"] if fixes else []
    for fix in fixes[:MAX_FIXES]:
        frees = f"about {bytes_words(fix.frees_bytes)}: " if fix.frees_bytes else ""
        unless = f" (not where {fix.unless})" if fix.unless else ""
        lines.append(f"  - {frees}{fix.action}{unless}")
    return lines
