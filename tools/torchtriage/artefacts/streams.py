"""Opening and reading of regular files, compressed or not, with bounds. Stdlib and zstandard only."""

from __future__ import annotations

import os
import stat
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_HEAD_BYTES = 64 * 1024
_PIECE_BYTES = 64 * 1024
_GZIP_MAGIC = b"\x1f\x8b\x08"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_ZSTD_BLOCKS = 4_000_000
_SAMPLED_BYTES_COMPRESSED = 8 << 20


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
        """Everything there is; damage ends it early and is raised by the next read."""
        chunks = [self._rest]
        self._rest = b""
        try:
            chunks.extend(self._pieces)
        except decompression_errors() as error:
            self._pieces = _raising(error)
        return b"".join(chunks)

    def close(self) -> None:
        self._raw.close()

    def __enter__(self) -> _Pieces:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _raising(error: Exception) -> Iterator[bytes]:
    raise error
    yield b""  # makes it an iterator


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
            fed = fed.lstrip(b"\0")  # padding after a member
            if not fed:
                continue
            engine = zlib.decompressobj(wbits=31)
        waiting = engine.unconsumed_tail or fed
        before = engine.copy()
        try:
            piece = engine.decompress(waiting, 4 * _PIECE_BYTES)
        except zlib.error as error:
            yield from _before_the_damage(before, waiting)
            raise EOFError("the gzip stream is damaged") from error
        fed = engine.unused_data
        if piece:
            yield piece


def _before_the_damage(engine: Any, waiting: bytes) -> Iterator[bytes]:
    """What a piece gives before its first bad byte: zlib itself hands out nothing of a call that fails."""
    for position in range(len(waiting)):
        try:
            piece = engine.decompress(waiting[position : position + 1])
        except zlib.error:
            return
        if piece:
            yield piece


def _unzstd(raw: BinaryIO) -> Iterator[bytes]:
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw, read_across_frames=True)
    while piece := reader.read(_PIECE_BYTES):
        yield piece
    # The library takes the end of a cut file for the end of the content.
    if not zstd_is_whole(raw):
        raise EOFError("the zstd stream ends early")


def zstd_is_whole(raw: BinaryIO) -> bool:
    """Walk the frames and blocks of a zstd file (RFC 8878, 3.1) without uncompressing: does the last one end in it?"""
    size = raw.seek(0, os.SEEK_END)
    position = 0
    for _ in range(_MAX_ZSTD_BLOCKS):
        if position >= size:
            return position == size
        raw.seek(position)
        frame = raw.read(18)
        if len(frame) >= 8 and frame[1:4] == b"\x2a\x4d\x18" and frame[0] & 0xF0 == 0x50:
            position += 8 + int.from_bytes(frame[4:8], "little")
            continue
        if not frame.startswith(_ZSTD_MAGIC) or len(frame) < 6:
            return False
        flags = frame[4]
        single_segment = bool(flags & 0x20)
        content_size_bytes = (1 if single_segment else 0, 2, 4, 8)[flags >> 6]
        position += 5 + (not single_segment) + (0, 1, 2, 4)[flags & 3] + content_size_bytes
        last = False
        for _ in range(_MAX_ZSTD_BLOCKS):
            raw.seek(position)
            header = int.from_bytes(block, "little") if len(block := raw.read(3)) == 3 else None
            if header is None:
                return False
            is_run = (header >> 1) & 3 == 1
            position += 3 + (1 if is_run else header >> 3)
            last = bool(header & 1)
            if last:
                break
        if not last:
            return False
        position += 4 if flags & 4 else 0
    return False


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


def read_head(path: Path, compression: str) -> bytes:
    """The first :data:`MAX_HEAD_BYTES` of the uncompressed content, or what can be had of them."""
    with open_stream(path, compression) as stream:
        return read_bounded(stream, MAX_HEAD_BYTES)[0]


def read_samples(path: Path, compression: str | None) -> list[bytes]:
    """Three pieces of :data:`MAX_HEAD_BYTES` from behind the head, the last one from the end.

    Of a compressed file only the first :data:`_SAMPLED_BYTES_COMPRESSED` of the content are looked through.
    """
    with open_stream(path, compression) as stream:
        if compression is None:
            samples: list[bytes] = []
            for start in _sample_starts(os.fstat(stream.fileno()).st_size):
                stream.seek(start)
                samples.append(stream.read(MAX_HEAD_BYTES))
            return [sample for sample in samples if sample]
        content, _ = read_bounded(stream, _SAMPLED_BYTES_COMPRESSED)
        starts = _sample_starts(len(content))
        return [sample for start in starts if (sample := content[start : start + MAX_HEAD_BYTES])]


def _sample_starts(size: int) -> list[int]:
    return sorted({max(MAX_HEAD_BYTES, at) for at in (size // 3, size * 2 // 3, size - MAX_HEAD_BYTES)})
