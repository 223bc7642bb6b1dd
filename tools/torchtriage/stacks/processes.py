"""Which processes of all dumps are ranks, which are their helpers, and which dump of a process says most.

A process counts once, however often it was dumped: native frames beat py-spy's JSON, that beats plain text. A dump in
a folder ``again`` is a second look at the same process, and a process that was found stopped is, whatever its frames.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.identity import identity_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# (part of the file, function, role), innermost frame first: the first one that fits says what the process is.
_MARKS: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (file, re.compile(function), role)
    for file, function, role in (
        ("torch/utils/data/_utils/worker.py", r"_worker_loop$", "dataloader worker"),
        ("torch/multiprocessing/spawn.py", r"^_wrap$", "rank"),
        ("torch/distributed/elastic/multiprocessing/api.py", r"^_wrap$", "rank"),
        ("multiprocessing/pool.py", r"^worker$", "helper"),
        ("multiprocess/pool.py", r"^worker$", "helper"),
        ("concurrent/futures/process.py", r"^_process_worker$", "helper"),
        ("multiprocessing/resource_tracker.py", r"^main$", "helper"),
        ("multiprocessing/forkserver.py", r"^main$", "helper"),
        ("multiprocessing/managers.py", r"_run_server$|serve_forever$", "helper"),
        ("torch/_inductor/compile_worker/", r"", "helper"),
        ("wandb/sdk/service/", r"", "helper"),
        ("torch/distributed/elastic/agent/", r"", "launcher"),
        ("torch/distributed/launcher/", r"", "launcher"),
        ("torch/distributed/run.py", r"^(?:run|main)$", "launcher"),
        ("torch/multiprocessing/spawn.py", r"^(?:join|spawn|start_processes)$", "launcher"),
        ("accelerate/commands/", r"", "launcher"),
        ("deepspeed/launcher/", r"", "launcher"),
    )
)
_HELPER_COMMAND = re.compile(
    r"multiprocessing\.(?:resource_tracker|forkserver)|compile_worker|from multiprocessing\.spawn import spawn_main"
)
_RANK_IN_COMMAND = re.compile(r"(?:^|\s)(?:--(?:global[-_])?rank|RANK)[= ](\d{1,7})(?=\s|$)")
_LOCAL_RANK_IN_COMMAND = re.compile(r"(?:^|\s)(?:--local[-_]rank|LOCAL_RANK)[= ](\d{1,7})(?=\s|$)")
_SECOND_LOOK = re.compile(r"(?:^|/)again$")
_CHILD_IN_NAME = re.compile(r"-child(\d{1,10})(?!\d)")
_FOLDERS_OF_KIND = re.compile(r"(?:^|/)(?:stacks|py-?spy|dumps?|native)$")

MAX_CHILDREN = 32


@dataclass
class RankProcess:
    """One process that is (or may be) a rank, with the dump that says most of it."""

    rank: int | None
    pid: int | None
    host: str | None
    artefact: str
    process: Mapping[str, Any]
    helpers: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list["tuple[str, Mapping[str, Any]]"])
    """DataLoader workers that are known to be this rank's, with their artefact's name."""
    children: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list["tuple[str, Mapping[str, Any]]"])
    """Other processes that it is known to have started, in the same form."""
    again: tuple[str, Mapping[str, Any]] | None = None
    """A second look some seconds later."""


@dataclass(frozen=True)
class _Seen:
    artefact: str
    process: Mapping[str, Any]
    folder: str
    pid: int | None
    parent: int | None
    role: str
    again: bool


def find_ranks(
    dumps: Sequence[tuple[str, Mapping[str, Any]]], rank_of_pid: Mapping[int, int]
) -> tuple[list[RankProcess], list[str]]:
    """Sort processes into ranks and helpers; also return notes on what was left out or could not be told."""
    notes: list[str] = []
    seen = [_see(name, process) for name, dump in dumps for process in dump["processes"]]
    ranks_in_file: dict[str, int] = {}
    for each in seen:
        if each.role == "rank":
            ranks_in_file[each.artefact] = ranks_in_file.get(each.artefact, 0) + 1
    ranked = [
        (each, *_rank_of(each, rank_of_pid, alone=ranks_in_file[each.artefact] == 1))
        for each in seen
        if each.role == "rank"
    ]
    # A local rank is the rank only where no second process has it, as on a second node.
    claims: dict[int, set[object]] = {}
    for each, rank, local in ranked:
        if local and rank is not None:
            claims.setdefault(rank, set()).add((each.folder, each.pid))
    by_key: dict[tuple[object, ...], list[tuple[int | None, _Seen]]] = {}
    for index, (each, rank, local) in enumerate(ranked):
        if local and rank is not None and len(claims[rank]) > 1:
            rank = None
        key = (
            ("rank", rank) if rank is not None else ("pid", each.folder, each.pid) if each.pid is not None else (index,)
        )
        by_key.setdefault(key, []).append((rank, each))
    found: list[RankProcess] = []
    for members in by_key.values():
        rank = members[0][0]
        pids = {each.pid for _, each in members if each.pid is not None}
        if len(pids) > 1:
            last = next(each.pid for _, each in reversed(members) if each.pid is not None)
            notes.append(f"{len(pids)} processes are said to be rank {rank}; the one of pid {last} was taken")
            members = [(r, each) for r, each in members if each.pid == last]
        found.append(_choose(rank, [each for _, each in members]))
    found.sort(key=lambda each: (each.rank is None, each.rank or 0, each.pid or 0))
    _give_helpers(seen, found, ranks_in_file, notes)
    return found, notes


def _choose(rank: int | None, dumps: Sequence[_Seen]) -> RankProcess:
    """Of all dumps of one process the one that says most, and a second look."""
    first = [each for each in dumps if not each.again] or dumps
    best = max(first, key=lambda each: _weight(each.process))
    second = [each for each in dumps if each.again and each.process["threads"] and each is not best]
    artefact, process = best.artefact, best.process
    stopped = next((each for each in first if _is_stopped(each.process)), None)
    if stopped is not None:
        artefact, process = stopped.artefact, {**process, "refused": stopped.process["refused"]}
    return RankProcess(
        rank,
        next((each.pid for each in dumps if each.pid is not None), None),
        identity_of(artefact).host,
        artefact,
        process,
        again=(second[-1].artefact, second[-1].process) if second else None,
    )


def _is_stopped(process: Mapping[str, Any]) -> bool:
    refused: Mapping[str, Any] | None = process.get("refused")
    return refused is not None and refused["state"] == "stopped"


def _see(name: str, process: Mapping[str, Any]) -> _Seen:
    pid: int | None = process["pid"]
    if pid is None:
        pid = identity_of(name).pid
    role, parent = _role_of(process), process["parent"]
    if child := _CHILD_IN_NAME.search(name.rpartition("/")[2]):
        # Whoever named the file so knew that the rank is its parent.
        parent, pid = identity_of(name).pid, int(child[1])
        role = "helper" if role == "rank" else role
    folder = name.rpartition("/")[0]
    return _Seen(name, process, _folder(name), pid, parent, role, bool(_SECOND_LOOK.search(folder)))


def _role_of(process: Mapping[str, Any]) -> str:
    main = next((thread for thread in process["threads"] if thread["main"]), None)
    frames: Sequence[Mapping[str, Any]] = main["frames"] if main else ()
    for frame in frames:
        if frame["native"]:
            continue
        file, function = str(frame["file"]), str(frame["function"]).rpartition(".")[2]
        for part, pattern, role in _MARKS:
            if part in file and pattern.search(function):
                return role
    return "helper" if _HELPER_COMMAND.search(process["command"] or "") else "rank"


def _rank_of(seen: _Seen, rank_of_pid: Mapping[int, int], *, alone: bool) -> tuple[int | None, bool]:
    """The rank of a process, and whether it is only a local rank off its command line."""
    if (told := seen.process.get("rank")) is not None:
        return told, False
    if seen.pid is not None and seen.pid in rank_of_pid:
        return rank_of_pid[seen.pid], False
    # A name can speak of one process only.
    if alone and (by_name := identity_of(seen.artefact).rank) is not None:
        return by_name, False
    command = seen.process["command"] or ""
    if hint := _RANK_IN_COMMAND.search(command):
        return int(hint[1]), False
    hint = _LOCAL_RANK_IN_COMMAND.search(command)
    return (int(hint[1]), True) if hint else (None, False)


def _weight(process: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """How much a dump says: native frames first, then JSON, then the number of frames."""
    frames = [frame for thread in process["threads"] for frame in thread["frames"]]
    native = any(frame["native"] and frame["file"] for frame in frames)
    structured = bool(frames) and str(frames[0]["where"]).startswith("/")
    return native, structured, len(frames)


def _give_helpers(
    seen: Sequence[_Seen], found: Sequence[RankProcess], ranks_in_file: Mapping[str, int], notes: list[str]
) -> None:
    by_pid = {(_folder(each.artefact), each.pid): each for each in found if each.pid is not None}
    by_rank: dict[int | None, RankProcess] = {each.rank: each for each in found if each.rank is not None}
    by_file = {each.artefact: each for each in found if ranks_in_file.get(each.artefact) == 1}
    counts = {"launcher": 0, "helper": 0, "lost worker": 0}
    done: set[tuple[str, object]] = set()
    # Of several dumps of one worker the one that says most is kept.
    for each in sorted(seen, key=lambda each: _weight(each.process), reverse=True):
        if each.role == "rank":
            continue
        identity = (each.folder, each.pid if each.pid is not None else each.artefact)
        if identity in done:
            continue
        done.add(identity)
        if each.role != "dataloader worker":
            counts[each.role] += 1
            owner = by_pid.get((each.folder, each.parent)) if each.role == "helper" and each.parent else None
            if owner is not None and len(owner.children) < MAX_CHILDREN:
                owner.children.append((each.artefact, each.process))
            continue
        owner = (
            (by_pid.get((each.folder, each.parent)) if each.parent is not None else None)
            or by_file.get(each.artefact)
            or by_rank.get(identity_of(each.artefact).rank)
        )
        if owner is None:
            counts["lost worker"] += 1
        else:
            owner.helpers.append((each.artefact, each.process))
    for role, words in (
        ("launcher", "launcher process(es) were left out: they only wait for the ranks"),
        ("helper", "helper process(es) were left out: they are not ranks"),
        (
            "lost worker",
            "DataLoader worker(s) could not be given to a rank: their dumps do not name the parent process",
        ),
    ):
        if counts[role]:
            notes.append(f"{counts[role]} {words}")


def _folder(artefact: str) -> str:
    return _FOLDERS_OF_KIND.sub("", _SECOND_LOOK.sub("", artefact.rpartition("/")[0]))
