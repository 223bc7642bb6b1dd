"""The reader's view of a structured artefact: plain nested data, the same for readers and for evidence checks.

Stdlib only: runs inside the isolated worker.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchtriage.artefacts.plain_pickle import check_plain, load_plain
from torchtriage.artefacts.streams import open_stream, read_bounded
from torchtriage.errors import UnreadableError

MAX_VIEW_BYTES = 4 << 30


def load_view(path: str, compression: str | None, file_format: str) -> tuple[Any, str | None]:
    """Load a pickle or JSON artefact as plain data; also return a note when something of it is lost.

    A RAS answer may have protocol lines before its JSON object; those are not part of the view.

    Raises:
        UnreadableError, RefusedPickleError: nothing can be had of it.
    """
    with open_stream(Path(path), compression) as stream:
        if file_format == "pickle":
            value, note = load_plain(stream)
            return value, note
        data, damaged = read_bounded(stream, MAX_VIEW_BYTES)
    value, note = parse_json(data)
    return value, note or ("the compressed stream is damaged; what came before was read" if damaged else None)


def parse_json(data: bytes) -> tuple[Any, str | None]:
    """Parse JSON; text before the first brace is skipped, a document that ends early yields what was whole."""
    text = data.decode("utf-8", errors="replace")
    start = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if start < 0:
        raise UnreadableError("holds no JSON")
    try:
        value, _ = json.JSONDecoder().raw_decode(text, start)
    except ValueError as error:
        value = _close_early_end(text, start)
        if value is None:
            raise UnreadableError(f"not valid JSON ({error.args[0] if error.args else error})") from error
        return value, "the JSON ends early or is damaged; what was whole before that was read"
    return value, None


def _close_early_end(text: str, start: int) -> Any:
    """Cut at the last whole element and close what is open; None when that gives nothing."""
    closers: list[str] = []
    in_string = False
    escaped = False
    good: list[tuple[int, str]] = []  # (cut position, closers needed there)
    for position in range(start, len(text)):
        char = text[position]
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
            continue
        if char == '"':
            in_string = True
        elif char in "{[":
            closers.append("}" if char == "{" else "]")
        elif char in "}]":
            if not closers:
                break
            closers.pop()
            good.append((position + 1, "".join(reversed(closers))))
        elif char == ",":
            good.append((position, "".join(reversed(closers))))
        if len(good) > 64:
            del good[:32]
    for cut, closing in reversed(good):
        try:
            return json.loads(text[start:cut] + closing)
        except ValueError:
            continue
    return None


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
