"""Telling what people write about a job from what the job printed: only the latter proves anything."""

from __future__ import annotations

from torchtriage.lazy_re import lazy_re

# Words that software hardly prints about itself. "You", "your" and "don't" it does print.
_SPEAKER = lazy_re(
    r"(?:^|[\s(\"'])(?:I|I'm|I've|I'd|we|We|we're|We're|we've|our|Our|my|My|me|us|anyone|Anyone|anybody|somebody|someone|"
    r"colleague|please|Please|thanks|Thanks)(?=[\s,.!?;:)]|$)"
)
_MACHINE = lazy_re(
    r"^\s*(?:\[|<|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|[A-Z]{4,8}\b[:\s]|File \"|Traceback|"
    r"[\w.]+(?:Error|Exception|Warning)\b|"
    r"\S+:\d+:\d+ |[EWI]\d{4} |- To our best knowledge, )"
)
_NEGATION = lazy_re(r"(?i)(?:\b(?:not|no|never|without|neither|nor|any)|n't)\W+(?:\w+\W+){0,3}$")


def is_prose(text: str) -> bool:
    """Whether a line is somebody's sentence about a job rather than its output."""
    head = text[:2000]
    return _SPEAKER.search(head) is not None and _MACHINE.match(head) is None


def is_negated(text: str, position: int) -> bool:
    """Whether what stands at ``position`` is said not to be so ("was not OOMKilled", "no device-side assert")."""
    return _NEGATION.search(text[max(0, position - 60) : position]) is not None
