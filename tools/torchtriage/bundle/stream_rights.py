"""Whether a file that a process has open may be copied for it: what the collector may read, its user may not.

Who runs as root opens whatever a descriptor stands for. A process can have descriptors of files that it cannot read:
``O_PATH`` needs no right to the file, and who started it may have handed it one that can only be written to.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from torchtriage.bundle import proc_files

if TYPE_CHECKING:
    from pathlib import Path

_MAX_INFO_BYTES = 65_536
_ACL = "system.posix_acl_access"


def why_not_copied(proc: Path, pid: int, number: int, uid: int, opened: int) -> str | None:
    """Why descriptor ``number`` of a process must not be copied from our own ``opened`` one; None when it may be.

    A process can put another file in its place at any moment, so what is decisive is asked of the file that we have
    open: that it is the user's own, or that its mode lets that user read it.

    Args:
        proc: where the process file system is mounted.
        pid: the process.
        number: its descriptor.
        uid: who started it.
        opened: our descriptor of the file.
    """
    flags = _flags(proc, pid, number)
    if flags is None:
        return "how it is open cannot be told"
    if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_RDONLY:
        return "it is not open for writing, so that no output is in it"
    # With the rights of the same user, the kernel has just answered the question.
    if os.geteuid() == uid or _user_may_read(proc, pid, uid, opened):
        return None
    return f"it is another user's, and user id {uid}, who runs the job, may not read it"


def _flags(proc: Path, pid: int, number: int) -> int | None:
    for line in (proc_files.read(f"{proc}/{pid}/fdinfo/{number}", _MAX_INFO_BYTES) or b"").splitlines():
        name, _, value = line.partition(b":")
        if name == b"flags":
            try:
                return int(value.strip(), 8)
            except ValueError:
                return None
    return None


def _user_may_read(proc: Path, pid: int, uid: int, opened: int) -> bool:
    status = os.fstat(opened)
    if status.st_uid == uid:
        return True  # its owner could give itself the right to
    if _has_acl(opened):
        return False  # then the mode says less than it seems to
    ids = proc_files.ids_of(str(proc), pid)
    if ids is None or ids.uid != uid:
        return False
    return bool(status.st_mode & (stat.S_IRGRP if status.st_gid in ids.gids else stat.S_IROTH))


def _has_acl(opened: int) -> bool:
    try:
        return _ACL in os.listxattr(opened)
    except OSError:
        return False  # a file system without them
