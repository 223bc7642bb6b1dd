"""Tar archives (POSIX ustar and pax, GNU), read as a stream, member by member, whatever state they are in.

The standard library's reader stops without a word at a damaged header and at the end mark of the first of several
concatenated archives, and believes every size that a header states. This one says what it left out and goes on at the
next header that is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from torchtriage.artefacts.streams import decompression_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES = 512
RECORD_BYTES = 20 * BLOCK_BYTES
MAX_STREAM_BYTES = 10 << 30
MAX_SIZE_BYTES = 8 << 30
MAX_HEADER_DATA_BYTES = 1 << 20
MAX_NAME_BYTES = 4096
_SCAN_BYTES = 64 * 1024
_NO_TIME_S = 1 << 33  # the year 2242

_REGULAR = frozenset(b"0\x007")
_DIRECTORIES = frozenset(b"5D")
# These have no content, whatever their size field says.
_WITHOUT_CONTENT = frozenset(b"123456")
_SPARSE = ord("S")


@dataclass(frozen=True)
class RawMember:
    """A member that is not a folder; ``stream`` is None for what is not a regular file. Read it before the next."""

    name: str
    stream: BinaryIO | None
    why_not: str = ""
    """link (or special file), or what else it is that is not unpacked."""
    changed_s: float | None = None
    """When it was last changed, in seconds since 1970, where that is a time that can be."""


def is_tar(block: bytes) -> bool:
    """Say whether a file that begins with these bytes is a tar archive."""
    return len(block) >= BLOCK_BYTES and block[257:262] == b"ustar"


def tar_members(stream: BinaryIO, losses: list[str]) -> Iterator[RawMember]:
    """Yield the members in order; what is damaged or missing is appended to ``losses`` as a clause each."""
    source = _Source(stream)
    overrides: dict[bytes, bytes] = {}
    n_zero_blocks = 0
    while True:
        block = source.read(BLOCK_BYTES)
        if len(block) < BLOCK_BYTES:
            if source.stopped_by:
                losses.append(source.stopped_by)
            elif block.strip(b"\0") or not n_zero_blocks:
                losses.append("the archive ends early (there is no end mark); what came before was read")
            return
        if not any(block):
            n_zero_blocks += 1 + source.skip_zero_blocks()
            continue
        if n_zero_blocks and is_tar(block) and (source.offset - BLOCK_BYTES) % RECORD_BYTES:
            losses.append("a part of the archive is zeroed")
        n_zero_blocks = 0
        size = _number(block[124:136])
        if not _checksum_is_right(block) or size is None or size > MAX_SIZE_BYTES:
            name = _text(block[:100].split(b"\0", 1)[0])
            losses.append(f"a header in it is damaged (near {name!r}); its member is lost" if is_tar(block) else
                          "holds bytes that belong to no member: a header is damaged or zeroed")  # fmt: skip
            overrides = {}
            source.skip_to_header()
            continue
        kind = block[156]
        if kind in b"xXgLK":
            if size > MAX_HEADER_DATA_BYTES:
                losses.append("a header in it is larger than any real one; left out")
                source.skip(_padded(size))
                continue
            data = source.read(_padded(size))[:size]
            if kind in b"xX":
                overrides.update(_pax_records(data))
            elif kind == ord("L"):
                overrides[b"path"] = data.split(b"\0", 1)[0]
            continue
        name = _name(block, overrides)
        if b"size" in overrides:
            stated = overrides[b"size"]
            size = int(stated) if stated.isdigit() and len(stated) < 20 else size
            if size > MAX_SIZE_BYTES:
                losses.append(f"{name!r} states an impossible size; lost")
                overrides = {}
                source.skip_to_header()
                continue
        changed_s = _time_s(overrides.get(b"mtime"), block[136:148])
        is_sparse = kind == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in overrides)
        overrides = {}
        if kind in _WITHOUT_CONTENT:
            if kind not in _DIRECTORIES:
                yield RawMember(name, None, "link")
            continue
        if is_sparse or kind not in _REGULAR or name.endswith("/"):
            if is_sparse:
                yield RawMember(name, None, "stored as a sparse file")
            more_map = kind == _SPARSE and block[482]
            while more_map:  # a map of many holes goes on in further blocks
                map_block = source.read(BLOCK_BYTES)
                more_map = len(map_block) == BLOCK_BYTES and map_block[504]
            source.skip(_padded(size))
            continue
        content = _Content(source, size)
        yield RawMember(name, content, changed_s=changed_s)  # pyright: ignore[reportArgumentType]  # has what a reader uses
        source.skip(content.left + _padded(size) - size)


class _Source:
    """The archive's bytes, counted and bounded; the end and damage both look like the end, with the reason kept."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._pushed_back = b""
        self.offset = 0
        self.stopped_by = ""

    def read(self, size: int) -> bytes:
        chunks: list[bytes] = []
        while size > 0:
            chunk = self.read_some(size)
            if not chunk:
                break
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def read_some(self, size: int) -> bytes:
        if self._pushed_back:
            chunk, self._pushed_back = self._pushed_back[:size], self._pushed_back[size:]
        elif self.stopped_by:
            return b""
        elif self.offset > MAX_STREAM_BYTES:
            self.stopped_by = f"larger than {MAX_STREAM_BYTES >> 30} GiB; the rest was not read"
            return b""
        else:
            try:
                chunk = self._stream.read(min(size, 1 << 20))
            except decompression_errors():
                self.stopped_by = "the archive is damaged or cut; what came before was read"
                return b""
        self.offset += len(chunk)
        return chunk

    def skip(self, size: int) -> None:
        while size > 0:
            chunk = self.read_some(min(size, 1 << 20))
            if not chunk:
                return
            size -= len(chunk)

    def skip_zero_blocks(self) -> int:
        """Skip whole blocks of zeros; return how many."""
        count = 0
        while True:
            chunk = self.read(_SCAN_BYTES)
            content = chunk.lstrip(b"\0")
            zeros = (len(chunk) - len(content)) // BLOCK_BYTES
            count += zeros
            if content or len(chunk) < _SCAN_BYTES:
                self._push_back(chunk[zeros * BLOCK_BYTES :])
                return count

    def skip_to_header(self) -> None:
        """Skip to the next block that is a whole header, or to the end."""
        while True:
            chunk = self.read(_SCAN_BYTES)
            found = chunk.find(b"ustar")
            while found >= 0:
                start = found - 257
                block = chunk[start : start + BLOCK_BYTES]
                if start >= 0 and start % BLOCK_BYTES == 0 and len(block) == BLOCK_BYTES and _checksum_is_right(block):
                    self._push_back(chunk[start:])
                    return
                found = chunk.find(b"ustar", found + 1)
            if len(chunk) < _SCAN_BYTES:
                # The rest is looked at again only for whether it is an end mark.
                zeros = len(chunk) - len(chunk.rstrip(b"\0"))
                self._push_back(bytes(zeros // BLOCK_BYTES * BLOCK_BYTES))
                return

    def _push_back(self, chunk: bytes) -> None:
        self._pushed_back = chunk + self._pushed_back
        self.offset -= len(chunk)


class _Content:
    """The content of one member as a stream; raises EOFError when the archive ends inside it."""

    def __init__(self, source: _Source, size: int) -> None:
        self._source = source
        self.left = size

    def read(self, size: int = -1) -> bytes:
        if self.left <= 0:
            return b""
        chunk = self._source.read_some(self.left if size < 0 else min(size, self.left))
        if not chunk:
            self.left = 0
            raise EOFError("the archive ends inside this member")
        self.left -= len(chunk)
        return chunk

    def close(self) -> None:
        """Nothing to do: the rest is skipped with the next member."""


def _padded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _number(field: bytes) -> int | None:
    """A number field: octal digits, or base 256 when the first bit is set (GNU); None when it is neither."""
    if field[:1] in (b"\x80", b"\xff"):
        value = int.from_bytes(field[1:], "big")
        return value if field[0] == 0x80 else None
    digits = field.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if all(c in b"01234567" for c in digits) else None


def _time_s(stated: bytes | None, field: bytes) -> float | None:
    """A time of change: of the extended header, which has parts of a second, or else of the plain one."""
    try:
        seconds = float(stated) if stated is not None and len(stated) < 40 else _number(field)
    except ValueError:
        seconds = _number(field)
    return seconds if seconds is not None and 0 < seconds < _NO_TIME_S else None


def _checksum_is_right(block: bytes) -> bool:
    stated = _number(block[148:156])
    total = sum(block) - sum(block[148:156]) + 8 * 0x20
    # Some old writers summed signed bytes.
    return stated is not None and stated in (total, total - 256 * sum(c > 127 for c in block[:148] + block[156:]))


def _name(block: bytes, overrides: dict[bytes, bytes]) -> str:
    if b"path" in overrides:
        return _text(overrides[b"path"])
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(name: bytes) -> str:
    return name[-MAX_NAME_BYTES:].decode("utf-8", errors="surrogateescape")


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """The records ("length key=value\\n") of a pax header that say something here; a bad one ends them."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        blank = data.find(b" ", position, position + 12)
        length = data[position:blank]
        if blank < 0 or not length.isdigit():
            break
        end = position + int(length)
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if end <= blank or end > len(data) or not equals:
            break
        if key in (b"path", b"size") or key.startswith(b"GNU.sparse."):
            records[key] = value
        position = end
    return records
