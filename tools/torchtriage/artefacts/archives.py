"""Tar and zip archives, unpacked member by member under names of our own."""

from __future__ import annotations

import os
import tarfile
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.streams import compression_of, decompression_errors, open_stream, read_head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_MEMBERS = 20_000
MAX_MEMBER_BYTES = 4 << 30
MAX_TOTAL_BYTES = 8 << 30


@dataclass(frozen=True)
class Member:
    """A regular file out of an archive: its name inside, and where it lies now."""

    name: str
    path: Path


def archive_type(first: bytes, path: Path) -> str | None:
    """Say "tar", "tar.gz", "tar.zst" or "zip" when these first bytes open an archive, else None."""
    if first.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        # torch.save files are zips as well; they hold tensors, not artefacts.
        return None if b"/data.pkl" in first[:512] else "zip"
    if _is_tar(first):
        return "tar"
    compression = compression_of(first)
    if compression and _is_tar(read_head(path, compression)[:1024]):
        return f"tar.{compression}"
    return None


def _is_tar(block: bytes) -> bool:
    return len(block) >= 512 and block[257:262] == b"ustar"


def unpack(path: Path, kind: str, into: Path, gaps: list[str], shown: str) -> Iterator[Member]:
    """Unpack the regular files of an archive one by one; what is left out or broken goes to ``gaps``."""
    reader = _zip_members(path) if kind == "zip" else _tar_members(path, kind)
    total = 0
    count = 0
    skipped = 0
    try:
        for name, stream in reader:
            if stream is None:
                skipped += 1
                continue
            count += 1
            if count > MAX_MEMBERS or total >= MAX_TOTAL_BYTES:
                gaps.append(f"{shown}: holds more than is unpacked ({MAX_MEMBERS} files, {MAX_TOTAL_BYTES >> 30} GiB)")
                return
            target = into / os.urandom(12).hex()
            try:
                written, whole = _copy(stream, target, min(MAX_MEMBER_BYTES, MAX_TOTAL_BYTES - total))
            finally:
                stream.close()
            total += written
            if not whole:
                gaps.append(
                    f"{shown}/{clean_text(name)}: damaged, or larger than what is unpacked; the first part was read"
                )
            yield Member(_tidy(name), target)
    except (*decompression_errors(), tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        gaps.append(
            f"{shown}: the archive ends early or is damaged ({clean_text(str(error), 80)}); what came before was read"
        )
    if skipped:
        gaps.append(f"{shown}: {skipped} link(s) or special file(s) in the archive were left out")


def _tidy(name: str) -> str:
    parts = [p for p in name.replace("\\", "/").split("/") if p not in ("", ".", "..")]
    return "/".join(parts) or "unnamed"


def _copy(stream: BinaryIO, target: Path, limit: int) -> tuple[int, bool]:
    written = 0
    with target.open("xb") as out:
        while True:
            try:
                chunk = stream.read(min(1 << 20, limit - written + 1))
            except (*decompression_errors(), zipfile.BadZipFile, tarfile.TarError):
                return written, False
            if not chunk:
                return written, True
            if written + len(chunk) > limit:
                return written, False
            out.write(chunk)
            written += len(chunk)


def _tar_members(path: Path, kind: str) -> Iterator[tuple[str, BinaryIO | None]]:
    compression = kind.partition(".")[2] or None
    with open_stream(path, compression) as raw, tarfile.open(fileobj=raw, mode="r|") as tar:
        for info in tar:
            if info.isdir():
                continue
            stream = tar.extractfile(info) if info.isreg() else None
            yield info.name, stream  # type: ignore[misc]  # ExFileObject reads bytes


def _zip_members(path: Path) -> Iterator[tuple[str, BinaryIO | None]]:
    with open_stream(path, None) as raw, zipfile.ZipFile(raw) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            mode = info.external_attr >> 16
            is_regular = mode == 0 or (mode & 0o170000) in (0, 0o100000)
            if info.flag_bits & 0x1:
                yield info.filename, None
                continue
            yield info.filename, (archive.open(info) if is_regular else None)  # type: ignore[misc]
