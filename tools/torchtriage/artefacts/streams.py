"""Opening and reading of regular files, compressed or not, with bounds. Stdlib and zstandard only."""

from __future__ import annotations

import os
import stat
import zlib
from typing import TYPE_CHECKING, BinaryIO, cast

from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_HEAD_BYTES = 64 * 1024
_PIECE_BYTES = 64 * 1024
_GZIP_MAGIC = b"\x1f\x8b\x08"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; never blocks on a pipe, never follows a link at the last step.

    Raises:
        UnreadableError: it is not a regular file.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError("not a regular file")
    return os.fdopen(descriptor, "rb")


def compression_of(first: bytes) -> str | None:
    """Name the compression ("gz", "zst") that these first bytes show."""
    if first.startswith(_GZIP_MAGIC):
        return "gz"
    return "zst" if first.startswith(_ZSTD_MAGIC) else None


def open_stream(path: Path, compression: str | None) -> BinaryIO:
    """Open a file as a stream of its uncompressed bytes.

    A compressed stream that is cut or damaged yields all that came before the damage, then raises one of
    :func:`decompression_errors`. Its ``read`` may return less than was asked for before the end.
    """
    raw = open_regular(path)
    if compression is None:
        return raw
    pieces = _gunzip(raw) if compression == "gz" else _unzstd(raw)
    return cast("BinaryIO", _Pieces(raw, pieces))


class _Pieces:
    """A read-only stream over an iterator of pieces; an error in it is raised only after all data was handed out."""

    def __init__(self, raw: BinaryIO, pieces: Iterator[bytes]) -> None:
        self._raw = raw
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        if size is None or size < 0:  # pyright: ignore[reportUnnecessaryComparison]  # io's own signature allows None
            return self._read_all()
        if not self._rest:
            self._rest = next(self._pieces, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def _read_all(self) -> bytes:
        """Everything there is; damage ends it early, as a cut plain file would end early."""
        chunks = [self._rest]
        self._rest = b""
        try:
            chunks.extend(self._pieces)
        except decompression_errors():
            pass
        return b"".join(chunks)

    def close(self) -> None:
        self._raw.close()

    def __enter__(self) -> _Pieces:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _gunzip(raw: BinaryIO) -> Iterator[bytes]:
    """Uncompress gzip members one after another, in pieces of bounded size."""
    engine = zlib.decompressobj(wbits=31)
    fed = b""
    while True:
        if not fed and not engine.unconsumed_tail:
            fed = raw.read(_PIECE_BYTES)
            if not fed:
                if engine.eof:
                    return
                raise EOFError("the gzip stream ends early")
        if engine.eof:
            if not fed.lstrip(b"\0"):  # padding after the last member
                return
            engine = zlib.decompressobj(wbits=31)
        piece = engine.decompress(engine.unconsumed_tail or fed, 4 * _PIECE_BYTES)
        fed = engine.unused_data
        if piece:
            yield piece


def _unzstd(raw: BinaryIO) -> Iterator[bytes]:
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw, read_across_frames=True)
    while piece := reader.read(_PIECE_BYTES):
        yield piece


DECOMPRESSION_ERRORS: tuple[type[Exception], ...] = (EOFError, zlib.error, OSError, ValueError)


def decompression_errors() -> tuple[type[Exception], ...]:
    """The exceptions that a damaged compressed stream raises, zstandard's included once it is loaded."""
    import sys

    loaded = sys.modules.get("zstandard")
    return (*DECOMPRESSION_ERRORS, loaded.ZstdError) if loaded is not None else DECOMPRESSION_ERRORS


def read_bounded(stream: BinaryIO, limit: int) -> tuple[bytes, bool]:
    """Read up to ``limit`` bytes; also say whether the stream was damaged (what came before that is returned)."""
    chunks: list[bytes] = []
    left = limit
    damaged = False
    while left > 0:
        try:
            chunk = stream.read(min(left, 1 << 20))
        except decompression_errors():
            damaged = True
            break
        if not chunk:
            break
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks), damaged


def read_head(path: Path, compression: str | None) -> bytes:
    """The first :data:`MAX_HEAD_BYTES` of the uncompressed content, or what can be had of them."""
    with open_stream(path, compression) as stream:
        if compression is None:
            return stream.read(MAX_HEAD_BYTES)
        head = b""
        # One small read at a time, so that a stream cut inside its first block still yields what came before.
        while len(head) < MAX_HEAD_BYTES:
            try:
                piece = stream.read(4096)
            except decompression_errors():
                break
            if not piece:
                break
            head += piece
        return head
