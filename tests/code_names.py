"""What Markdown and YAML name in code: commands, flags, environment variables, functions, settings, files.

It tells a name by its form alone, and refuses to say whether anything is called so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?: {4}[^\n]*\n)+)")
_INLINE = re.compile(r"``([^\n]+?)``|`([^`]+)`")

_FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
_SHOUTED = re.compile(r"(?<![\w.-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
_FILE = re.compile(r"(?<![\w./-])[\w-]+\.(?:py|cc|cpp|cu|so|json|txt|npy|bin|tmp)\b")
_DOTTED = re.compile(r"(?<![\w./@-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_CALLED = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\(")
_SNAKE = re.compile(r"(?<![\w.-])_{0,2}[a-z][a-z0-9]*_\w+\b(?!\.\w)")
_CAMEL = re.compile(r"(?<![\w.])(?:_?[A-Z][a-z0-9]+|[a-z]+)(?:[A-Z][A-Za-z0-9]*)+\b|\b[A-Z][A-Z0-9]*[a-z]+[A-Z]\w*")
_HYPHENED = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+")

_PROSE = ("in", "to", "for", "using", "with", "error", "failure")
_SPLIT = re.compile(r"\s(?:\|\|?|&&|;)\s|; |\$\(|\s--\s")
_BEFORE = re.compile(r"^(?:sudo |\w+=\S* )+")
_SHELL = re.compile(r"([a-z][\w.+-]*)(?= (?:-{1,2}[A-Za-z]|[A-Z]{3,}\b|[.~/$]|'))")


def code_spans(text: str) -> Iterator[str]:
    """Everything that stands in code: fenced and indented blocks line by line, and inline code on one line each."""
    for block in [*_FENCE.findall(text), *_INDENTED.findall(text)]:
        yield from (line.split(" #")[0].strip() for line in block.splitlines() if line.strip())
    for double, single in _INLINE.findall(_FENCE.sub("", text)):
        # A table escapes the bar between two commands.
        yield " ".join((double or single).split()).replace("\\|", "|")


def shell_calls(span: str) -> Iterator[tuple[str, list[str]]]:
    """Commands with their short flags, where a span reads like something for a shell."""
    for part in _SPLIT.split(span):
        call = _BEFORE.sub("", part.strip("() "))
        found = _SHELL.match(call)
        if found is not None and found[1] not in _PROSE:
            yield found[1], re.findall(r"(?<= )-[A-Za-z]\b", call)


def names_in(span: str) -> set[str]:
    """The names in one span; a short flag is named with its command, as in ``dmesg -T``."""
    names: set[str] = set()
    for command, short in shell_calls(span):
        names |= {command, *(f"{command} {flag}" for flag in short)}
    files = set(_FILE.findall(span))
    names |= files | set(_FLAG.findall(span)) | set(_SHOUTED.findall(span))
    names |= {name for name in _DOTTED.findall(span) if not any(name in file for file in files)}
    names |= set(_CALLED.findall(span)) | set(_SNAKE.findall(span)) | set(_CAMEL.findall(span))
    if _HYPHENED.fullmatch(span):
        names.add(span)
    return names
