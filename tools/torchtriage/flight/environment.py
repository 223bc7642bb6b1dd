"""Will the flight recorder really record? Checks environment variables and says in plain sentences what is off.

Sources of names and defaults: headers and strings of torch 2.13 and 2.14 (ProcessGroupNCCL.hpp, FlightRecorder.hpp);
for earlier releases the pull requests named at the tables. Where it is not known which release changed something, the
sentence says "may", and what it tells to set does no harm in any release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torchtriage.artefacts.clean import clean_text
from torchtriage.flight.prefix import PIPE_NAME, configured_prefix, prefix_faults
from torchtriage.flight.torch_version import release_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Weight = Literal["stops", "may stop", "spoils"]
"""No dump will be written; none may be; dumps will say less than they could, or a name will not last."""

DEFAULT_BUFFER_ENTRIES = 2000
MAX_SENSIBLE_ENTRIES = 200_000
DEFAULT_HEARTBEAT_S = 480
DEFAULT_DUMP_WAIT_MS = 15_000
GROUP_TIMEOUT_S = 600
"""The default time-out of a NCCL process group."""
# What torch takes for a switch (getCvarBool in c10d/Utils.hpp, torch 2.13), in any case; at another word it raises.
_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})

# (name now, older name, releases before this one do not know the new name, from this one on it is known to work).
# Renamed by pytorch #152563 (2025-05) and what followed it.
RENAMED = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", (2, 8), (2, 8)),
    ("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK", (2, 8), (2, 8)),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", (2, 8), (2, 11)),
)
# Until pytorch #172843 (2026-01) the recorder kept 2000 calls by default, but the process group took the size for 0
# and wrote no dump.
BUFFER_DEFAULT_SINCE = (2, 12)
# Off by default until pytorch #143446 (2024-12).
DUMP_ON_TIMEOUT_SINCE = (2, 8)
# (name, default, what comes of it when it is off, in words)
SWITCHES: tuple[tuple[str, bool, Weight, str], ...] = (
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", True, "stops", "no dump is written when a collective times out: set it to 1"),
    ("TORCH_FR_DUMP_ON_TIMEOUT", True, "stops", "no dump is written when a collective times out: set it to 1"),
    ("TORCH_NCCL_ENABLE_MONITORING", True, "stops", "the thread that writes dumps does not run: set it to 1"),
    ("TORCH_INCLUDE_STACK_TRACE", True, "spoils", "dumps will not say where in the code a call was made: set it to 1"),
)
_SWITCH_NAMES = (
    *(name for name, *_ in SWITCHES),
    "TORCH_INCLUDE_ONLY_ACTIVE",
    "TORCH_FR_DUMP_DYNAMIC_FILE_NAME",
    "TORCH_NCCL_ENABLE_TIMING",
)
# (name, default, least sensible value, unit, why)
NUMBERS = (
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", DEFAULT_HEARTBEAT_S, 30, "s",
     "the process may be ended before its dump is written"),
    ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", DEFAULT_DUMP_WAIT_MS, 1000, "ms",
     "a dump may not be finished in that time"),
)  # fmt: skip
_ASYNC_ERROR_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_RECORDERS_OWN = (
    "TORCH_FR_",
    "TORCH_NCCL_TRACE",
    "TORCH_NCCL_DUMP",
    "TORCH_NCCL_DEBUG_INFO",
    "TORCH_NCCL_ENABLE_TIMING",
)


@dataclass(frozen=True)
class Fault:
    """One thing that is off."""

    weight: Weight
    sentence: str


@dataclass(frozen=True)
class Checked:
    """What is to be expected of a flight recorder."""

    faults: tuple[Fault, ...]
    remarks: tuple[str, ...]
    known: bool = True
    """False where nothing can be expected, as the process is not known to train."""

    @property
    def dumps(self) -> bool | None:
        """Whether it will record and dump; None when that cannot be told."""
        weights = {fault.weight for fault in self.faults}
        if "stops" in weights and self.known:
            return False
        return None if "may stop" in weights or not self.known else True

    @property
    def sentences(self) -> list[str]:
        """First what stops or spoils dumps, each with what to set; then remarks. Never empty."""
        faults = [fault.sentence for fault in self.faults]
        fine = [
            f"Nothing in the environment stops the flight recorder; it records {DEFAULT_BUFFER_ENTRIES} calls by "
            "default."
        ]
        return [*(faults or (fine if self.known else [])), *self.remarks]


def check_environment(
    environment: Mapping[str, str],
    torch_version: str | None = None,
    *,
    uid: int | None = None,
    root: Path | None = None,
    backend: str | None = None,
) -> Checked:
    """What the flight recorder would do under these variables.

    Args:
        environment: the job's variables.
        torch_version: of the job's torch ("2.13.0+cu130"); None when it is not known: then what 2.13 does is said.
        uid: the user that the job runs as; None is this process's own.
        root: the folder that is "/" to the job, when it is not this process's own.
        backend: "gloo" when the job has no other.

    Returns:
        First what stops or spoils dumps, each with what to set; then remarks, which begin with "Remark:".
    """
    release = release_of(torch_version)
    faults = [*_names(environment, release), *_buffer(environment, release)]
    for prefix in (configured_prefix(environment), (PIPE_NAME, environment.get(PIPE_NAME) or "")):
        if prefix is not None and prefix[1]:
            # Where the prefix names a folder, files land beside or in it.
            faults += [
                Fault("spoils" if "names a folder" in said else "stops", said)
                for said in prefix_faults(*prefix, uid=uid, root=root)
            ]
    faults += [*_switches(environment, release), *_numbers(environment)]
    if backend == "gloo":
        said = (
            "The job uses gloo, where no watchdog writes dumps: the program itself must write "
            "torch._C._distributed_c10d._dump_fr_trace_json() to a file when it hangs."
        )
        faults.append(Fault("stops", said))
    return Checked(tuple(faults), tuple(_remarks(environment)))


def _names(environment: Mapping[str, str], release: tuple[int, int] | None) -> list[Fault]:
    faults: list[Fault] = []
    for new, old, unknown_before, known_from in RENAMED:
        if new in environment and old in environment:
            if environment[new] != environment[old]:
                said = f"{old} is the older name and {new} is set too, to another value: give both the same."
                faults.append(Fault("spoils", said))
        elif new in environment and release is not None and release < known_from:
            says = "does not know" if release < unknown_before else "may not know"
            said = f"torch {_dotted(release)} {says} {new}: set {old} to the same value too."
            # Without a size those releases may keep nothing.
            faults.append(Fault("may stop" if new == RENAMED[0][0] else "spoils", said))
        elif old in environment and (release is None or release >= known_from):
            faults.append(Fault("spoils", f"{old} is the older name; use {new} with newer torch."))
    return faults


def _buffer(environment: Mapping[str, str], release: tuple[int, int] | None) -> list[Fault]:
    new, old = RENAMED[0][:2]
    name = next((name for name in (new, old) if name in environment), None)
    if name is None:
        if release is not None and release < BUFFER_DEFAULT_SINCE:
            said = f"torch {_dotted(release)} may write no dump by default: set {old}={DEFAULT_BUFFER_ENTRIES}."
            return [Fault("may stop", said)]
        return []
    value = environment[name]
    entries = _number(value)
    if entries is None:
        said = (
            f"{name} is not a number ({_shown(value)}): it is a count of entries, {DEFAULT_BUFFER_ENTRIES} by default."
        )
        return [Fault("may stop", said)]
    if entries <= 0:
        said = f"{name} is {entries}: the flight recorder is off. Set it to {DEFAULT_BUFFER_ENTRIES}."
        return [Fault("stops", said)]
    if entries > MAX_SENSIBLE_ENTRIES:
        said = (
            f"{name} is {entries}: it counts entries, not bytes, so this asks for {entries} calls to be kept and "
            f"dumped. {DEFAULT_BUFFER_ENTRIES} to 20000 is usual."
        )
        return [Fault("spoils", said)]
    if entries < 100:
        said = (
            f"{name} is {entries}: the calls that led to a hang may be overwritten; {DEFAULT_BUFFER_ENTRIES} is usual."
        )
        return [Fault("spoils", said)]
    return []


def _switches(environment: Mapping[str, str], release: tuple[int, int] | None) -> list[Fault]:
    faults = [
        Fault(weight, f"{name} is off: {consequence}.")
        for name, default, weight, consequence in SWITCHES
        if name in environment and not _switch(environment[name], default)
    ]
    faults += [
        Fault(
            "stops",
            f"{name} is neither on nor off ({_shown(environment[name])}): torch raises an error at it; give 1 or 0.",
        )
        for name in _SWITCH_NAMES
        if name in environment and environment[name].lower() not in _TRUE | _FALSE
    ]
    if release is not None and release < DUMP_ON_TIMEOUT_SINCE and "TORCH_NCCL_DUMP_ON_TIMEOUT" not in environment:
        said = (
            f"torch {_dotted(release)} may write no dump when a collective times out: set TORCH_NCCL_DUMP_ON_TIMEOUT=1."
        )
        faults.append(Fault("may stop", said))
    if _switch(environment.get("TORCH_INCLUDE_ONLY_ACTIVE", "0"), False):
        said = (
            "TORCH_INCLUDE_ONLY_ACTIVE is on: dumps hold no finished calls, so ranks cannot be aligned by their past; "
            "set it to 0."
        )
        faults.append(Fault("spoils", said))
    name = next((name for name in _ASYNC_ERROR_HANDLING if name in environment), None)
    if name is not None and _number(environment[name]) == 0:
        said = f"{name} is 0: the watchdog does not end a job that hangs; leave it unset (3 is the default)."
        faults.append(Fault("spoils", said))
    return faults


def _numbers(environment: Mapping[str, str]) -> list[Fault]:
    faults: list[Fault] = []
    values: list[int] = []
    for name, default, least, unit, why in NUMBERS:
        text = environment.get(name)
        number = default if text is None else _number(text)
        values.append(default if number is None else number)
        if number is None:
            shown = _shown(text or "")
            said = f"{name} is not a number ({shown}); torch refuses it (default {default} {unit})."
            faults.append(Fault("stops", said))
        elif number < least:
            faults.append(Fault("may stop", f"{name} is {number} {unit} (default {default} {unit}): {why}."))
    # The monitor ends a process whose watchdog stands still, and one that writes a dump stands still.
    heartbeat_s, wait_ms = values
    if heartbeat_s * 1000 < wait_ms:
        heartbeat, wait = NUMBERS[0][0], NUMBERS[1][0]
        said = (
            f"{heartbeat} ({heartbeat_s} s) is shorter than {wait} ({wait_ms} ms): the process may be ended while its "
            f"dump is written; set {heartbeat} to {max(DEFAULT_HEARTBEAT_S, 4 * wait_ms // 1000)}."
        )
        faults.append(Fault("may stop", said))
    return faults


def _remarks(environment: Mapping[str, str]) -> list[str]:
    remarks: list[str] = []
    heartbeat = NUMBERS[0][0]
    seconds = _number(environment.get(heartbeat, ""))
    if seconds is not None and NUMBERS[0][2] <= seconds < DEFAULT_HEARTBEAT_S:
        remarks.append(
            f"Remark: {heartbeat} is {seconds} s, less than a NCCL group's time-out ({GROUP_TIMEOUT_S} s by default): "
            "a process whose watchdog is stuck is ended before the time-out of its call is reported."
        )
    if _switch(environment.get("TORCH_FR_DUMP_DYNAMIC_FILE_NAME", "0"), False):
        remarks.append(
            "Remark: TORCH_FR_DUMP_DYNAMIC_FILE_NAME is on: the prefix is read anew at each dump, so what the program "
            "sets later counts, not what is seen here."
        )
    configured = any(name.startswith(_RECORDERS_OWN) for name in environment)
    if configured and not _switch(environment.get("TORCH_NCCL_ENABLE_TIMING", "0"), False):
        remarks.append(
            "Remark: TORCH_NCCL_ENABLE_TIMING is off, as by default: dumps do not tell calls that run on the GPU from "
            "calls that wait to; set it to 1 for that, at some cost."
        )
    return remarks


def _switch(value: str, default: bool) -> bool:
    word = value.lower()
    return True if word in _TRUE else False if word in _FALSE else default


def _number(value: str) -> int | None:
    word = value.strip()
    digits = word[1:] if word[:1] in "+-" else word
    return int(word) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"


def _shown(value: str) -> str:
    return repr(clean_text(value, 120))
