"""The tool ``playbook``: an entry or a branch's page whole, what a message means, or the entries that fit words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.knowledge.load import load_playbook
from torchtriage.knowledge.search import search
from torchtriage.knowledge.templates import ROLES, template_of_pattern
from torchtriage.knowledge.tree import branch_named, reference_page
from torchtriage.report import NextCheck
from torchtriage.tool_reports import PlaybookHit, PlaybookReport
from torchtriage.wording import next_lines

if TYPE_CHECKING:
    from torchtriage.knowledge.entries import Condition, Entry
    from torchtriage.knowledge.load import Playbook
    from torchtriage.knowledge.templates import Template

MAX_HITS = 8
MAX_MESSAGES = 3
MAX_QUERY_CHARS = 16 << 10


def playbook(query: str | None = None) -> PlaybookReport:
    """Look up the playbook.

    Args:
        query: a failure-mode id (the whole entry comes back), a branch such as ``hang`` (its page: the questions that
            separate, and its failure modes), a line of a log or the id of a message (what it means), words (the best
            entries), or nothing (all entries).
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
            text=_body(book.text(entry), entry),
            hits=[PlaybookHit(failure_mode=entry.id, title=entry.title, branch=entry.branch, score=1.0)],
        )
    branch = branch_named(asked)
    if not asked or branch is not None:
        hits = [
            PlaybookHit(failure_mode=e.id, title=e.title, branch=e.branch, score=0.0)
            for e in book.entries.values()
            if branch in (None, e.branch)
        ]
        hits.sort(key=lambda h: (h.branch, h.failure_mode))
        return PlaybookReport(
            tool="playbook",
            status="found",
            summary=f"{len(hits)} failure modes" + (f" of the branch {branch}" if branch else ""),
            branch=branch,
            text=reference_page(branch) if branch else "",
            hits=hits,
        )
    messages = _messages(book, asked[:MAX_QUERY_CHARS])
    naming = [i for message in messages for i in _naming(book, message)]
    found = dict.fromkeys(naming, 1.0) | {i: s for i, s in search(book, asked, MAX_HITS) if i not in naming}
    hits = [
        PlaybookHit(failure_mode=i, title=book.entries[i].title, branch=book.entries[i].branch, score=round(s, 3))
        for i, s in list(found.items())[:MAX_HITS]
    ]
    if messages:
        return PlaybookReport(
            tool="playbook",
            status="found",
            summary=f"{messages[0].id}: {messages[0].means}",
            text="\n\n".join(_explained(book, message) for message in messages) + "\n",
            hits=hits,
        )
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


def _messages(book: Playbook, asked: str) -> list[Template]:
    """The message of that id, or those that the text is; those that tell most about a cause first."""
    known = {name.lower(): template for name, template in book.templates.items()}
    if asked.lower() in known:
        return [known[asked.lower()]]
    from torchtriage.logs.scan.read import PatternSet, scan, text_source

    patterns = PatternSet([p for template in known.values() for p in template.patterns()])
    ids = dict.fromkeys(template_of_pattern(hit.pattern_id) for hit in scan([text_source(asked)], patterns).hits)
    found = [book.templates[i] for i in ids if i is not None]
    return sorted(found, key=lambda template: ROLES.index(template.role))[:MAX_MESSAGES]


def _naming(book: Playbook, message: Template) -> list[str]:
    """Entries that the message, or a text of it, speaks for; those that it proves almost alone first."""
    needs: dict[str, int] = {}
    for entry in book.entries.values():
        sets = [p.conditions for p in entry.proves if any(_names(c, message) for c in p.conditions)]
        if sets or any(_names(c, message) for c in entry.supports):
            needs[entry.id] = min((len(conditions) for conditions in sets), default=99)
    return sorted(needs, key=lambda entry_id: needs[entry_id])


def _names(condition: Condition, message: Template) -> bool:
    texts = condition.texts
    return message.id in condition.templates or any(a in b or b in a for a in message.texts for b in texts)


def _explained(book: Playbook, message: Template) -> str:
    lines = [f"{message.id} ({message.role}; {message.versions}): {message.means}"]
    lines += [f'  Look for: "{text}"' for text in message.texts[:3]]
    if message.caveat:
        lines.append(f"  But: {message.caveat}")
    if entries := _naming(book, message):
        lines.append(f"  Named by: {', '.join(entries)}")
    return "\n".join(lines)


def _body(text: str, entry: Entry) -> str:
    """An entry without its front matter, which is for machines, but with the versions that alone have the fault."""
    body = text.split("\n---\n", 1)[-1].strip() + "\n"
    if not entry.versions:
        return body
    title, _, rest = body.partition("\n")
    only = ", ".join(f"{package} {known.text}" for package, known in entry.versions)
    return f"{title}\n\nOnly in: {only}. With another version it is something else.\n{rest}"


def render(report: PlaybookReport) -> str:
    """The report as text for a person or an agent."""
    if report.failure_mode or report.branch:
        return report.text
    lines = [report.text or report.summary]
    if report.text and report.hits:
        lines.append("Entries that fit:")
    branch = None
    for hit in report.hits:
        if not any(h.score for h in report.hits) and hit.branch != branch:
            branch = hit.branch
            lines.append(f"{branch}:")
        lines.append(f"  {hit.failure_mode}: {hit.title}")
    lines += next_lines(report.next_checks)
    return "\n".join(lines)
