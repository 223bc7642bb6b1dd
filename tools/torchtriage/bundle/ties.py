"""What ties processes to one job when no variable tells: torch in memory, TCP connections with each other, namespaces.

Only asked about the few processes for which it matters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchtriage.bundle import proc_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtriage.bundle.process_table import Entry

MAX_MAPS_BYTES = 4 << 20
MAX_NET_BYTES = 4 << 20
MAX_DESCRIPTORS = 4096
_SOCKET = re.compile(r"^socket:\[(\d{1,20})\]$")
_MAPPED = "0000000000000000FFFF0000"
_ESTABLISHED = "01"


def has_torch(root: str, entry: Entry) -> bool:
    """Whether torch is loaded. Some versions name the main thread; in all, its library is a mapped file."""
    if entry.stat.name.startswith("pt_main"):
        return True
    found, _ = proc_files.each([entry.pid], lambda pid: proc_files.read(f"{root}/{pid}/maps", MAX_MAPS_BYTES), 1.0)
    return b"/libtorch" in (found.get(entry.pid) or b"")


def connected(root: str, pids: Sequence[int]) -> set[int]:
    """Those of the processes that hold a TCP connection whose other end another one of them holds.

    Ranks do (the store, NCCL's bootstrap, Gloo's pairs); workers of a DataLoader or a pool never do.
    """
    ends = _connections(root, pids)
    holders: dict[tuple[str, str], set[int]] = {}
    for pid in pids:
        for descriptor in proc_files.numbers_in(f"{root}/{pid}/fd", MAX_DESCRIPTORS):
            target = _SOCKET.match(proc_files.link(f"{root}/{pid}/fd/{descriptor}") or "")
            if target and (end := ends.get(target[1])):
                holders.setdefault(end, set()).add(pid)
    tied: set[int] = set()
    for (local, remote), here in holders.items():
        there = holders.get((remote, local), set())
        # What a parent opened before it forked is held by all of them and ties nobody.
        if len(here) == len(there) == 1 and here != there:
            tied |= here | there
    return tied


def network_namespace(root: str, pid: int) -> str | None:
    """The network namespace, in which an address like 127.0.0.1 means one thing."""
    return proc_files.link(f"{root}/{pid}/ns/net")


def _connections(root: str, pids: Sequence[int]) -> dict[str, tuple[str, str]]:
    ends: dict[str, tuple[str, str]] = {}
    namespaces: set[str | None] = set()
    for pid in pids:
        namespace = network_namespace(root, pid)
        if namespace in namespaces:
            continue
        namespaces.add(namespace)
        for name in ("tcp", "tcp6"):
            table = proc_files.read(f"{root}/{pid}/net/{name}", MAX_NET_BYTES) or b""
            for line in table.decode("ascii", errors="replace").split("\n")[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _ESTABLISHED:
                    ends[fields[9]] = (_plain(fields[1]), _plain(fields[2]))
    return ends


def _plain(end: str) -> str:
    return end.removeprefix(_MAPPED)
