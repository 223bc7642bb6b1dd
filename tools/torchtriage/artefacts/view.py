"""The reader's view of a structured artefact: plain nested data, the same for readers and for evidence checks.

Stdlib only: runs inside the isolated worker.
"""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

from torchtriage.artefacts.encoding import decode
from torchtriage.artefacts.plain_pickle import check_plain, load_plain
from torchtriage.artefacts.streams import open_stream, read_bounded
from torchtriage.errors import UnreadableError

MAX_VIEW_BYTES = 4 << 30
MAX_PICKLE_BYTES = 1 << 30
MAX_INT_DIGITS = 4000
_MAX_LEVELS = 64
_DAMAGED_STREAM = "the compressed stream is damaged or cut; what came before was read"
# Inside strings there may be control characters: a job's own output, or a damaged byte.
_DECODER = json.JSONDecoder(strict=False)
_BLANKS = re.compile(r"[ \t\r\n]*")
_STRINGS_AND_SCALARS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^\[\]{}"]+', re.DOTALL)


def load_view(path: str, compression: str | None, file_format: str) -> tuple[Any, str | None]:
    """Load a pickle or JSON artefact as plain data; also return a note when something of it is lost.

    A RAS answer may have protocol lines before its JSON object; those are not part of the view.

    Raises:
        UnreadableError, RefusedPickleError: nothing can be had of it.
    """
    limit = MAX_PICKLE_BYTES if file_format == "pickle" else MAX_VIEW_BYTES
    with open_stream(Path(path), compression) as stream:
        if file_format == "pickle" and compression is None:
            if os.fstat(stream.fileno()).st_size > limit:
                raise UnreadableError(f"larger than {limit >> 30} GiB; not read")
            return load_plain(stream)
        data, damaged = read_bounded(stream, limit + 1)
    if len(data) > limit:
        raise UnreadableError(f"larger than {limit >> 30} GiB; not read")
    value, note = load_plain(io.BytesIO(data)) if file_format == "pickle" else parse_json(data)
    return value, note or (_DAMAGED_STREAM if damaged else None)


def parse_json(data: bytes) -> tuple[Any, str | None]:
    """Parse JSON; text before the first brace is skipped, a document that ends early yields what was whole."""
    text = decode(data)
    start = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if start < 0:
        raise UnreadableError("holds no JSON")
    try:
        pairs = _top_pairs(text, start)
        return (_DECODER.raw_decode(text, start)[0], None) if pairs is None else _joined(pairs)
    except json.JSONDecodeError as error:
        value = _up_to_the_damage(text, start, error)
        if value is None:
            raise UnreadableError(f"not valid JSON ({error.msg})") from error
        return value, "the JSON ends early or is damaged; what was whole before that was read"
    except ValueError:  # an integer of more digits than the interpreter converts
        try:
            return json.JSONDecoder(strict=False, parse_int=_bounded_int).raw_decode(text, start)[0], None
        except ValueError as error:
            raise UnreadableError("not valid JSON") from error


def _top_pairs(text: str, start: int) -> list[tuple[str, Any]] | None:
    """The keys and values of the outermost object, each as often as it is there; None of anything else."""
    if text[start] != "{":
        return None
    pairs: list[tuple[str, Any]] = []
    position = _after_blanks(text, start + 1)
    while text.startswith('"', position):
        key, position = _DECODER.raw_decode(text, position)
        position = _after_blanks(text, position)
        if not text.startswith(":", position):
            return None
        value, position = _DECODER.raw_decode(text, _after_blanks(text, position + 1))
        pairs.append((key, value))
        position = _after_blanks(text, position)
        if text.startswith("}", position):
            return pairs
        if not text.startswith(",", position):
            return None
        position = _after_blanks(text, position + 1)
    return None


def _after_blanks(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found is not None else position


def _joined(pairs: list[tuple[str, Any]]) -> tuple[dict[str, Any], str | None]:
    """One record of all pairs: of a key that is there several times the first value that is not empty."""
    joined: dict[str, Any] = {}
    n_again = 0
    for key, value in pairs:
        n_again += key in joined
        joined[key] = joined.get(key) or value
    note = "keys of its JSON stand there more than once; the first value that is not empty was read"
    return joined, note if n_again else None


def _bounded_int(digits: str) -> int | None:
    return int(digits) if len(digits) <= MAX_INT_DIGITS else None


def _up_to_the_damage(text: str, start: int, error: json.JSONDecodeError) -> Any:
    """Cut before the damage at the last whole element and close what is open; None when that gives nothing.

    Up to where the decoder stopped the text is a whole run of tokens, except that a bad escape lies inside a string.
    """
    cut = _last_whole_element(text, start, error.pos, inside_string="escape" in error.msg)
    if cut is None:
        return None
    brackets = _STRINGS_AND_SCALARS.sub("", text[start:cut])
    open_ones: list[str] = []
    if '"' in brackets:
        return None
    for bracket in _without_pairs(brackets):
        if bracket in "{[":
            open_ones.append("}" if bracket == "{" else "]")
        elif open_ones:
            open_ones.pop()
    try:
        value = _DECODER.raw_decode(text[start:cut] + "".join(reversed(open_ones)))[0]
    except ValueError:
        return None
    return value or None


def _without_pairs(brackets: str) -> str:
    """Drop brackets that close at once, level by level: what is left is about as short as the document is deep."""
    for _ in range(_MAX_LEVELS):
        shorter = brackets.replace("[]", "").replace("{}", "")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    return brackets


def _last_whole_element(text: str, start: int, damage: int, *, inside_string: bool) -> int | None:
    """Walk backward from the damage to the comma or bracket after which the element was not whole."""
    position = _string_start(text, start, damage) if inside_string else damage
    while position > start:
        position -= 1
        char = text[position]
        if char == ",":
            return position
        if char in "{[}]":
            return position + 1
        if char == '"':
            position = _string_start(text, start, position)
    return None


def _string_start(text: str, start: int, end: int) -> int:
    """Where the string begins that ends (or breaks) at ``end``: the last quote before it that is not escaped."""
    position = end
    while (position := text.rfind('"', start, position)) > start:
        before = text[max(start, position - 64) : position]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return position
    return start


def view_task(path: str, compression: str | None, args: dict[str, Any]) -> str:
    """Worker task: the compact JSON at ``args["pointer"]``."""
    value, _ = load_view(path, compression, str(args["format"]))
    here = _resolve(value, str(args["pointer"]))
    check_plain(here, max_nodes=200_000)
    return json.dumps(here, separators=(",", ":"), ensure_ascii=False, default=repr)[: 1 << 20]


def _resolve(value: Any, pointer: str) -> Any:
    from torchtriage.artefacts.pointer import resolve_pointer

    try:
        return resolve_pointer(value, pointer)
    except (KeyError, IndexError) as error:
        raise UnreadableError(f"nothing at {pointer[:120]}") from error
