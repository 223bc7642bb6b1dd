"""How artefacts are named in reports: printable, without secrets, of bounded length, each name once.

The same inputs give the same names in every call, so that evidence can be found again by them.
"""

from __future__ import annotations

import re

from torchtriage.artefacts.clean import mask_secrets, strip_controls

MAX_NAME_CHARS = 512
MAX_RAW_NAME_CHARS = 4096
_HEAD_CHARS = 160
_CUT_MARK = "..."
_SURROGATES = re.compile("[\ud800-\udfff]")


def display_name(raw: str) -> str:
    """Make a file name of any origin fit to stand in a report.

    Bytes that are no UTF-8 (surrogates, as :func:`os.fsdecode` gives them) become ``\\xff``; control, escape and
    bidirectional characters are removed; secrets are masked; the middle of a long name is left out, because its end
    tells the rank.
    """
    if raw.isascii() and raw.isprintable() and len(raw) <= MAX_NAME_CHARS:
        return mask_secrets(raw).strip() or "unnamed"
    if len(raw) > MAX_RAW_NAME_CHARS:
        raw = raw[:_HEAD_CHARS] + _CUT_MARK + raw[-(MAX_RAW_NAME_CHARS - _HEAD_CHARS) :]
    name = mask_secrets(strip_controls(_SURROGATES.sub(_escaped, raw))).strip()
    if len(name) > MAX_NAME_CHARS:
        tail = MAX_NAME_CHARS - _HEAD_CHARS - len(_CUT_MARK)
        name = (name[:_HEAD_CHARS] + _CUT_MARK + name[-tail:]).strip()
    return name or "unnamed"


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


class UniqueNames:
    """Gives every file a name of its own: the second one that would look the same gets " (2)" appended."""

    def __init__(self) -> None:
        """Start with no name taken."""
        self._taken: dict[str, int] = {}

    def take(self, raw: str) -> str:
        """The display name for one more file."""
        name = display_name(raw)
        count = self._taken.get(name, 0) + 1
        self._taken[name] = count
        if count == 1:
            return name
        numbered = f"{name} ({count})"
        while numbered in self._taken:
            count += 1
            numbered = f"{name} ({count})"
        self._taken[name] = count
        self._taken[numbered] = 1
        return numbered
