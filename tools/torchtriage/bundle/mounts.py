"""Of which type the file system of a path is, read off a mount table alone: no file is touched."""

from __future__ import annotations

import re

MAX_MOUNTS = 20_000
NETWORK = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "9p", "cifs", "smb3", "smbfs", "afs", "gfs2", "ocfs2"}
    | {"glusterfs", "wekafs", "pvfs2", "orangefs", "panfs", "virtiofs", "coda"}
)
# FUSE can be anything; these are file systems of the node itself.
_LOCAL_FUSE = frozenset({"fuse.overlayfs", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse"})
_LOCAL_FUSE_PREFIXES = ("fuse.squashfuse", "fuse.ntfs", "fuse.gocryptfs", "fuse.mergerfs", "fuse.bindfs")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def is_network(file_system: str) -> bool:
    """Whether a file system of this type waits for another machine, or for a program that may."""
    if file_system.startswith("fuse"):
        local = file_system in _LOCAL_FUSE or file_system.startswith(_LOCAL_FUSE_PREFIXES)
        return file_system != "fuseblk" and file_system != "fusectl" and not local
    return file_system in NETWORK


def type_of(path: str, mountinfo: str) -> str | None:
    """The type of the mount that holds an absolute path; the last one of those mounted at one point is what is seen."""
    best, found = -1, None
    for line in mountinfo.split("\n")[:MAX_MOUNTS]:
        left, dash, right = line.partition(" - ")
        fields, types = left.split(" "), right.split(" ")
        if not dash or len(fields) < 5 or not types[0]:
            continue
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4])
        inside = path == point or path.startswith(point if point.endswith("/") else point + "/")
        if inside and len(point) >= best:
            best, found = len(point), types[0][:64]
    return found
