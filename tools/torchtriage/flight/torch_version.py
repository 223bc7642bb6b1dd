"""Which torch is installed here or loaded by a process, told from names and from its ``version.py`` as text.

torch is never imported. Of a process's files only a regular one is read that root, the process's user or this one owns.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from torchtriage.bundle.proc_files import maps_of, names_in
from torchtriage.flight.job_files import read_owned

if TYPE_CHECKING:
    from collections.abc import Collection

_LIBRARY = re.compile(r"(/[^\n]{0,4000})/torch/lib/libtorch_(?:cpu|python)\.so[^/\n]{0,32}$", re.MULTILINE)
_DIST_INFO = re.compile(r"torch-(\d{1,4}\.\d{1,4}[\w.+]{0,60})\.dist-info$")
_MAX_FOLDERS = 8
_MAX_ENTRIES = 20_000
# A build from source has no dist-info beside it.
_VERSION_FILE = "torch/version.py"
_VERSION = re.compile(
    r"""^__version__\s{0,4}(?::\s{0,4}\w{1,20}\s{0,4})?=\s{0,4}['"](\d{1,4}\.\d{1,4}[\w.+]{0,60})['"]""", re.MULTILINE
)
_MAX_VERSION_BYTES = 8192


def installed_torch_version() -> str | None:
    """The version of the torch that this Python would import; None when there is none."""
    try:
        return importlib.metadata.version("torch")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def torch_version_of(pid: int, proc: Path = Path("/proc"), *, uid: int | None = None) -> str | None:
    """The version of the torch that a process has loaded; None when it has none, or what lies beside it tells none.

    It is in the name of the ``dist-info`` folder beside the package, else in the package's ``version.py``.

    Args:
        pid: the process.
        proc: where the process file system is mounted.
        uid: the process's user.
    """
    folders = _folders_of(maps_of(proc, pid) or "")
    versions = {
        version
        for folder in folders
        if (version := _version_in(proc / str(pid) / "root" / str(PurePosixPath(folder)).lstrip("/"), uid)) is not None
    }
    return versions.pop() if len(versions) == 1 else None


def has_torch(pid: int, proc: Path = Path("/proc")) -> bool | None:
    """Whether a process has a libtorch mapped; None when that cannot be seen."""
    text = maps_of(proc, pid)
    return bool(_folders_of(text)) or "/libtorch" in text if text else None


def _folders_of(maps: str) -> list[str]:
    return list(dict.fromkeys(_LIBRARY.findall(maps)))[:_MAX_FOLDERS]


def _version_in(folder: Path, uid: int | None) -> str | None:
    named = {found[1] for name in names_in(folder, _MAX_ENTRIES) if (found := _DIST_INFO.fullmatch(name)) is not None}
    if named:
        return named.pop() if len(named) == 1 else None
    owners = {0, os.geteuid(), *(() if uid is None else (uid,))}
    found = _VERSION.search(_owned_text(folder / _VERSION_FILE, owners))
    return found[1] if found is not None else None


def _owned_text(path: Path, owners: Collection[int]) -> str:
    try:
        return read_owned(str(path), owners, _MAX_VERSION_BYTES).data.decode("utf-8", errors="replace")
    except OSError:
        return ""


def release_of(version: str | None) -> tuple[int, int] | None:
    """(2, 13) of "2.13.0+cu130"; None when the text is no version."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    return (int(found[1]), int(found[2])) if found else None
