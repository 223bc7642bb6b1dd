"""The reference page of a branch: its questions from the decision tree, its failure modes from the playbook.

A page is short enough to be read whole; a mode's cause and fix stay in its entry.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torchtriage.knowledge.entries import items_of, split_document
from torchtriage.knowledge.tree import call_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchtriage.knowledge.entries import Entry
    from torchtriage.knowledge.load import Playbook

MAX_PAGE_CHARS = 10_000
"""About 2,900 tokens: such text has 3.4 characters a token where there are more words than commands in it."""
_ROOM = ((240, 4), (160, 3), (110, 3), (90, 2), (70, 2), (50, 1))
"""Characters of a proof and number of neighbours, from a small branch to a large one."""
_ENOUGH_CHARS = 60
_COMMAND = re.compile(r"`torchtriage ([a-z-]+)[^`]*`")
_PIECE = re.compile(r"`[^`]*`|[^\s`]+|\s+")


def render_page(branch: dict[str, Any], book: Playbook) -> str:
    """The page as Markdown, with as much of each proof as leaves it short."""
    entries = [entry for entry in book.entries.values() if entry.branch == branch["name"]]
    page = ""
    for proof_chars, neighbours in _ROOM:
        page = "\n".join([*_questions(branch), *_table(entries, book, proof_chars, neighbours), ""])
        if len(page) <= MAX_PAGE_CHARS:
            break
    return page


def _questions(branch: dict[str, Any]) -> Iterator[str]:
    yield f"# {branch['name']}: {branch['when']}"
    yield "\nQuestions in order; an arrow leads to the next one, to failure modes or to another page.\n"
    numbers = {node["id"]: number for number, node in enumerate(branch["nodes"], start=1)}
    for node in branch["nodes"]:
        yield f"{numbers[node['id']]}. **{node['ask']}** `{call_words(node)}`: {node['see']}"
        yield from (f"   - {answer['if']} → {_leads_to(answer, numbers)}" for answer in node["answers"])


def _leads_to(answer: dict[str, Any], numbers: dict[str, int]) -> str:
    if "node" in answer:
        return f"question {numbers[answer['node']]}"
    if "branch" in answer:
        return f"page {answer['branch']}"
    if "collect" in answer:
        return f"collect: {answer['collect']}"
    return ", ".join(f"`{mode}`" for mode in answer["modes"])


def _table(entries: list[Entry], book: Playbook, proof_chars: int, most_neighbours: int) -> Iterator[str]:
    yield "\n## Failure modes\n"
    yield "`playbook(query=ID)` shows cause, proof and fix. The last column: rows of this table, or ids.\n"
    yield "| | id: what it is | what proves it | confused with |"
    yield "|---|---|---|---|"
    rows = {entry.id: row for row, entry in enumerate(entries, start=1)}
    for entry in entries:
        section = split_document(book.text(entry), entry.path)[1]["Prove it"]
        proof = _shortened(next(iter(items_of(section)), section), proof_chars)
        here = [str(rows[other]) for other in entry.confused_with if other in rows]
        elsewhere = [f"`{other}`" for other in entry.confused_with if other not in rows]
        neighbours = ", ".join([*here, *elsewhere][:most_neighbours])
        cells = (str(rows[entry.id]), f"`{entry.id}`: {entry.title}", proof, neighbours)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _shortened(text: str, most_chars: int) -> str:
    """The first statements, or as much of them as fits; code is kept whole or left out."""
    kept, length = "", 0
    pieces = _PIECE.findall(_COMMAND.sub(r"`\1`", " ".join(text.split())))
    for piece in pieces:
        length += len(piece)
        if length > most_chars:
            return kept.rstrip(" ,:;(") + " ..."
        kept += piece
        if length > _ENOUGH_CHARS and piece[-1] in ".;" and not piece.startswith("`"):
            break
    return kept.rstrip(" .;")
