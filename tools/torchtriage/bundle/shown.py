"""What of a process may be shown: the allow-listed part of its environment and its command line, masked and bounded."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle import environment, proc_files
from torchtriage.bundle.process_table import MAX_ENVIRON_BYTES

if TYPE_CHECKING:
    from torchtriage.bundle.process_table import Entry

MAX_ARGUMENT_CHARS = 256
MAX_ARGUMENTS = 64
_OPTION_CHARS = 128


def uid_of(root: str, pid: int) -> int:
    """Who owns a process; -1 when it is gone."""
    try:
        return Path(root, str(pid)).stat().st_uid
    except OSError:
        return -1


def environment_of(root: str, entry: Entry) -> dict[str, str]:
    """The variables that may be shown; none when they cannot be read."""
    if entry.variables is None:
        return {}
    if entry.variables:
        return environment.allowed(entry.variables)
    return environment.allowed(
        environment.parse(proc_files.read(f"{root}/{entry.pid}/environ", MAX_ENVIRON_BYTES) or b"")
    )


# A rank's DataLoader workers all have its command line.
@lru_cache(maxsize=1024)
def command_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command line; an argument may be a secret because of the option before it."""
    arguments = command[:MAX_ARGUMENTS]
    return tuple(_masked(before, argument) for before, argument in zip(("", *arguments), arguments, strict=False))


def _masked(before: str, argument: str) -> str:
    argument = argument[: MAX_ARGUMENT_CHARS * 4]
    if before.startswith("-") and " " not in before and len(before) <= _OPTION_CHARS:
        argument = clean_text(f"{before} {argument}", MAX_ARGUMENT_CHARS + _OPTION_CHARS).partition(" ")[2]
    return clean_text(argument, MAX_ARGUMENT_CHARS)
