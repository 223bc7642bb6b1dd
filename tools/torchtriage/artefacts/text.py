"""Reading of text artefacts line by line, with bounds on line length and without trust in the encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.streams import decompression_errors, open_stream
from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchtriage.artefacts.inputs import Artefact

MAX_LINE_CHARS = 64 * 1024
MAX_TEXT_BYTES = 2 << 30
_CHUNK_BYTES = 1 << 20


def read_lines(artefact: Artefact) -> Iterator[str]:
    """Yield the lines of a text artefact, in order, so that the n-th one yielded is line n of the file.

    Lines end at "\\n" alone (a carriage return stays in its line, as ``sed -n`` counts). What is longer than
    :data:`MAX_LINE_CHARS` is cut. A damaged compressed file yields what can be had.

    Raises:
        UnreadableError: the file cannot be opened.
    """
    try:
        stream = open_stream(artefact.path, artefact.compression)
    except OSError as error:
        raise UnreadableError(error.strerror or "not readable") from error
    encoding = "utf-8"
    with stream:
        rest = b""
        total = 0
        first = True
        while total < MAX_TEXT_BYTES:
            try:
                chunk = stream.read(_CHUNK_BYTES)
            except decompression_errors():
                break
            if not chunk:
                break
            if first and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
                encoding = "utf-16-le" if chunk[:2] == b"\xff\xfe" else "utf-16-be"
                whole = chunk[2:] + stream.read(64 << 20)
                for line in whole.decode(encoding, errors="replace").split("\n"):
                    yield line[:MAX_LINE_CHARS].rstrip("\r")
                return
            first = False
            total += len(chunk)
            pieces = chunk.split(b"\n")
            pieces[0] = rest + pieces[0]
            rest = pieces.pop()
            if len(rest) > 4 * MAX_LINE_CHARS:
                rest = rest[: 4 * MAX_LINE_CHARS]
            for piece in pieces:
                yield _decode(piece)
        if rest:
            yield _decode(rest)


def _decode(piece: bytes) -> str:
    return piece[: 4 * MAX_LINE_CHARS].decode("utf-8", errors="replace")[:MAX_LINE_CHARS].rstrip("\r")


def read_line(artefact: Artefact, number: int) -> str | None:
    """Line ``number`` (from 1) of a text artefact, or None when there is no such line."""
    for count, line in enumerate(read_lines(artefact), start=1):
        if count == number:
            return line
    return None
