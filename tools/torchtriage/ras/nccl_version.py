"""Which NCCL a process has loaded, told from the names around its mapped libnccl; nothing is loaded or run for it."""

from __future__ import annotations

import re
from pathlib import Path

from torchtriage.bundle.proc_files import maps_of, names_in

Version = tuple[int, int, int]

_MAX_PATHS = 8
_LIBRARY = re.compile(r"(/[^\n]{0,4000}/libnccl\.so[^/\n]{0,64})$", re.MULTILINE)
_FILE_NAME = re.compile(r"libnccl\.so\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$")
_DIST_INFO = re.compile(r"nvidia[_-]nccl[_-]cu\d{1,3}-(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?:\.\w{1,20}){0,2}\.dist-info$")
_CONDA_META = re.compile(r"nccl-(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?:\.\w{1,20}){0,2}-[\w.]{1,80}\.json$")
_MAX_ENTRIES = 20_000


def nccl_version_of(pid: int, proc: Path = Path("/proc")) -> Version | None:
    """The version of the NCCL that a process has mapped; None when it has none or the names do not tell.

    A wheel has it in the name of its ``dist-info`` folder, a system package in the file's own name, conda in its
    ``conda-meta``. Paths are looked up as the process sees them, so a container's libraries are found too.
    """
    found = {
        version for path in mapped_libraries(pid, proc) if (version := _version_at(proc / str(pid) / "root", path))
    }
    return found.pop() if len(found) == 1 else None


def mapped_libraries(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """Paths of the libnccl files that a process has mapped, as it sees them."""
    paths = dict.fromkeys(path.removesuffix(" (deleted)") for path in _LIBRARY.findall(maps_of(proc, pid) or ""))
    return list(paths)[:_MAX_PATHS]


def parse_version(text: str) -> Version | None:
    """ "2.28.9" or "2.28.9+cuda13.0" as numbers."""
    found = re.match(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?!\d)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _version_at(root: Path, library: str) -> Version | None:
    if named := _FILE_NAME.search(library):
        return int(named[1]), int(named[2]), int(named[3])
    parts = Path(library).parts
    folder = Path(*parts[1:-1])
    beside: list[tuple[Path, re.Pattern[str]]] = []
    if parts[-4:-1] == ("nvidia", "nccl", "lib"):
        beside.append((folder.parent.parent.parent, _DIST_INFO))
    if parts[-2:-1] == ("lib",):
        beside.append((folder.parent / "conda-meta", _CONDA_META))
    for at, pattern in beside:
        names = names_in(root / at, _MAX_ENTRIES)
        found = {(int(m[1]), int(m[2]), int(m[3])) for name in names if (m := pattern.fullmatch(name))}
        if len(found) == 1:
            return found.pop()
    return None
