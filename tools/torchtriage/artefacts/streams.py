"""Opening and reading of regular files, compressed or not, with bounds. Stdlib and zstandard only."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from typing import TYPE_CHECKING, BinaryIO, cast

from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEAD_BYTES = 64 * 1024
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
    """Open a file as a stream of its uncompressed bytes."""
    raw = open_regular(path)
    if compression is None:
        return raw
    if compression == "gz":
        return cast("BinaryIO", _GzipStream(raw))
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw, closefd=True)
    return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", reader)))


class _GzipStream(gzip.GzipFile):
    """A gzip reader that closes the file under it."""

    def __init__(self, under: BinaryIO) -> None:
        super().__init__(fileobj=under, mode="rb")
        self._under = under

    def close(self) -> None:
        """Close both."""
        super().close()
        self._under.close()


DECOMPRESSION_ERRORS: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile, OSError, ValueError)


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
