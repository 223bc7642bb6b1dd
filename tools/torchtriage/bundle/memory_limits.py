"""The memory limit that applies to a process: the tightest of its control group and those above it, versions 1 and 2.

Seen from inside a container the path of a process may lie above what is mounted; then the mount's root is its group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle import proc_files
from torchtriage.bundle.proc_model import CgroupMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LEVELS = 32
MAX_MOUNTINFO_BYTES = 2 << 20
UNLIMITED = 1 << 60  # version 1 writes "no limit" as nearly 2**63


def memory_of(folder: str) -> CgroupMemory | None:
    """The limit of a process, given its folder in /proc; None when its control group cannot be read."""
    groups = proc_files.read_text(f"{folder}/cgroup", 16_384)
    mounts = proc_files.read_text(f"{folder}/mountinfo", MAX_MOUNTINFO_BYTES)
    if not groups or not mounts:
        return None
    for version, path in _groups(groups):
        mounted = _mount(mounts, version)
        if mounted is None:
            continue
        root, point = mounted
        inside = path.removeprefix(root.rstrip("/")) if path.startswith(root) else ""
        if ".." in inside.split("/"):
            inside = ""
        found = _tightest(version, point, inside)
        if found is not None:
            return found
    return None


def _groups(text: str) -> Iterator[tuple[int, str]]:
    """Version 1's memory controller first: where it is in use, version 2's tree has none."""
    lines = [line.split(":", 2) for line in text.split("\n")[:64] if line.count(":") >= 2]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            yield 1, path
    for number, controllers, path in lines:
        if number == "0" and not controllers:
            yield 2, path


def _mount(text: str, version: int) -> tuple[str, str] | None:
    for line in text.split("\n")[:20_000]:
        left, dash, right = line.partition(" - ")
        fields, types = left.split(" "), right.split(" ")
        if not dash or len(fields) < 5:
            continue
        options = types[2].split(",") if len(types) > 2 else []
        if (version == 2 and types[0] == "cgroup2") or (version == 1 and types[0] == "cgroup" and "memory" in options):
            return fields[3], fields[4]
    return None


def _tightest(version: int, point: str, inside: str) -> CgroupMemory | None:
    limit_name, current_name = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    best: CgroupMemory | None = None
    frozen: bool | None = None
    here = inside.rstrip("/")
    for _ in range(MAX_LEVELS):
        folder = f"{point}{here}"
        if version == 2 and frozen is not True:
            events = _pairs(f"{folder}/cgroup.events")
            frozen = bool(events["frozen"]) if "frozen" in events else frozen
        current = _bytes(proc_files.read_text(f"{folder}/{current_name}", 64))
        if current is not None:
            limit = _bytes(proc_files.read_text(f"{folder}/{limit_name}", 64))
            if best is None or (limit is not None and (best.limit_bytes is None or limit < best.limit_bytes)):
                stat = _pairs(f"{folder}/memory.stat")
                kills = _pairs(f"{folder}/memory.events" if version == 2 else f"{folder}/memory.oom_control")
                best = CgroupMemory(
                    version=version,
                    path=clean_text(here or "/", 256),
                    limit_bytes=limit,
                    current_bytes=current,
                    inactive_file_bytes=stat.get("total_inactive_file", stat.get("inactive_file")),
                    oom_kills=kills.get("oom_kill"),
                )
        if not here:
            break
        here = here.rpartition("/")[0]
    if best is not None:
        best.frozen = frozen
    return best


def _bytes(text: str | None) -> int | None:
    word = (text or "").strip()
    number = int(word) if word.isascii() and word.isdigit() and len(word) <= 20 else None
    return number if number is not None and number < UNLIMITED else None


def _pairs(path: str) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for line in (proc_files.read_text(path, 16_384) or "").split("\n")[:256]:
        name, _, value = line.partition(" ")
        if (number := _bytes(value)) is not None:
            pairs[name] = number
    return pairs
