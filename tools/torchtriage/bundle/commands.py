"""What a command line says a process is: a Python program, a launcher of ranks, a helper of one, a spawned child.

Command lines can be anything; what is not known here is nothing special.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Programs (script, module or executable) that start ranks and wait for them; with the word that must follow, if any.
LAUNCHERS: dict[str, str] = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch", "torchx"), ""),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "orted", "prte", "prted", "prterun"), ""),
    **dict.fromkeys(("hydra_pmi_proxy", "hydra_bstrap_proxy", "mpispawn", "palsd", "jsrun", "flux-shell"), ""),
    **dict.fromkeys(("srun", "slurmstepd", "slurmstepd:"), ""),
    **dict.fromkeys(("deepspeed", "ds", "deepspeed.launcher.launch", "deepspeed.launcher.runner", "pdsh"), ""),
    **dict.fromkeys(("accelerate-launch", "accelerate.commands.launch", "horovodrun", "raylet"), ""),
    **dict.fromkeys(("accelerate", "accelerate.commands.accelerate_cli"), "launch"),
    # wrappers that are Python programs themselves
    **dict.fromkeys(("conda", "mamba", "tune"), "run"),
}
_PYTHON = re.compile(r"^(?:python|pypy)[\d.]{0,8}t?d?$|^python\d{0,2}[.\w\-]{0,16}$")
# Names that torch and others give to the main thread of a Python process.
_PYTHON_NAMES = ("python", "pypy", "pt_main_thread", "pt_data_worker", "pt_elastic", "ray::", "VLLM::", "sglang::")
_OPTIONS_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})
SPAWNED = "from multiprocessing.spawn import spawn_main"
FORK_SERVER = "from multiprocessing.forkserver import main"
HELPER = re.compile(
    r"multiprocessing\.resource_tracker|multiprocessing\.forkserver|multiprocessing\.semaphore_tracker"
    r"|torch[./]_inductor[./]compile_worker|loky\.backend\.resource_tracker"
)
_LOCAL_RANK = re.compile(r"^--local[-_]rank(?:=(\d{1,7}))?$")
MAX_PROGRAM_CHARS = 200


def program_of(command: Sequence[str]) -> str:
    """The name of what runs: the script or module of a Python interpreter, else the executable; no folders."""
    if not command:
        return ""
    first = _base(command[0])
    if not _PYTHON.match(first):
        return first
    arguments = iter(command[1:])
    for argument in arguments:
        if argument in ("-m", "-c"):
            return next(arguments, "")[:MAX_PROGRAM_CHARS]
        if argument.startswith(("-m", "-c")):
            return argument[2:][:MAX_PROGRAM_CHARS]
        if argument in _OPTIONS_WITH_VALUE:
            next(arguments, None)
        elif not argument.startswith("-"):
            return _base(argument)
    return first


def launcher_of(command: Sequence[str]) -> str | None:
    """The launcher's name, if it is one."""
    program = program_of(command)
    follows = LAUNCHERS.get(program)
    if follows is None and program.startswith("slurmstepd"):
        return "slurmstepd"
    if follows is None or (follows and follows not in command):
        return None
    return program.rstrip(":")


def is_python(command: Sequence[str], name: str) -> bool:
    """Whether it is a Python process, as far as its command line and the name of its main thread tell."""
    return bool(command and _PYTHON.match(_base(command[0]))) or name.startswith(_PYTHON_NAMES)


def is_spawned(command: Sequence[str]) -> bool:
    """Whether multiprocessing's "spawn" method started it."""
    return any(SPAWNED in argument for argument in command[1:8])


def is_helper(command: Sequence[str]) -> bool:
    """Whether it is one of the processes that Python and torch keep for themselves."""
    return any(HELPER.search(argument[:512]) for argument in command[1:8])


def is_served(command: Sequence[str], parent: Sequence[str]) -> bool:
    """Whether multiprocessing's fork server made it; it keeps the server's command line."""
    return tuple(command) == tuple(parent) and any(FORK_SERVER in argument for argument in command[1:8])


def local_rank_of(command: Sequence[str]) -> int | None:
    """The local rank on the command line, as older launchers give it."""
    for argument, following in zip(command, (*command[1:], ""), strict=True):
        if found := _LOCAL_RANK.match(argument):
            value = found[1] or following
            return int(value) if value.isascii() and value.isdigit() and len(value) <= 7 else None
    return None


def _base(path: str) -> str:
    words = path.split(" ", 1)[0] if path.startswith(("slurmstepd", "ray::")) else path
    return words.rpartition("/")[2][:MAX_PROGRAM_CHARS]
