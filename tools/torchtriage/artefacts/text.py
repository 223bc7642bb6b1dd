"""Reading of text artefacts line by line, with bounds on line length and without trust in the encoding."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from torchtriage.artefacts.encoding import encoding_of
from torchtriage.artefacts.streams import decompression_errors, open_stream, read_bounded
from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from torchtriage.artefacts.inputs import Artefact

MAX_LINE_CHARS = 64 * 1024
MAX_TEXT_BYTES = 2 << 30
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 64 * 1024
_MIN_CARRIAGE_RETURNS = 3


def read_lines(artefact: Artefact, losses: list[str] | None = None) -> Iterator[str]:
    """Yield the lines of a text artefact, in order, so that the n-th one yielded is line n of the file.

    Lines end at "\\n" alone (a carriage return stays in its line, as ``sed -n`` counts), unless the first 64 KB hold
    no "\\n" and several "\\r": then each "\\r" ends a line as well. What is longer than :data:`MAX_LINE_CHARS` is cut,
    NUL characters are dropped, UTF-16 is decoded. A damaged compressed file yields what can be had.

    Args:
        artefact: what to read.
        losses: gets a sentence, once the end is reached, for whatever of the file could not be read.

    Raises:
        UnreadableError: the file cannot be opened.
    """
    lost: list[str] = []
    yield from read_file_lines(artefact.path, artefact.compression, lost)
    if losses is not None:
        losses.extend(f"{artefact.name}: {reason}" for reason in lost)


def read_file_lines(path: Path, compression: str | None, lost: list[str]) -> Iterator[str]:
    """Like :func:`read_lines`, for a file that has no name in reports; ``lost`` gets the bare reasons."""
    try:
        stream = open_stream(path, compression)
    except OSError as error:
        raise UnreadableError(error.strerror or "not readable") from error
    with stream:
        rest = b""
        for chunk in _utf8_chunks(stream, lost):
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


def _utf8_chunks(stream: BinaryIO, lost: list[str]) -> Iterator[bytes]:
    """The text as UTF-8 with "\\n" as line end."""
    head, damaged = read_bounded(stream, _HEAD_BYTES)
    codec, skip = encoding_of(head)
    chunks = _chunks(head[skip:], stream, lost, damaged=damaged)
    if codec != "utf-8":
        chunks = _recoded(chunks, codec)
    first = next(chunks, b"")
    # Old line ends, or a log that is one long progress bar so far.
    by_carriage_return = b"\n" not in first[:_HEAD_BYTES] and first[:_HEAD_BYTES].count(b"\r") >= _MIN_CARRIAGE_RETURNS
    held = b""
    while first:
        chunk = held + first.replace(b"\0", b"") if b"\0" in first else held + first
        held = b""
        if by_carriage_return:
            if chunk.endswith(b"\r"):  # its "\n" may come in the next chunk
                chunk, held = chunk[:-1], b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield chunk
        first = next(chunks, b"")
    if held:
        yield b"\n"


def _chunks(head: bytes, stream: BinaryIO, lost: list[str], *, damaged: bool) -> Iterator[bytes]:
    if head:
        yield head
    total = len(head)
    while not damaged:
        try:
            chunk = stream.read(_CHUNK_BYTES)
        except decompression_errors():
            damaged = True
            break
        if not chunk:
            return
        if total >= MAX_TEXT_BYTES:
            lost.append(f"larger than {MAX_TEXT_BYTES >> 30} GiB of text; the rest was not read")
            return
        total += len(chunk)
        yield chunk
    if damaged:
        lost.append(f"damaged or cut; only the first {total} bytes of its text could be read")


def _recoded(chunks: Iterator[bytes], codec: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(codec)(errors="replace")
    for chunk in chunks:
        if text := decoder.decode(chunk):
            yield text.encode("utf-8", errors="replace")
    if text := decoder.decode(b"", final=True):
        yield text.encode("utf-8", errors="replace")


def read_line(artefact: Artefact, number: int) -> str | None:
    """Line ``number`` (from 1) of a text artefact, or None when there is no such line."""
    for count, line in enumerate(read_lines(artefact), start=1):
        if count == number:
            return line
    return None
