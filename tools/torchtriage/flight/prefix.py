"""Where dumps go: the file prefix that a job's variables give, and whether a file can be written there.

A dump is written to prefix + global rank, so one prefix serves all ranks, and it must not be a folder.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PREFIX_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The name now, then the older one; the first that is set counts."""
PIPE_NAME = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DEFAULT_IN_CACHE = "torch/comm_lib_trace_rank_"
OLDER_DEFAULT = "/tmp/nccl_trace_rank_"  # noqa: S108  # torch's own name


def configured_prefix(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """(name of the variable that counts, the prefix), or None when the default counts."""
    return next(((name, environment[name]) for name in PREFIX_NAMES if environment.get(name)), None)


def default_prefixes(environment: Mapping[str, str], home: str | None) -> list[str]:
    """Where dumps go when no variable says: now below the cache folder, in older releases below /tmp."""
    own = environment.get("HOME") or home
    cache = environment.get("XDG_CACHE_HOME") or (f"{own}/.cache" if own else None)
    return [*([f"{cache}/{DEFAULT_IN_CACHE}"] if cache else []), OLDER_DEFAULT]


def prefix_faults(name: str, value: str, *, uid: int | None, root: Path | None) -> list[str]:
    """What would keep a file of the prefix ``value`` (of variable ``name``) from being written; one sentence at most.

    Args:
        name: the variable.
        value: the prefix.
        uid: the user that the job runs as; None is this process's own.
        root: the folder that is "/" to the job, for a job in a container.
    """
    at = value if root is None else f"{root}/{value}"
    what = "no dump can be written there" if name != PIPE_NAME else "the process group cannot be made"
    if value.endswith("/") or _folder_status(at) is not None:
        return [
            f"{name} names a folder ({_shown(value)}): the rank number is appended to it, so give a file prefix in it."
        ]
    folder = os.path.dirname(value) or "."  # noqa: PTH120  # a Path would drop what the text says
    if root is not None and not value.startswith("/"):
        return []  # relative to the job's own folder, which is not known here
    at = folder if root is None else f"{root}/{folder}"
    status = _folder_status(at)
    if status is None:
        return [
            f"The folder of {name} ({_shown(folder)}) does not exist on this host: {what}. Make it before the start."
        ]
    if uid is None or uid == os.geteuid():
        if not os.access(at, os.W_OK | os.X_OK):
            return [
                f"The folder of {name} ({_shown(folder)}) is not writable: {what}. Name one that the job's user owns."
            ]
        return []
    if not _may_write(status, uid):
        owner = "root" if status.st_uid == 0 else f"uid {status.st_uid}"
        return [
            f"The folder of {name} ({_shown(folder)}) belongs to {owner} (mode {stat.S_IMODE(status.st_mode):04o}) and "
            f"the job runs as uid {uid}: {what}. Name one that the job's user owns."
        ]
    return []


def _may_write(status: os.stat_result, uid: int) -> bool:
    """Whether the mode lets the user write; where only its groups could, which are not known here, it is taken to."""
    if uid == 0:
        return True
    both = stat.S_IWOTH | stat.S_IXOTH
    if status.st_uid == uid:
        return status.st_mode >> 6 & both == both
    return status.st_mode & both == both or status.st_mode >> 3 & both == both


def _folder_status(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # the text as it stands
    except (OSError, ValueError):
        return None
    return status if stat.S_ISDIR(status.st_mode) else None


def _shown(value: str) -> str:
    return repr(clean_text(value, 120))
