"""Which torch is installed here or loaded by a process, told from names; torch is never imported."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from torchtriage.bundle.proc_files import each, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIBRARY = re.compile(r"(/[^\n]{0,4000})/torch/lib/libtorch_(?:cpu|python)\.so[^/\n]{0,32}$", re.MULTILINE)
_DIST_INFO = re.compile(r"torch-(\d{1,4}\.\d{1,4}[\w.+]{0,60})\.dist-info$")
_MAX_MAPS_BYTES = 16 << 20
_MAX_FOLDERS = 8
_MAX_ENTRIES = 20_000
_READ_S = 1.0


def installed_torch_version() -> str | None:
    """The version of the torch that this Python would import; None when there is none."""
    try:
        return importlib.metadata.version("torch")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def torch_version_of(pid: int, proc: Path = Path("/proc")) -> str | None:
    """The version of the torch that a process has loaded, from the name of the ``dist-info`` folder beside it."""
    texts, _ = each([f"{proc}/{pid}/maps"], lambda path: read_text(path, _MAX_MAPS_BYTES), _READ_S)
    text = next(iter(texts.values()), None)
    folders = list(dict.fromkeys(_LIBRARY.findall(text or "")))[:_MAX_FOLDERS]
    versions = {
        found[1]
        for folder in folders
        for name in _names(proc / str(pid) / "root" / str(PurePosixPath(folder)).lstrip("/"))
        if (found := _DIST_INFO.fullmatch(name)) is not None
    }
    return versions.pop() if len(versions) == 1 else None


def release_of(version: str | None) -> tuple[int, int] | None:
    """(2, 13) of "2.13.0+cu130"; None when the text is no version."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    return (int(found[1]), int(found[2])) if found else None


def _names(folder: Path) -> Iterator[str]:
    try:
        for number, entry in enumerate(folder.iterdir()):
            if number >= _MAX_ENTRIES:
                return
            yield entry.name
    except OSError:
        return
