"""Tar and zip archives, unpacked member by member under names of our own."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.names import display_name
from torchtriage.artefacts.streams import compression_of, open_stream, read_head
from torchtriage.artefacts.tar import RawMember, is_tar, tar_members

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator
    from pathlib import Path

MAX_MEMBERS = 20_000
MAX_MEMBER_BYTES = 4 << 30
MAX_TOTAL_BYTES = 8 << 30
MAX_RATIO = 200
"""So many times its own size an archive may grow to, beyond the first :data:`FREE_BYTES`."""
FREE_BYTES = 64 << 20
MAX_MEMBER_NAME_CHARS = 1024
_NAMED_MEMBERS = 5


@dataclass(frozen=True)
class Member:
    """A regular file out of an archive: its name inside, and where it lies now."""

    name: str
    path: Path


@dataclass
class Budget:
    """What all archives of a call together may still be unpacked to."""

    left_bytes: int = field(default_factory=lambda: MAX_TOTAL_BYTES)


def archive_type(first: bytes, path: Path) -> str | None:
    """Say "tar", "tar.gz", "tar.zst" or "zip" when these first bytes open an archive, else None."""
    if first.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        # torch.save files are zips as well; they hold tensors, not artefacts.
        return None if b"/data.pkl" in first[:512] else "zip"
    if is_tar(first):
        return "tar"
    compression = compression_of(first)
    if compression and is_tar(read_head(path, compression)[:1024]):
        return f"tar.{compression}"
    return None


def unpack(
    path: Path, kind: str, into: Path, gaps: list[str], shown: str, budget: Budget | None = None
) -> Iterator[Member]:
    """Unpack the regular files of an archive one by one; what is left out or broken goes to ``gaps``."""
    budget = budget or Budget()
    losses: list[str] = []
    left_out: dict[str, list[str]] = {}
    reader = _zip_members(path) if kind == "zip" else _tar_members(path, kind, losses)
    may_grow_bytes = max(FREE_BYTES, MAX_RATIO * path.stat().st_size)
    count = 0
    try:
        for member in reader:
            name = _tidy(member.name)
            if member.stream is None:
                left_out.setdefault(member.why_not, []).append(name)
                continue
            count += 1
            if count > MAX_MEMBERS or budget.left_bytes <= 0:
                losses.append(
                    f"holds more than is unpacked ({MAX_MEMBERS} files; {MAX_TOTAL_BYTES >> 30} GiB of all archives)"
                )
                break
            target = into / os.urandom(12).hex()
            try:
                limit = min(MAX_MEMBER_BYTES, budget.left_bytes, may_grow_bytes)
                written, whole = _copy(member.stream, target, limit)
            finally:
                member.stream.close()
            if member.changed_s is not None:  # how long a call had waited is told by when its dump was written
                os.utime(target, (member.changed_s, member.changed_s))
            budget.left_bytes -= written
            may_grow_bytes -= written
            if not whole and limit == may_grow_bytes + written and written > limit - (2 << 20):
                losses.append(f"unpacks to more than {MAX_RATIO} times its size; the rest was not unpacked")
                yield Member(name, target)
                break
            if not whole:
                gaps.append(
                    f"{shown}/{display_name(name)}: damaged, or larger than what is unpacked; the first part was read"
                )
            yield Member(name, target)
    except Exception as error:  # the boundary: whatever a broken archive raises is a gap of that archive
        what = clean_text(str(error), 80)
        losses.append(f"the archive ends early or is damaged ({what}); only what came before was read")
    gaps.extend(f"{shown}: {clean_text(loss)}" for loss in dict.fromkeys(losses))
    for why_not, names in left_out.items():
        gaps.append(_left_out(shown, why_not, names))


def _left_out(shown: str, why_not: str, names: list[str]) -> str:
    if why_not == "link":
        return f"{shown}: {len(names)} link(s) or special file(s) in the archive were left out"
    listed = ", ".join(display_name(name)[:120] for name in names[:_NAMED_MEMBERS])
    more = f" and {len(names) - _NAMED_MEMBERS} more" if len(names) > _NAMED_MEMBERS else ""
    return f"{shown}: {listed}{more}: {why_not}; not unpacked"


def _tidy(name: str) -> str:
    parts = [p for p in name[-MAX_MEMBER_NAME_CHARS:].replace("\\", "/").split("/") if p not in ("", ".", "..")]
    return "/".join(parts) or "unnamed"


def _copy(stream: BinaryIO, target: Path, limit: int) -> tuple[int, bool]:
    written = 0
    with target.open("xb") as out:
        while True:
            try:
                chunk = stream.read(min(1 << 20, limit - written + 1))
            except Exception:  # the boundary: each codec has errors of its own
                return written, False
            if not chunk:
                return written, True
            if written + len(chunk) > limit:
                return written, False
            out.write(chunk)
            written += len(chunk)


def _tar_members(path: Path, kind: str, losses: list[str]) -> Iterator[RawMember]:
    with open_stream(path, kind.partition(".")[2] or None) as raw:
        yield from tar_members(raw, losses)


def _zip_members(path: Path) -> Iterator[RawMember]:
    import zipfile

    with open_stream(path, None) as raw, zipfile.ZipFile(raw) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            mode = info.external_attr >> 16
            if mode != 0 and (mode & 0o170000) not in (0, 0o100000):
                yield RawMember(info.filename, None, "link")
            elif info.flag_bits & 0x1:
                yield RawMember(info.filename, None, "encrypted")
            else:
                yield _opened(archive, info)


def _opened(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> RawMember:
    try:
        return RawMember(info.filename, archive.open(info))  # pyright: ignore[reportArgumentType]  # reads bytes
    except Exception as error:  # the boundary: one broken member costs that member alone
        reason = "compressed in a way that is not known here" if isinstance(error, NotImplementedError) else "damaged"
        return RawMember(info.filename, None, reason)
