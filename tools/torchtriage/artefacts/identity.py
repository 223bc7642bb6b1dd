"""Which rank, process or host a file speaks of, as far as its name says. A name is a hint: content wins over it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

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
_RANK = lazy_re(
    rf"(?i)(?:^|(?<![a-z])){_OTHER_RANK}(?:global[_\-.]?)?rank[_\-.=]?0*(\d{{1,7}})(?!\d)(?![_\-.]\d\d[_\-.]\d\d)"
)
# Ray: worker-<worker id>-<job id>-<pid>.out
_RAY_WORKER = lazy_re(r"^(?:python-core-)?worker-[0-9a-f]{16,80}-[0-9a-f]{4,16}-(\d{1,10})$")
_RANK_BEFORE_HOST = lazy_re(r"(?i)rank[_\-.](?=[A-Za-z])")
_NO_HOST = lazy_re(r"[^\w\-.]")
_RANK_AT_END = lazy_re(r"[_\-.]0{0,64}(\d{1,7})$")
_PID = lazy_re(r"(?i)(?:^|[^a-z])pid[_\-.=]?(\d{1,10})(?!\d)")
# Of "-1" after another mark the number is negative, and one of more digits is a date or a time.
_LAST_NUMBER = lazy_re(r"(?<!\d)(?<![_\-.=]-)(\d{1,7})$")
_NUMBER_BEFORE = lazy_re(r"(?<!\d)(\d{1,7})[_\-.]$")
_NUMBER_ALONE = lazy_re(r"(?:^|/)(\d{1,7})$")
_MIN_EQUAL_NUMBERS = 3
"""In so many folders a number at the end of all names is no rank: two attempts of one rank would be fewer."""
_SAME_NAME_AGAIN = lazy_re(r" \(\d{1,6}\)$")
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
        if (found := _last(_RANK, stem)) is not None or (folders and (found := _last(_RANK, folders)) is not None):
            rank = found
        elif trailing_number_is_rank and (number := _LAST_NUMBER.search(stem)):
            rank = int(number[1])
    pid = _last(_PID, stem)
    if pid is None and (worker := _RAY_WORKER.match(stem)):
        pid = int(worker[1])
    if pid is None and folders:
        pid = _last(_PID, folders)
    return Identity(rank=rank, pid=pid, host=host)


def identities_of_dumps(names: Sequence[str]) -> list[Identity]:
    """Rank, pid and host of each of the flight-recorder dumps of one job, whose names say more together.

    A number at the end that is the same in all of them counts attempts or is a name's own. A folder's rank is whose
    dump lies in it, except that of one folder which holds the dumps of all.
    """
    found = [identity_of(name, trailing_number_is_rank=True) for name in names]
    stems = [_Numbered.of(name) for name in names]
    numbered = [i for i, stem in enumerate(stems) if stem.last is not None and not stem.says_rank]
    in_folders = [i for i in numbered if stems[i].folder_rank is not None]
    if len({stems[i].folder_rank for i in in_folders}) == 1 and len({stems[i].last for i in in_folders}) > 1:
        for i in in_folders:
            found[i] = replace(found[i], rank=stems[i].last)
        in_folders = []
    bare = [i for i in numbered if stems[i].folder_rank is None]
    if len(bare) > 1 and len({stems[i].last for i in bare}) == 1:
        before = [stems[i].before for i in bare]
        if None not in before and len(set(before)) == len(before):
            for i in bare:
                found[i] = replace(found[i], rank=stems[i].before)
        elif len({names[i].rpartition("/")[0] for i in bare}) >= _MIN_EQUAL_NUMBERS:
            for i in bare:
                found[i] = replace(found[i], rank=None)
    return found


@dataclass(frozen=True)
class _Numbered:
    """The numbers of a name: the one at its end, the one before that, and what the word "rank" stands before."""

    last: int | None
    before: int | None
    says_rank: bool
    folder_rank: int | None

    @classmethod
    def of(cls, name: str) -> _Numbered:
        folders, _, base = _SAME_NAME_AGAIN.sub("", name[-MAX_NAME_CHARS:]).rpartition("/")
        stem = _without_extensions(base)
        last = _LAST_NUMBER.search(stem)
        says_rank = _rank_after_host(stem)[0] is not None or _RANK.search(stem) is not None
        if last is None:
            return cls(None, None, says_rank, None)
        # A folder that is called by a number alone, or a number within the name itself.
        before = _NUMBER_BEFORE.search(stem[: last.start()]) or _NUMBER_ALONE.search(folders)
        return cls(int(last[1]), int(before[1]) if before else None, says_rank, _last(_RANK, folders))


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
