"""Write what a memory report shows as files: a page for people, and collapsed stacks for flame graph tools.

A file that is there already is replaced only when it is one of ours: no link is followed, nobody else's file is
touched, and what is written is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.files import is_full
from torchtriage.bundle.folders import check_name
from torchtriage.errors import BadCallError, OutsideRootsError
from torchtriage.wording import pasteable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torchtriage.memory.analyze import MemoryFindings
    from torchtriage.tool_reports import MemoryReport

_HEAD_BYTES = 1 << 16
_MAX_NAME_CHARS = 300
_UNLISTED = "(smaller)"
_OUR_STACK = re.compile(r"(?:rank \d{1,10} )?device \d{1,10}(?: \([^;\n]{1,600}\))?;[^\n]{1,65536} \d{1,20}")


def write_files(
    report: MemoryReport,
    found: MemoryFindings,
    *,
    html: str | None,
    collapsed: str | None,
    roots: Sequence[Path] | None = None,
) -> list[str]:
    """Write the page and the stacks that are asked for.

    Args:
        report: what the page shows.
        found: what it was made from; its summaries have the stacks.
        html: where the page goes, or None.
        collapsed: where the stacks go, or None.
        roots: when given, both must lie inside one of these folders.

    Returns:
        The paths of what was written.

    Raises:
        BadCallError, OutsideRootsError: see :func:`check_targets`; or there is no room, or no right to write there.
    """
    page, stacks = check_targets(html, collapsed, roots)
    written: list[str] = []
    if page is not None:
        from torchtriage.memory.page.document import page_of

        _write(page, page_of(report, found).encode("utf-8"))
        written.append(str(page))
    if stacks is not None:
        _write(stacks, "".join(f"{line}\n" for line in collapsed_stacks(found)).encode("utf-8"))
        written.append(str(stacks))
    return written


def check_targets(
    html: str | None, collapsed: str | None, roots: Sequence[Path] | None = None
) -> tuple[Path | None, Path | None]:
    """Where the page and the stacks may be written, before any work is done for them.

    Raises:
        BadCallError: a folder is missing; or what is there already is a link, a special file, another user's, or not
            what would be written there.
        OutsideRootsError: it lies outside ``roots``.
    """
    page = None if html is None else _target(html, roots, _is_page, "page")
    stacks = None if collapsed is None else _target(collapsed, roots, _is_stacks, "file of collapsed stacks")
    if page is not None and page == stacks:
        raise BadCallError(f"{pasteable(page)} cannot be both the page and the stacks: name two files")
    return page, stacks


def collapsed_stacks(found: MemoryFindings) -> Iterator[str]:
    """What was live at the failed request or the peak: ``rank 0 device 0;outermost;...;innermost BYTES`` a line."""
    devices = [(snapshot, device) for snapshot in found.snapshots for device in snapshot.summary["devices"]]
    known: dict[str, str] = {}
    where = [(snapshot.rank, device["device"]) for snapshot, device in devices]
    for (snapshot, device), place in zip(devices, where, strict=True):
        rank = "" if snapshot.rank is None else f"rank {snapshot.rank} "
        # Several snapshots of one device are told apart, as tools add up what has one name.
        name = f" ({_frame_name(snapshot.artefact)})" if where.count(place) > 1 else ""
        start = f"{rank}device {device['device']}{name}"
        listed = 0
        for names, size in device.get("flame", []):
            for each in names:
                if each not in known:
                    known[each] = _frame_name(each)
            listed += size
            if size > 0:
                yield f"{';'.join([start, *(known[each] for each in names)])} {size}"
        unlisted = sum(device["by_category"].values()) - listed
        if unlisted > 0:
            yield f"{start};{_UNLISTED} {unlisted}"


def _frame_name(text: str) -> str:
    return clean_text(text, _MAX_NAME_CHARS).replace(";", ",") or "?"


def _is_page(head: str) -> bool:
    from torchtriage.memory.page.document import START

    return head.startswith(START)


def _is_stacks(head: str) -> bool:
    whole, _, _ = head.rpartition("\n")
    return all(_OUR_STACK.fullmatch(line) for line in whole.split("\n"))


def _target(given: str, roots: Sequence[Path] | None, is_ours: Callable[[str], bool], what: str) -> Path:
    """The resolved path of a file that may be written."""
    if not given.strip() or "\x00" in given:
        raise BadCallError(f"{clean_text(given)!r} is no name of a file to write")
    path = Path(given)
    check_name(path)
    try:
        path = path.expanduser()
        if roots and not path.is_absolute():
            # A caller of a server knows its roots, not its working folder.
            path = roots[0] / path
        folder = path.parent.resolve(strict=True)
    except (OSError, RuntimeError):
        raise BadCallError(f"there is no folder {pasteable(path.parent)}: make it, or name another file") from None
    if roots is not None and not any(folder.is_relative_to(root.resolve()) for root in roots):
        allowed = ", ".join(str(root) for root in roots)
        raise OutsideRootsError(f"{pasteable(path)} is outside the folders this server may write to ({allowed})")
    if path.name in ("", ".."):
        raise BadCallError(f"{pasteable(path)} is a folder: name a file in it")
    target = folder / path.name
    try:
        _check_replaceable(target, is_ours, what)
    except FileNotFoundError:
        return target
    except OSError as error:
        raise BadCallError(f"{pasteable(target)} cannot be written ({error.strerror}): name another file") from None
    return target


def _check_replaceable(target: Path, is_ours: Callable[[str], bool], what: str) -> None:
    status = target.lstat()
    name = pasteable(target)
    if stat.S_ISLNK(status.st_mode):
        raise BadCallError(f"{name} is a link, which is not followed: name the file itself, or another one")
    if stat.S_ISDIR(status.st_mode):
        raise BadCallError(f"{name} is a folder: name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise BadCallError(f"{name} is no regular file: name another one")
    if status.st_uid != os.geteuid():
        raise BadCallError(f"{name} belongs to another user: name another file")
    with os.fdopen(os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        head = file.read(_HEAD_BYTES)
    if head and not is_ours(head.decode("utf-8", "replace")):
        raise BadCallError(f"{name} is there already and no {what} of torchtriage's: remove it, or name another file")


def _write(target: Path, data: bytes) -> None:
    """Write beside the target, then put it in its place."""
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=".torchtriage-", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(target)
        temporary = None
    except OSError as error:
        reason = "no space is left there" if is_full(error) else str(error.strerror)
        raise BadCallError(f"{pasteable(target)} cannot be written ({reason}): name another file") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
