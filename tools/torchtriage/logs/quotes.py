"""Evidence from lines, with the telling part inside the quotation even when the line is long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import QUOTE_CHARS, clean_text
from torchtriage.artefacts.evidence import quote_line
from torchtriage.report import Evidence

if TYPE_CHECKING:
    from torchtriage.logs.records import Line

_BEFORE_CHARS = 80


def quote(line: Line, signal: str, needle: str = "") -> Evidence:
    """Quote a line, or the window of it that holds ``needle``."""
    if needle and (at := line.text.find(needle)) >= 0 and at + len(needle) > QUOTE_CHARS:
        # The window is cut from the cleaned text, so that no secret is cut into something that no mask knows.
        cleaned = clean_text(line.text, limit=None)
        if (at := cleaned.find(needle)) >= 0:
            start = max(0, at - _BEFORE_CHARS)
            return Evidence(
                artefact=line.source,
                where=str(line.number),
                quote=cleaned[start : start + QUOTE_CHARS].strip(),
                signal=signal,
            )
    return quote_line(line.source, line.number, line.text, signal)
