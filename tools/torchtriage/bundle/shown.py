"""What of a process may be shown: the allow-listed part of its environment and its command line, masked and bounded."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import MASK, clean_text
from torchtriage.bundle import environment, proc_files
from torchtriage.bundle.process_table import MAX_ENVIRON_BYTES

if TYPE_CHECKING:
    from torchtriage.bundle.process_table import Entry

MAX_ARGUMENT_CHARS = 256
MAX_ARGUMENTS = 64
_OPTION_CHARS = 128
_BLANKS = re.compile(r"\s{1,1024}")
_VALUE_MASKED = re.compile(rf"(?:--?[\w.\-]{{1,128}}=)?['\"]?{re.escape(MASK)}")


def uid_of(root: str, pid: int) -> int:
    """Who started a process; -1 when it is gone."""
    ids = proc_files.ids_of(root, pid)
    return ids.uid if ids is not None else -1


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
    option = before if before.startswith("-") and " " not in before and len(before) <= _OPTION_CHARS else ""
    # One argument is one value: where it is a secret, what follows a blank or a line end in it is part of that.
    whole = _VALUE_MASKED.match(_after_option(option, _BLANKS.sub("_", argument)))
    return whole[0] if whole is not None else clean_text(_after_option(option, argument), MAX_ARGUMENT_CHARS)


def _after_option(option: str, argument: str) -> str:
    """The argument, masked as what follows that option."""
    if not option:
        return clean_text(argument, MAX_ARGUMENT_CHARS)
    return clean_text(f"{option} {argument}", MAX_ARGUMENT_CHARS + _OPTION_CHARS).partition(" ")[2]
