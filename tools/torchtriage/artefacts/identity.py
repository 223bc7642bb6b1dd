"""Which rank, process or host a file speaks of, as far as its name says. A name is a hint: content wins over it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANK = re.compile(r"(?i)(?:^|[^a-z])(?:global[_\-.]?)?rank[_\-.=]?0*(\d{1,7})(?!\d)")
_RANK_AFTER_HOST = re.compile(r"(?i)rank[_\-.](?P<host>[A-Za-z][\w\-.]*?)[_\-.]0*(?P<rank>\d{1,7})$")
_PID = re.compile(r"(?i)(?:^|[^a-z])pid[_\-.=]?(\d{1,10})(?!\d)")
_LAST_NUMBER = re.compile(r"0*(\d{1,7})$")
_EXTENSIONS = re.compile(
    r"(?i)(?:\.(?:txt|log|out|err|stdout|stderr|json|jsonl|pickle|pkl|pt|gz|zst|dump|trace|native|svg|raw|md))+$"
)


@dataclass(frozen=True)
class Identity:
    """What a name says; None where it says nothing."""

    rank: int | None = None
    pid: int | None = None
    host: str | None = None


def identity_of(name: str, *, trailing_number_is_rank: bool = False) -> Identity:
    """Read rank, pid and host off an artefact's name.

    Args:
        name: the artefact's name, with folders ("rank_3/stderr.log" names a rank as well).
        trailing_number_is_rank: flight-recorder prefixes end in the rank (``nccl_trace_rank_5``, ``_dump_5``,
            ``nccl_trace_rank_node01_5``), so there a number at the end is one.
    """
    folders, _, base = name.rpartition("/")
    stem = _EXTENSIONS.sub("", base)
    rank: int | None = None
    host: str | None = None
    if with_host := _RANK_AFTER_HOST.search(stem):
        rank, host = int(with_host["rank"]), with_host["host"]
    elif (found := _last(_RANK, stem)) is not None:
        rank = found
    elif trailing_number_is_rank and (number := _LAST_NUMBER.search(stem)):
        rank = int(number[1])
    elif folders and (found := _last(_RANK, folders)) is not None:
        rank = found
    pid = _last(_PID, stem)
    if pid is None and folders:
        pid = _last(_PID, folders)
    return Identity(rank=rank, pid=pid, host=host)


def _last(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.findall(text)
    return int(found[-1]) if found else None
