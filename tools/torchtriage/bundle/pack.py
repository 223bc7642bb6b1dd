"""Pack a bundle's folder into one file, for sending and for looking at it elsewhere."""

from __future__ import annotations

import contextlib
import os
import tarfile
from typing import TYPE_CHECKING, BinaryIO

import zstandard

from torchtriage.bundle.folders import check_name
from torchtriage.errors import BadCallError
from torchtriage.wording import pasteable

if TYPE_CHECKING:
    from pathlib import Path

ENDINGS = (".tar.zst", ".tar.gz", ".tgz", ".tar")
_LEVEL = 9


def check_packed_name(path: Path) -> None:
    """Refuse a name that cannot be written before anything is collected.

    Raises:
        BadCallError: another ending, something is there already, its folder is not there, or no report could name it.
    """
    check_name(path)
    if not path.name.endswith(ENDINGS):
        raise BadCallError(f"{pasteable(path)}: a bundle is a folder or a file that ends in {', '.join(ENDINGS)}")
    if os.path.lexists(path):
        raise BadCallError(f"{pasteable(path)} is there already: remove it, or name another file")
    if not path.parent.is_dir():
        raise BadCallError(f"{pasteable(path.parent)} is no folder: make it, or name another file")


def pack(folder: Path, target: Path) -> None:
    """Write ``folder`` as an archive that is readable by its owner alone; a file that could not be finished is removed.

    Raises:
        BadCallError: the file cannot be written; the message says where the folder is, which is left as it is.
    """
    where = f"the bundle is in {pasteable(folder)}"
    try:
        check_packed_name(target)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except BadCallError as error:
        raise BadCallError(f"{error}; {where}") from None
    except OSError as error:
        raise BadCallError(f"{pasteable(target)} could not be written ({error.strerror}); {where}") from None
    with contextlib.ExitStack() as unfinished:
        unfinished.callback(target.unlink, missing_ok=True)
        try:
            with os.fdopen(descriptor, "wb") as raw:
                _write(folder, target.name, raw)
        except (OSError, tarfile.TarError, zstandard.ZstdError) as error:
            said = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise BadCallError(f"{pasteable(target)} could not be written ({said}); {where}") from None
        unfinished.pop_all()


def _write(folder: Path, name: str, raw: BinaryIO) -> None:
    if name.endswith(".zst"):
        with zstandard.ZstdCompressor(_LEVEL).stream_writer(raw) as packed, _tar(packed, "w|") as archive:
            archive.add(folder, arcname=folder.name)
    else:
        with _tar(raw, "w" if name.endswith(".tar") else "w:gz") as archive:
            archive.add(folder, arcname=folder.name)


def _tar(stream: object, mode: str) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode=mode, format=tarfile.PAX_FORMAT)  # type: ignore[call-overload]
