"""Masks the secrets of a log, line by line from its end: those within a line, and those that a line end cuts in two.

A value may stand on the line after its name, a quoted value may go on there, and a private key is a block of lines. A
line alone does not tell that, so lines are looked at with the one before.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import MASK, mask_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

# A progress bar goes back to the beginning of its line and never ends it.
LINE_END = re.compile(r"(\r\n|[\r\n])")
_KEY_BEGINS, _KEY_ENDS = "-----BEGIN ", "-----END "
_OF_A_KEY = re.compile(r"[A-Z0-9 ]{0,40}PRIVATE KEY-----")
_MAX_KEY_CHARS = 32_768
# A name whose value does not follow on its line; in YAML "|" or ">" says so, in a shell a backslash.
_NAME = (
    r"(?:passw(?:or)?d|passphrase|secret|(?:api|access|private|account|secret|auth|wandb|openai|anthropic|hf)[_\- ]?key"
    r"|credentials?|(?:^|[^a-z0-9])(?:[a-z]{1,20}[_\-])?token)(?:_[a-z0-9_\-]{0,32})?"
)
_NAME_ALONE = re.compile(
    rf"(?i){_NAME}(?:\\{{0,3}}['\"])?\s{{0,16}}(?:[:=]\s{{0,16}}(?:[|>][+\-]?|\\{{0,3}}['\"]|\\)?|\\)$"
)
_ENDS_OF_NAMES = (":", "=", ">", "|", "+", "-", '"', "'", "\\")
_NAME_CHARS = 256
_WHO_SAYS = r"(\s{0,64}(?:\[[^\]\n]{1,60}\]:?\s{0,4}){0,3})"
_VALUE_ALONE = re.compile(
    rf"^{_WHO_SAYS}(['\"]?)(?![\d.,]{{1,64}}['\"]?[,;)}}\]]{{0,3}}\s*$)[^\s'\"]{{4,4096}}(['\"]?[,;)}}\]]{{0,3}}\s{{0,16}}\\?)$"
)
_OPENED = re.compile(r"([\"'])\[masked\]$")


def mask_lines(text: str, deadline: float, clock: Callable[[], float], before: str = "") -> tuple[str, bool]:
    """The masked lines from the end on, as many as there is time for, but always the last; and whether that is all.

    Args:
        text: the log.
        deadline: until when, as ``clock`` tells.
        clock: seconds.
        before: the end of the line before the first one, which is not kept.
    """
    parts = LINE_END.split(_without_keys(text))  # a line, its end, a line, its end, ..., what follows the last end
    lines: list[str] = []
    ends: list[str] = []
    whole = True
    for at in range(len(parts) - 1, -1, -2):
        if len(lines) > 1 and clock() >= deadline:
            whole = False
            before = parts[at]
            break
        masked = mask_secrets(parts[at])
        if lines:
            lines[-1] = _after(parts[at], masked, lines[-1])
        lines.append(masked)
        ends.append("".join(parts[at + 1 : at + 2]))
    if lines:
        lines[-1] = _after(before, "", lines[-1])
    return "".join(line + end for line, end in zip(reversed(lines), reversed(ends), strict=True)), whole


def _after(line: str, masked: str, following: str) -> str:
    """The following line without what belongs to a value of this one."""
    if line.rstrip().endswith(_ENDS_OF_NAMES) and _NAME_ALONE.search(line[-_NAME_CHARS:].rstrip()):
        return _VALUE_ALONE.sub(rf"\1\2{MASK}\3", following, count=1)
    opened = _OPENED.search(masked)
    if opened is not None and opened[1] in following and line.rstrip()[-1:] != opened[1]:
        return MASK + following[following.index(opened[1]) :]
    return following


def _without_keys(text: str) -> str:
    """The text without blocks of private keys, whatever stands before their lines; also where the head is cut off."""
    kept: list[str] = []
    at = 0
    while (end := text.find(_KEY_ENDS, at)) >= 0:
        closing = _OF_A_KEY.match(text, end + len(_KEY_ENDS))
        if closing is None:
            kept.append(text[at : end + 1])
            at = end + 1
            continue
        begin = text.rfind(_KEY_BEGINS, max(at, end - _MAX_KEY_CHARS), end)
        if begin < 0:
            begin = _first_of_key(text, max(at, end - _MAX_KEY_CHARS), end)
        kept += [text[at:begin], MASK]
        at = closing.end()
    kept.append(text[at:])
    return "".join(kept)


_IN_KEY = re.compile(r"(?:^|\s|:)[A-Za-z0-9+/]{8,80}={0,2}\s{0,8}$")


def _first_of_key(text: str, start: int, end: int) -> int:
    """Where the lines before the end of a key begin that look like the key."""
    begin = text.rfind("\n", start, end) + 1 or start
    while begin > start:
        above = text.rfind("\n", start, begin - 1) + 1 or start
        if not _IN_KEY.search(text[above : begin - 1][-200:]):
            break
        begin = above
    return begin
