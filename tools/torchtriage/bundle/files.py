"""Writing the files of a bundle: new files only, private, nothing followed that somebody else planted there."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_new(path: Path, data: bytes, *, mtime_ns: int | None = None) -> None:
    """Write a file that does not exist yet, whole or not at all, readable by its owner alone, and its folder.

    Args:
        path: where to; the last step is never followed if it is a link.
        data: the whole content.
        mtime_ns: the time of last change to give it, for a copy of a file whose time says something.

    Raises:
        FileExistsError: something is there already.
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if mtime_ns is not None:
                os.utime(descriptor, ns=(mtime_ns, mtime_ns))
    except OSError:
        path.unlink(missing_ok=True)  # a full disk leaves no half of a file that looks whole
        raise


def is_full(error: OSError) -> bool:
    """Whether there was no room: on the disk, for another file on it, or in what this user may use of it."""
    return error.errno in _FULL


def says_full(text: str) -> bool:
    """Whether an error that was kept as text is one that :func:`is_full` knows."""
    return any(os.strerror(code) in text for code in _FULL)


def path_in_bundle(folder: Path, name: str) -> str:
    """How the manifest names ``folder/name``, where ``folder`` is one host's folder in the bundle."""
    return f"{folder.name}/{name}"
