"""Pack a bundle's folder into one file, for sending and for looking at it elsewhere."""

from __future__ import annotations

import os
import tarfile
from typing import TYPE_CHECKING

from torchtriage.errors import BadCallError

if TYPE_CHECKING:
    from pathlib import Path

ENDINGS = (".tar.zst", ".tar.gz", ".tgz", ".tar")
_LEVEL = 9


def check_packed_name(path: Path) -> None:
    """Refuse a name that cannot be written before anything is collected.

    Raises:
        BadCallError: another ending, something is there already, or its folder is not there.
    """
    if not path.name.endswith(ENDINGS):
        raise BadCallError(f"{path}: a bundle is a folder or a file that ends in {', '.join(ENDINGS)}")
    if os.path.lexists(path):
        raise BadCallError(f"{path} is there already: remove it, or name another file")
    if not path.parent.is_dir():
        raise BadCallError(f"{path.parent} is no folder: make it, or name another file")


def pack(folder: Path, target: Path) -> None:
    """Write ``folder`` as an archive that is readable by its owner alone.

    Raises:
        BadCallError: the file cannot be written.
    """
    check_packed_name(target)
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as raw:
            if target.name.endswith(".zst"):
                import zstandard

                with zstandard.ZstdCompressor(_LEVEL).stream_writer(raw) as packed, _tar(packed, "w|") as archive:
                    archive.add(folder, arcname=folder.name)
            else:
                with _tar(raw, "w" if target.name.endswith(".tar") else "w:gz") as archive:
                    archive.add(folder, arcname=folder.name)
    except OSError as error:
        raise BadCallError(f"{target} could not be written ({error.strerror}); the bundle is in {folder}") from None


def _tar(stream: object, mode: str) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode=mode, format=tarfile.PAX_FORMAT)  # type: ignore[call-overload]
