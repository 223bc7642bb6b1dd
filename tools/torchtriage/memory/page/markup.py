"""Pieces of HTML: everything that came from a snapshot goes through :func:`esc`, and no style or script is inline."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_NAME_CHARS = 300
MAX_SENTENCE_CHARS = 1000


def esc(text: object, limit: int = MAX_NAME_CHARS) -> str:
    """Text of any origin, fit to stand in an element or in a quoted attribute."""
    return escape(clean_text(str(text), limit), quote=True)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: int = 0) -> str:
    """A table of ready HTML cells; on a narrow screen each row is a card, and each cell says its column.

    Args:
        heads: names of the columns, plain words of ours.
        rows: cells of each row.
        numeric: how many of the first columns are numbers.
    """
    kinds = ["n" if number < numeric else "t" for number in range(len(heads))]
    head = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in zip(heads, kinds, strict=True))
    # Where rows are cards, their roles are lost unless they are said.
    body = "".join(
        '<tr role="row">'
        + "".join(
            f'<td role="cell" class="{kind}" data-head="{name}">{cell}</td>'
            for name, kind, cell in zip(heads, kinds, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<table role="table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def items(entries: Iterable[str], *, ordered: bool = False, of_class: str = "plain") -> str:
    """A list of ready HTML; nothing where there are no entries."""
    inner = "".join(f"<li>{entry}</li>" for entry in entries)
    tag = "ol" if ordered else "ul"
    return f'<{tag} class="{of_class}">{inner}</{tag}>' if inner else ""


def stack(frames: Sequence[str]) -> str:
    """Frames to fold out, innermost first; nothing where the call site, which stands there already, is all of them."""
    if len(frames) < 2:
        return ""
    lines = "".join(f"<li><code>{esc(frame)}</code></li>" for frame in frames)
    return f'<details><summary>{len(frames)} frames</summary><ol class="frames">{lines}</ol></details>'


def part(title: str, inner: str) -> str:
    """A part of the page with its heading; nothing where it is empty."""
    return f"<section><h2>{title}</h2>{inner}</section>" if inner else ""
