"""Which rank, process or host a file speaks of, as far as its name says. A name is a hint: content wins over it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Names come out of archives too and may be of any length; the end is what tells something.
MAX_NAME_CHARS = 512

# "local_rank_3", "node-rank1" and "lora_rank8" are no ranks of the job, and "rank_2026-11-30" is a date.
_OTHER_RANK = "".join(
    rf"(?<!{word}[_\-.])"
    for word in (
        "local",
        "node",
        "group",
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "lora",
        "low",
        "tensor",
        "pipeline",
        "data",
        "role",
    )
)
_RANK = re.compile(
    rf"(?i)(?:^|(?<![a-z])){_OTHER_RANK}(?:global[_\-.]?)?rank[_\-.=]?0*(\d{{1,7}})(?!\d)(?![_\-.]\d\d[_\-.]\d\d)"
)
# Ray: worker-<worker id>-<job id>-<pid>.out
_RAY_WORKER = re.compile(r"^(?:python-core-)?worker-[0-9a-f]{16,80}-[0-9a-f]{4,16}-(\d{1,10})$")
_RANK_BEFORE_HOST = re.compile(r"(?i)rank[_\-.](?=[A-Za-z])")
_NO_HOST = re.compile(r"[^\w\-.]")
_RANK_AT_END = re.compile(r"[_\-.]0{0,64}(\d{1,7})$")
_PID = re.compile(r"(?i)(?:^|[^a-z])pid[_\-.=]?(\d{1,10})(?!\d)")
_LAST_NUMBER = re.compile(r"(\d{1,7})$")
_SAME_NAME_AGAIN = re.compile(r" \(\d{1,6}\)$")
_EXTENSIONS = frozenset(
    {"txt", "log", "out", "err", "stdout", "stderr", "json", "jsonl", "pickle", "pkl", "pt"}
    | {"gz", "zst", "dump", "trace", "native", "svg", "raw", "md"}
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
    folders, _, base = _SAME_NAME_AGAIN.sub("", name[-MAX_NAME_CHARS:]).rpartition("/")
    stem = _without_extensions(base)
    rank, host = _rank_after_host(stem)
    if rank is None:
        if (found := _last(_RANK, stem)) is not None:
            rank = found
        elif trailing_number_is_rank and (number := _LAST_NUMBER.search(stem)):
            rank = int(number[1])
        elif folders and (found := _last(_RANK, folders)) is not None:
            rank = found
    pid = _last(_PID, stem)
    if pid is None and (worker := _RAY_WORKER.match(stem)):
        pid = int(worker[1])
    if pid is None and folders:
        pid = _last(_PID, folders)
    return Identity(rank=rank, pid=pid, host=host)


def _without_extensions(base: str) -> str:
    while True:
        stem, dot, extension = base.rpartition(".")
        if not dot or extension.lower() not in _EXTENSIONS:
            return base
        base = stem


def _rank_after_host(stem: str) -> tuple[int | None, str | None]:
    """Of "..._rank_node01_5": 5 and "node01"."""
    word = _NO_HOST.split(stem)[-1]
    number = _RANK_AT_END.search(word)
    start = _RANK_BEFORE_HOST.search(word)
    if number is None or start is None or start.end() >= number.start():
        return None, None
    return int(number[1]), word[start.end() : number.start()]


def _last(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.findall(text)
    return int(found[-1]) if found else None
