"""The whole page: the verdict first, then the fixes, each device, comparisons, and what could not be told.

One file of less than ``MAX_PAGE_BYTES`` that loads nothing: its policy allows the browser its own script and style
alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from torchtriage import __version__
from torchtriage.memory.page.device import device_section, who
from torchtriage.memory.page.markup import MAX_SENTENCE_CHARS, esc, items, part, table
from torchtriage.wording import bytes_words, command_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.memory.analyze import MemoryFindings
    from torchtriage.tool_reports import MemoryComparison, MemoryDevice, MemoryFinding, MemoryReport

MARK = "<!-- torchtriage memory_snapshot -->"
"""Stands behind the document type, so that a page of ours is known as one."""
START = f"<!DOCTYPE html>\n{MARK}\n"
MAX_PAGE_BYTES = 2_000_000
MAX_SECTIONS = 16
MAX_ROWS = 256
MAX_COMPARISONS = 16
MAX_CHANGES = 10
_SECTIONS_BYTES = 1_200_000
_FLAMES_BYTES = 600_000
_MAX_FLAME_BYTES = 400_000
_SITE_CHARS = 160
_GAP_CHARS = 400
_CODE = re.compile(r"`([^`\n]{1,200})`")


def page_of(report: MemoryReport, found: MemoryFindings) -> str:
    """The page of a report.

    Args:
        report: what is shown.
        found: what it was made from, whose summaries have the stacks (``flame``).
    """
    summaries = [device for snapshot in found.snapshots for device in snapshot.summary["devices"]]
    chosen = _most_telling(report)
    sections, bodies = _sections(report, summaries, chosen)
    left = len(report.devices) - len(sections)
    one = len(report.devices) == 1
    body = [
        f'<header><h1>GPU memory <span class="status {report.status}">{report.status}</span></h1>'
        f'<p class="verdict">{esc(report.summary, MAX_SENTENCE_CHARS)}</p></header>',
        part("What would free memory", _fixes(report)),
        "" if one else part("Devices", _overview(report, sections)),
        *bodies,
        f'<p class="note">{left} more devices or snapshots have no section of their own.</p>' if left else "",
        part("Compared", "".join(_comparison(c) for c in report.comparisons[:MAX_COMPARISONS])),
        part("What could not be told", items(esc(gap, _GAP_CHARS) for gap in report.gaps)),
        part("What to do next", _next(report)),
        part("Quoted from the snapshots", _evidence(report)),
        f"<footer>Written by torchtriage {esc(__version__)}. This page loads nothing.</footer>",
    ]
    return _document(report, "".join(body))


def _document(report: MemoryReport, body: str) -> str:
    here = files("torchtriage.memory.page")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    return (
        f'{START}<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>GPU memory: {report.status}</title><style>{style}</style></head>"
        f"<body><main>{body}</main><script>{script}</script></body></html>\n"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _most_telling(report: MemoryReport) -> list[int]:
    """Positions of the devices, those first that findings are about, then those that held most."""
    order: dict[tuple[str, int], int] = {}
    for finding in report.findings:
        order.setdefault((finding.artefact, finding.device), len(order))

    def key(position: int) -> tuple[int, int]:
        device = report.devices[position]
        return order.get((device.artefact, device.device), len(order)), -device.peak_allocated_bytes

    return sorted(range(len(report.devices)), key=key)[:MAX_SECTIONS]


def _sections(
    report: MemoryReport, summaries: Sequence[Mapping[str, Any]], chosen: Sequence[int]
) -> tuple[dict[int, str], list[str]]:
    """Anchors of the devices that have a section, and the sections, as many as there is room for."""
    anchors: dict[int, str] = {}
    bodies: list[str] = []
    room = _SECTIONS_BYTES
    for position in chosen:
        device = report.devices[position]
        budget = min(_MAX_FLAME_BYTES, _FLAMES_BYTES // len(chosen))
        body = device_section(f"d{position}", device, summaries[position], _findings_of(report, device), budget)
        room -= len(body.encode())
        if room < 0:
            break
        anchors[position] = f"d{position}"
        bodies.append(body)
    return anchors, bodies


def _findings_of(report: MemoryReport, device: MemoryDevice) -> list[MemoryFinding]:
    return [f for f in report.findings if (f.artefact, f.device) == (device.artefact, device.device)]


def _overview(report: MemoryReport, anchors: Mapping[int, str]) -> str:
    """Every device in one line, in the order given, with the way to its section."""
    rows: list[tuple[str, ...]] = []
    for position, device in enumerate(report.devices[:MAX_ROWS]):
        name, findings = who(device), _findings_of(report, device)
        rows.append(
            (
                bytes_words(device.peak_allocated_bytes),
                bytes_words(device.peak_reserved_bytes),
                f'<a href="#{anchors[position]}">{name}</a>' if position in anchors else name,
                esc(device.artefact, _SITE_CHARS),
                esc(", ".join(dict.fromkeys(f.kind.replace("_", " ") for f in findings))) or "no finding",
            )
        )
    more = len(report.devices) - len(rows)
    note = f'<p class="note">And {more} more.</p>' if more > 0 else ""
    heads = ("Peak allocated", "Peak reserved", "Device", "Snapshot", "Findings")
    return (table(heads, rows, numeric=2) + note) if rows else ""


def _fixes(report: MemoryReport) -> str:
    return items(
        (
            (f"<b>about {bytes_words(fix.frees_bytes)}</b>: " if fix.frees_bytes else "")
            + _CODE.sub(r"<code>\1</code>", esc(fix.action, MAX_SENTENCE_CHARS))
            + (f' <span class="unless">(not where {esc(fix.unless, MAX_SENTENCE_CHARS)})</span>' if fix.unless else "")
            for fix in report.fixes
        ),
        ordered=True,
        of_class="fixes",
    )


def _comparison(comparison: MemoryComparison) -> str:
    name = f"rank {comparison.rank}" if comparison.rank is not None else "the job"
    amount = f"{bytes_words(abs(comparison.more_bytes))} {'more' if comparison.more_bytes >= 0 else 'less'}"
    before, after = esc(comparison.before), esc(comparison.after)
    if comparison.of == "ranks":
        last = " (the last rank, as the last pipeline stage is)" if comparison.last_rank else ""
        head = f"{name}{last} held {amount} at its peak than {before}"
    else:
        head = f"{name}: {amount} in {after} than in {before}"
    rows = [
        (
            bytes_words(change.before_bytes),
            bytes_words(change.after_bytes),
            esc(change.category.replace("_", " ")),
            f"<code>{esc(change.site, _SITE_CHARS)}</code>",
        )
        for change in comparison.changes[:MAX_CHANGES]
    ]
    return f"<h3>{head}</h3>" + (table(("Before", "After", "What for", "Call site"), rows, numeric=2) if rows else "")


def _next(report: MemoryReport) -> str:
    return items(
        f"<code>{esc(command_line(check), 600)}</code><br>{esc(check.why, 400)}" for check in report.next_checks
    )


def _evidence(report: MemoryReport) -> str:
    rows = [
        (esc(e.artefact, _SITE_CHARS), f"<code>{esc(e.where)}</code>", f"<code>{esc(e.quote)}</code>")
        for e in report.evidence
    ]
    return table(("Snapshot", "Where", "Quote"), rows) if rows else ""
