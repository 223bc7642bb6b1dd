"""Names that a job gave (functions, groups, operations) in our sentences: quoted unless they look like names."""

from __future__ import annotations

import re

from torchtriage.wording import quoted

MAX_NAME_CHARS = 80
_PLAIN = re.compile(r"[A-Za-z0-9_.<>:()\-/ ]*\Z")
_SITE = re.compile(r"(?s)(.*) (\([^()]*:(?:-?\d+|\?)\))\Z")


def named(text: str) -> str:
    """The name as it is when it is short and plain; else cleaned, cut and in quotation marks."""
    if len(text) <= MAX_NAME_CHARS and _PLAIN.match(text):
        return text
    return quoted(text, MAX_NAME_CHARS)


def named_site(label: str) -> str:
    """A call site "function (file:line)": its two halves are named apart, so that a long function keeps its place."""
    found = _SITE.match(label) if len(label) <= 512 else None
    if found is None or (len(label) <= MAX_NAME_CHARS and _PLAIN.match(label)):
        return named(label)
    return f"{named(found[1])} {named(found[2])}"
