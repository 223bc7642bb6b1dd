"""The tool ``playbook``: one entry whole, or the entries that fit some words."""

from __future__ import annotations

from torchtriage.artefacts.clean import clean_text
from torchtriage.knowledge.load import load_playbook
from torchtriage.knowledge.search import search
from torchtriage.report import NextCheck, PlaybookHit, PlaybookReport

MAX_HITS = 8


def playbook(query: str | None = None) -> PlaybookReport:
    """Look up the playbook.

    Args:
        query: a failure-mode id (the whole entry comes back), words (the best entries), or nothing (all entries).
    """
    book = load_playbook()
    asked = (query or "").strip()
    # Verdicts write an id behind its branch: hang/uneven-batches-per-rank.
    entry = book.entries.get(asked.lower().rpartition("/")[2].removesuffix(".md"))
    if entry is not None:
        return PlaybookReport(
            tool="playbook",
            status="found",
            summary=f"{entry.id} ({entry.branch}): {entry.title}",
            failure_mode=entry.id,
            branch=entry.branch,
            text=_body(book.text(entry)),
            hits=[PlaybookHit(failure_mode=entry.id, title=entry.title, branch=entry.branch, score=1.0)],
        )
    if not asked:
        hits = [
            PlaybookHit(failure_mode=e.id, title=e.title, branch=e.branch, score=0.0) for e in book.entries.values()
        ]
        hits.sort(key=lambda h: (h.branch, h.failure_mode))
        return PlaybookReport(tool="playbook", status="found", summary=f"{len(hits)} failure modes", hits=hits)
    found = search(book, asked, MAX_HITS)
    hits = [
        PlaybookHit(failure_mode=i, title=book.entries[i].title, branch=book.entries[i].branch, score=round(s, 3))
        for i, s in found
    ]
    if not hits:
        return PlaybookReport(
            tool="playbook",
            status="not_found",
            summary=f"no entry is about {clean_text(asked, 80)!r}",
            next_checks=[NextCheck(tool="playbook", why="without a query it lists all entries")],
        )
    return PlaybookReport(
        tool="playbook",
        status="found",
        summary=f"{len(hits)} entries fit {clean_text(asked, 80)!r}, best first: {hits[0].failure_mode}",
        hits=hits,
        next_checks=[
            NextCheck(tool="playbook", arguments={"query": hits[0].failure_mode}, why="shows that entry whole")
        ],
    )


def _body(text: str) -> str:
    """An entry without its front matter, which is for machines."""
    return text.split("\n---\n", 1)[-1].strip() + "\n"


def render(report: PlaybookReport) -> str:
    """The report as text for a person or an agent."""
    if report.text:
        return report.text
    lines = [report.summary]
    branch = None
    for hit in report.hits:
        if not any(h.score for h in report.hits) and hit.branch != branch:
            branch = hit.branch
            lines.append(f"{branch}:")
        lines.append(f"  {hit.failure_mode}: {hit.title}")
    lines.extend(f"next: {c.tool} {c.arguments.get('query', '')} - {c.why}" for c in report.next_checks)
    return "\n".join(lines)
