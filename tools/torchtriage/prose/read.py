"""Sentences of a pasted text that a person wrote, told apart from the lines that software printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINES = 5000
MAX_LINE_CHARS = 4000
MAX_SENTENCES = 2000
# Words that hold sentences together and that log lines seldom have two of.
_GLUE_WORDS = (
    "a an and after all any are as at be because before but by do does for from has have how i if in is it its my no "
    "not of on only or our so that the then there they this to was we what when while why with without you"
)
_GLUE = frozenset(_GLUE_WORDS.split())
_MIN_GLUE = 2
# So few words a person writes without them ("dies exactly every 2 hours").
_FEW_WORDS = 8
_WORD = lazy_re(r"[a-z]{1,20}", re.IGNORECASE)
# How lines begin that a program wrote: a level, a time, a rank or a host in brackets, a frame, a structure.
_PRINTED = lazy_re(
    r"\s{0,40}(?:\[[^\]]{1,80}\]|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|[A-Z][a-z]{2} \d\d? \d\d:|[A-Z]\d{4} |"
    r"(?:\S{1,60}: ){1,2}\[|"
    r"File \"|Traceback |(?:WARN|WARNING|ERROR|INFO|DEBUG|FATAL|CRITICAL)\b|[\w.]{1,80}(?:Error|Exception|Warning): |"
    r"\S{1,80}:\d{1,7}: |[{}<>|+*#=$-])"
)
# What stands in back quotes was printed, not said.
_QUOTED = lazy_re(r"`[^`]{1,1000}`")
_END = lazy_re(r"(?<=[.!?;])\s+|\s+-\s+|(?<=\S)\s{2,}")


@dataclass(frozen=True)
class Sentence:
    """One sentence as it stands in its line."""

    line_number: int
    line: str
    text: str


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of a text, at most :data:`MAX_SENTENCES`; lines that software printed are left out."""
    left = MAX_SENTENCES
    for number, line in enumerate(text.split("\n", MAX_LINES)[:MAX_LINES], start=1):
        if not is_prose(line):
            continue
        for part in _END.split(_QUOTED.sub(" ", line[:MAX_LINE_CHARS])):
            if part.strip():
                yield Sentence(number, line, part.strip())
                left -= 1
                if left == 0:
                    return


def is_prose(line: str) -> bool:
    """Whether a person rather than a program seems to have written the line."""
    head = line[:MAX_LINE_CHARS]
    if _PRINTED.match(head):
        return False
    found = _WORD.findall(head)
    glue = sum(word.lower() in _GLUE for word in found)
    return glue >= _MIN_GLUE or 0 < len(found) <= _FEW_WORDS
