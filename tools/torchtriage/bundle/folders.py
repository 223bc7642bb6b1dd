"""Private folders for what is read from processes: ours alone, and nothing that somebody else planted there."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from torchtriage.artefacts.names import display_name
from torchtriage.errors import BadCallError
from torchtriage.wording import pasteable

_TRIES = 100


def default_base(name: str) -> Path:
    """``$TMPDIR/NAME``: where dumps of live processes land when nobody says otherwise."""
    return Path(tempfile.gettempdir()) / name


def check_name(path: Path) -> None:
    """Refuse a path that no report could name, as reports are Unicode.

    Raises:
        BadCallError: some of it is no UTF-8.
    """
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise BadCallError(
            f"{display_name(str(path))}: this path is no UTF-8, so that no report could name it: give another one "
            "(where none was given, TMPDIR says it)"
        ) from None


def private_folder(base: Path, name: str | None = None) -> Path:
    """Make ``base`` private to this user, and in it a new folder ``name`` if one is given.

    A folder that is there already is taken only if it is this user's own and no link; where others could write into it,
    it is closed to them. ``base``'s parents are trusted, as the user named them.

    Args:
        base: the folder, which may exist.
        name: a folder to be made in it; when there is one already, ``-2``, ``-3``, ... is put behind the name.

    Raises:
        BadCallError: the folder cannot be made or named, or what stands there is a link or another user's.
    """
    check_name(base)
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            base.mkdir(mode=0o700)
        descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BadCallError(
            f"{pasteable(base)} is no folder that can be used ({error.strerror}): name another one"
        ) from None
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise BadCallError(f"{pasteable(base)} belongs to another user: remove it, or name another folder")
        if stat.S_IMODE(status.st_mode) & 0o022:
            os.fchmod(descriptor, 0o700)
        return base if name is None else base / _make_new(descriptor, name)
    except OSError as error:
        raise BadCallError(f"no folder can be made in {pasteable(base)} ({error.strerror}): name another one") from None
    finally:
        os.close(descriptor)


def _make_new(base: int, name: str) -> str:
    for number in range(1, _TRIES):
        chosen = name if number == 1 else f"{name}-{number}"
        try:
            os.mkdir(chosen, 0o700, dir_fd=base)
        except FileExistsError:
            continue
        return chosen
    raise FileExistsError(17, "too many folders of that name")
