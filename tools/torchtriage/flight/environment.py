"""Will the flight recorder really record? Checks environment variables and says in plain sentences what is off.

Source of names and defaults: torch 2.13 and 2.14 headers (ProcessGroupNCCL.hpp, FlightRecorder.hpp).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFAULT_BUFFER_ENTRIES = 2000
MAX_SENSIBLE_ENTRIES = 200_000
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off", ""})

# (name now, older name that still works with a warning)
RENAMED = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
# (name, default, what it means when it is off)
SWITCHES = (
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", True, "no dump is written when a collective times out: set it to 1"),
    ("TORCH_NCCL_ENABLE_MONITORING", True, "the thread that writes dumps does not run: set it to 1"),
    ("TORCH_INCLUDE_STACK_TRACE", True, "dumps will not say where in the code a call was made: set it to 1"),
)
# (name, default, least sensible value, unit, why)
NUMBERS = (
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 480, 30, "s", "the process may be ended before its dump is written"),
    ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", 15_000, 1000, "ms", "a dump may not be finished in that time"),
)


def check_environment(environment: Mapping[str, str]) -> list[str]:
    """Sentences about what the flight recorder would do under these variables; never empty."""
    sentences = [*_buffer(environment), *_prefix(environment)]
    for name, default, consequence in SWITCHES:
        if name in environment and not _switch(environment[name], default):
            sentences.append(f"{name} is off: {consequence}.")
    if _switch(environment.get("TORCH_INCLUDE_ONLY_ACTIVE", "0"), False):
        sentences.append(
            "TORCH_INCLUDE_ONLY_ACTIVE is on: dumps hold no finished calls, so ranks cannot be aligned by their past."
        )
    for name, default, least, unit, why in NUMBERS:
        value = environment.get(name)
        number = None if value is None else _number(value)
        if value is not None and number is None:
            sentences.append(f"{name} is not a number ({_shown(value)}); torch refuses it (default {default} {unit}).")
        elif number is not None and number < least:
            sentences.append(f"{name} is {number} {unit} (default {default} {unit}): {why}.")
    for new, old in RENAMED:
        if old in environment:
            other = f" and {new} is set too: that one counts" if new in environment else f"; use {new} with newer torch"
            sentences.append(f"{old} is the older name{other}.")
    return sentences or ["Nothing in the environment stops the flight recorder; it records 2000 calls by default."]


def _first(environment: Mapping[str, str], names: tuple[str, str]) -> tuple[str, str] | None:
    return next(((name, environment[name]) for name in names if name in environment), None)


def _buffer(environment: Mapping[str, str]) -> list[str]:
    found = _first(environment, RENAMED[0])
    if found is None:
        return []
    name, value = found
    entries = _number(value)
    if entries is None:
        return [
            f"{name} is not a number ({_shown(value)}): it is a count of entries, {DEFAULT_BUFFER_ENTRIES} by default."
        ]
    if entries <= 0:
        return [f"{name} is {entries}: the flight recorder is off. Set it to {DEFAULT_BUFFER_ENTRIES}."]
    if entries > MAX_SENSIBLE_ENTRIES:
        return [
            f"{name} is {entries}: it counts entries, not bytes, so this asks for {entries} calls to be kept and "
            f"dumped. {DEFAULT_BUFFER_ENTRIES} to 20000 is usual."
        ]
    if entries < 100:
        return [
            f"{name} is {entries}: the calls that led to a hang may be overwritten; {DEFAULT_BUFFER_ENTRIES} is usual."
        ]
    return []


def _prefix(environment: Mapping[str, str]) -> list[str]:
    """The dump goes to prefix + global rank, so the prefix must not be a folder and its folder must be writable."""
    found = _first(environment, RENAMED[2])
    if found is None:
        return []
    name, value = found
    path = Path(value)
    if value.endswith("/") or _quietly(path.is_dir):
        return [
            f"{name} names a folder ({_shown(value)}): the rank number is appended to it, so give a file prefix in it."
        ]
    folder = path.parent
    if not _quietly(folder.is_dir):
        return [
            f"The folder of {name} ({_shown(str(folder))}) does not exist on this host: no dump can be written there."
        ]
    if not os.access(folder, os.W_OK | os.X_OK):
        return [f"The folder of {name} ({_shown(str(folder))}) is not writable: no dump can be written there."]
    return []


def _quietly(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except (OSError, ValueError):
        return False


def _switch(value: str, default: bool) -> bool:
    word = value.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else default


def _number(value: str) -> int | None:
    word = value.strip()
    digits = word[1:] if word[:1] in "+-" else word
    return int(word) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None


def _shown(value: str) -> str:
    return repr(clean_text(value, 120))
