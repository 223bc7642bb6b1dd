"""Checkable evidence: how a quotation is made and how anybody can find it again.

For text ``where`` is a line number; for structured artefacts it is a JSON Pointer (RFC 6901) into the reader's view.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.errors import UnreadableError
from torchtriage.report import Evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.artefacts.inputs import Artefact

_MAX_LINE_DIGITS = 12
MAX_POINTER_CHARS = 512
STRUCTURED_FORMATS = frozenset({"pickle", "json", "xml"})


def quote_line(artefact: str, line_number: int, line: str, signal: str) -> Evidence:
    """Quote one line (numbered from 1) of a text artefact."""
    return Evidence(artefact=artefact, where=str(line_number), quote=clean_text(line), signal=signal)


def quote_value(artefact: str, pointer: str, value: object, signal: str) -> Evidence:
    """Quote the value at a JSON Pointer of a structured artefact as compact JSON."""
    return Evidence(artefact=artefact, where=pointer, quote=clean_text(compact_json(value)), signal=signal)


def is_quotable(pointer: str) -> bool:
    """Whether a pointer can be shown as it is: keys of a job's may hold escape sequences or secrets."""
    return len(pointer) <= MAX_POINTER_CHARS and clean_text(pointer, limit=None) == pointer


def compact_json(value: object) -> str:
    """Compact JSON with keys in the artefact's own order; tuples are arrays, unknown objects their repr."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=repr)


def check_evidence(evidence: Evidence, paths: Sequence[str]) -> bool:
    """Say whether the quotation occurs where it claims to, in what ``paths`` names.

    This is the check that scorers use: the artefact must exist under the name that reports give it, the line or pointer
    must exist, and the quote must be part of the cleaned line, or of the cleaned compact JSON.
    """
    from torchtriage.artefacts.inputs import open_inputs

    with open_inputs(paths) as inputs:
        artefact = next((a for a in inputs.artefacts if a.name == evidence.artefact), None)
        return artefact is not None and quote_occurs(evidence, artefact)


def quote_occurs(evidence: Evidence, artefact: Artefact) -> bool:
    """Like :func:`check_evidence`, for an artefact that is already open."""
    from torchtriage.artefacts.isolate import view_value
    from torchtriage.artefacts.text import read_line

    if not evidence.quote:
        return False
    try:
        if evidence.where.isdecimal() and len(evidence.where) <= _MAX_LINE_DIGITS:
            line = read_line(artefact, int(evidence.where))
            return line is not None and evidence.quote in clean_text(line, limit=None)
        if artefact.format not in STRUCTURED_FORMATS:
            return False
        return evidence.quote in clean_text(view_value(artefact, evidence.where), limit=None)
    except (UnreadableError, KeyError):
        return False
