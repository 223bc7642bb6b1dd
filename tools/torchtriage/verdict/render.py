"""The verdict as text: the answer in the first line, evidence under it, the next command last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.report import SUSPECTED_FROM, Verdict
from torchtriage.verdict.compose import UNSEEN
from torchtriage.wording import next_lines, rank_words

if TYPE_CHECKING:
    from torchtriage.report import Evidence, Recognised, Report

MAX_QUOTE_CHARS = 170
MAX_MEANINGS = 5
MAX_MEANS_CHARS = 120
MAX_RULED_OUT = 3
MAX_FIXES = 3


def render(verdict: Verdict) -> str:
    """Text for a person or an agent; complete in itself, a verdict in some 400 tokens."""
    head = verdict.status.upper()
    if verdict.failure_mode:
        head += f" {verdict.branch}/{verdict.failure_mode} ({verdict.confidence:.2f})"
    lines = [f"{head}: {verdict.summary}"]
    if who := _culprits(verdict):
        lines.append(f"Culprit: {who}")
    if verdict.cause:
        lines.append(f"Why: {verdict.cause}")
    lines += evidence_lines(verdict.evidence)
    if known := _worth_telling(verdict):
        lines.append("What the lines mean:")
        lines += [f"  {_meaning(r)}" for r in known]
    if ruled_out := [r for r in verdict.ruled_out if not r.because.startswith(UNSEEN)][:MAX_RULED_OUT]:
        lines.append("Not:")
        lines += [f"  {r.failure_mode}: {r.because}" for r in ruled_out]
    # Beside a diagnosis, what only might be possible is noise; the report itself lists it.
    least = SUSPECTED_FROM if verdict.status == "diagnosed" else 0.0
    rest = [c for c in verdict.candidates if c.failure_mode != verdict.failure_mode and c.confidence >= least][:3]
    if rest:
        lines.append("Also possible: " + ", ".join(f"{c.failure_mode} ({c.confidence:.2f})" for c in rest))
    if verdict.fix:
        lines.append("Fix:")
        lines += [f"  {number}. {fix}" for number, fix in enumerate(verdict.fix[:MAX_FIXES], start=1)]
        if (more := len(verdict.fix) - MAX_FIXES) > 0:
            lines.append(f"  {more} more: torchtriage playbook {verdict.failure_mode}")
    lines += closing_lines(verdict)
    return "\n".join(lines)


def evidence_lines(evidence: list[Evidence]) -> list[str]:
    """Quotations with where they stand; the quotes are data from the job and stand in quotation marks."""
    if not evidence:
        return []
    return [
        "Evidence (quoted from the job):",
        *(f"  {clean_text(e.artefact)}:{e.where} {_quoted(e.quote)} [{e.signal}]" for e in evidence),
    ]


def _worth_telling(verdict: Verdict) -> list[Recognised]:
    """Where a cause is named, what victims saw is explained by it; the report itself lists it."""
    known = verdict.recognised
    if verdict.failure_mode and verdict.tool != "explain_symptom":
        known = [r for r in known if r.role in ("cause", "ambiguous")]
    return known[:MAX_MEANINGS]


def _meaning(known: Recognised) -> str:
    """One line: what a message means, which one it is, and who printed it."""
    means = known.means if len(known.means) <= MAX_MEANS_CHARS else known.means.partition(". ")[0][:MAX_QUOTE_CHARS]
    who = [f"seen {known.count} times"] if known.count > 1 else []
    who += [rank_words(known.ranks)] if known.ranks else []
    return f"{means.rstrip('.')} ({'; '.join([known.template, ', '.join(who)] if who else [known.template])})"


def _quoted(quote: str) -> str:
    """In quotation marks; JSON strings bring their own."""
    cut = quote[:MAX_QUOTE_CHARS]
    marked = cut if cut.startswith('"') and cut.endswith('"') and len(cut) > 1 else f'"{cut}"'
    # The dots stand outside the quotation, which must be found in the artefact as it stands.
    return f"{marked}..." if len(quote) > MAX_QUOTE_CHARS else marked


def closing_lines(report: Report) -> list[str]:
    """Gaps, and the next command last."""
    lines: list[str] = []
    if report.gaps:
        lines.append("Not seen or not judged:")
        lines += [f"  {gap}" for gap in report.gaps]
    if isinstance(report, Verdict) and report.bundle is not None:
        lines.append(f"Bundle: {clean_text(report.bundle, 300)}")
    return lines + next_lines(report.next_checks)


def _culprits(verdict: Verdict) -> str:
    found = verdict.culprits
    parts = [rank_words(found.ranks)] if found.ranks else []
    parts += [f"{name} {', '.join(clean_text(v) for v in values)}" for name, values in (
        ("GPU", found.gpus), ("link", found.links), ("host", found.hosts)) if values]  # fmt: skip
    return "; ".join(parts)
