"""Names that a job gave (functions, groups, operations) in our sentences: quoted unless they look like names."""

from __future__ import annotations

import re

from torchtriage.wording import quoted

MAX_NAME_CHARS = 80
# One word; words with blanks between them could pass for a sentence of ours. Of torch's own names only those of
# point-to-point calls have a blank.
_PLAIN = re.compile(r"(?:(?:send|recv) \d{1,7}(?:->|<-)\d{1,7}|[A-Za-z0-9_.<>:/-]*)\Z")
_SITE = re.compile(r"(?s)(.*) (\([^()]*:(?:-?\d+|\?)\))\Z")
_PLAIN_PLACE = re.compile(r"\([A-Za-z0-9_.<>/-]{1,80}:(?:-?\d{1,20}|\?)\)\Z")


def named(text: str) -> str:
    """The name as it is when it is short and plain; else cleaned, cut and in quotation marks."""
    if len(text) <= MAX_NAME_CHARS and _PLAIN.match(text):
        return text
    return quoted(text, MAX_NAME_CHARS)


def named_site(label: str) -> str:
    """A call site "function (file:line)": its two halves are named apart, so that a long function keeps its place."""
    found = _SITE.match(label) if len(label) <= 512 else None
    if found is None:
        return named(label)
    function, place = found[1], found[2]
    return f"{named(function)} {place if _PLAIN_PLACE.match(place) else quoted(place, MAX_NAME_CHARS)}"
