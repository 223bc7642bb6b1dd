"""Reading of text artefacts line by line, with bounds on line length and without trust in the encoding."""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING

from torchtriage.artefacts.encoding import encoding_of
from torchtriage.artefacts.streams import decompression_errors, open_stream, read_bounded
from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from torchtriage.artefacts.inputs import Artefact

MAX_LINE_CHARS = 16 * 1024
# Beyond these a file is not read. What is compressed may be a bomb.
MAX_TEXT_BYTES = 64 << 30
MAX_UNPACKED_BYTES = 2 << 30
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 64 * 1024
_MIN_CARRIAGE_RETURNS = 3
_MAX_LINE_BYTES = 4 * MAX_LINE_CHARS  # UTF-8 has at most four bytes a character


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
    if artefact.compression is None and _size_bytes(artefact.path) < artefact.size_bytes:
        lost.append("became shorter while it was read")
    if losses is not None:
        losses.extend(f"{artefact.name}: {reason}" for reason in lost)


def _size_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def read_file_lines(path: Path, compression: str | None, lost: list[str]) -> Iterator[str]:
    """Like :func:`read_lines`, for a file that has no name in reports; ``lost`` gets the bare reasons."""
    for block in whole_lines(file_chunks(path, compression, lost)):
        for piece in block.split(b"\n"):
            yield decode_line(piece)


def file_chunks(
    path: Path,
    compression: str | None,
    lost: list[str],
    *,
    start: int = 0,
    end: int | None = None,
    chunk_bytes: int = _CHUNK_BYTES,
) -> Iterator[bytes]:
    """The text of a file as UTF-8 with "\\n" as line end, in chunks that may end anywhere.

    Args:
        path: the file.
        compression: "gz", "zst" or None.
        lost: gets the reason for whatever could not be read.
        start: byte to start at; not 0 only in a file of which :func:`is_plain` is true, at the start of a line.
        end: byte to end before, of such a file.
        chunk_bytes: how much is read at once.

    Raises:
        UnreadableError: the file cannot be opened.
    """
    try:
        stream = open_stream(path, compression)
    except OSError as error:
        raise UnreadableError(error.strerror or "not readable") from error
    with stream:
        if start == 0 and end is None:
            # A log that its job still writes is read as far as it reaches now.
            size = os.fstat(stream.fileno()).st_size if compression is None else None
            yield from _utf8_chunks(stream, lost, size, chunk_bytes)
            return
        stream.seek(start)
        left = (end if end is not None else MAX_TEXT_BYTES) - start
        while left > 0 and (chunk := stream.read(min(chunk_bytes, left))):
            left -= len(chunk)
            yield chunk.replace(b"\0", b"") if b"\0" in chunk else chunk


def is_plain(path: Path) -> bool:
    """Whether the bytes of an uncompressed text are its lines: UTF-8 without a mark, "\\n" at line ends."""
    with open_stream(path, None) as stream:
        head, _ = read_bounded(stream, _HEAD_BYTES)
    return encoding_of(head) == ("utf-8", 0) and not _ends_lines_with_carriage_returns(head)


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of whole lines, each without the line end of its last line. An endless line is cut."""
    rest = b""
    for chunk in chunks:
        cut = chunk.rfind(b"\n")
        if cut < 0:
            rest = _cut(rest + chunk)
            continue
        yield rest + chunk[:cut]
        rest = chunk[cut + 1 :]
    if rest:
        yield rest


def decode_line(piece: bytes) -> str:
    """One line as text, cut at :data:`MAX_LINE_CHARS`."""
    text = _cut(piece).decode("utf-8", errors="replace").rstrip("\r")
    if len(text) <= MAX_LINE_CHARS:
        return text
    # Of a line that overwrote itself, a progress bar, the end is what was left on the screen.
    return text[-MAX_LINE_CHARS:] if "\r" in text else text[:MAX_LINE_CHARS]


def _cut(piece: bytes) -> bytes:
    if len(piece) <= _MAX_LINE_BYTES:
        return piece
    return piece[-_MAX_LINE_BYTES:] if b"\r" in piece else piece[:_MAX_LINE_BYTES]


def _ends_lines_with_carriage_returns(head: bytes) -> bool:
    """Old line ends, or a log that is one long progress bar so far."""
    return b"\n" not in head[:_HEAD_BYTES] and head[:_HEAD_BYTES].count(b"\r") >= _MIN_CARRIAGE_RETURNS


def _utf8_chunks(stream: BinaryIO, lost: list[str], size: int | None, chunk_bytes: int) -> Iterator[bytes]:
    head, damaged = read_bounded(stream, _HEAD_BYTES)
    codec, skip = encoding_of(head)
    chunks = _chunks(head[skip:], stream, lost, size, chunk_bytes, damaged=damaged)
    if codec != "utf-8":
        chunks = _recoded(chunks, codec)
    first = next(chunks, b"")
    by_carriage_return = _ends_lines_with_carriage_returns(first)
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


def _chunks(
    head: bytes, stream: BinaryIO, lost: list[str], size: int | None, chunk_bytes: int, *, damaged: bool
) -> Iterator[bytes]:
    if head:
        yield head
    total = len(head)
    limit = MAX_UNPACKED_BYTES if size is None else MAX_TEXT_BYTES
    while not damaged:
        wanted = chunk_bytes if size is None else min(chunk_bytes, size - total)
        try:
            chunk = stream.read(wanted) if wanted > 0 else b""
        except decompression_errors():
            damaged = True
            break
        if not chunk:
            return
        if total >= limit:
            lost.append(f"larger than {limit >> 30} GiB of text; the rest was not read")
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
