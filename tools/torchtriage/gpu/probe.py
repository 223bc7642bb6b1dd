"""Asks nvidia-smi for the state of this node's GPUs and keeps its answers as they are printed. It judges nothing.

Utilisation beside power tells a spinning communication kernel (busy at little power) from work; clocks and throttle
reasons, ECC and links tell a sick card. A driver in trouble lets nvidia-smi hang for ever (NVIDIA
open-gpu-kernel-modules #971), so every question has a time limit, and after one that hangs no other is asked: each
would stay behind in the kernel.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text, mask_secrets
from torchtriage.bundle.files import path_in_bundle, write_new
from torchtriage.bundle.manifest import Item
from torchtriage.bundle.programs import run_program

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from torchtriage.bundle.programs import Ran

KIND = "nvidia_smi"
_AT_ONCE = 3
# (asked for, tried when this driver does not know it: names changed with R535, which calls throttling an event)
_GPU_FIELDS: tuple[tuple[str, str | None], ...] = (
    ("timestamp", None),
    ("index", None),
    ("name", None),
    ("uuid", None),
    ("pci.bus_id", None),
    ("driver_version", None),
    ("pstate", None),
    ("persistence_mode", None),
    ("utilization.gpu", None),
    ("utilization.memory", None),
    ("power.draw", None),
    ("power.limit", None),
    ("temperature.gpu", None),
    ("temperature.memory", None),
    ("clocks.sm", None),
    ("clocks.max.sm", None),
    ("clocks.mem", None),
    ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    ("memory.used", None),
    ("memory.total", None),
    ("ecc.mode.current", None),
    ("ecc.errors.uncorrected.volatile.total", None),
    ("ecc.errors.corrected.volatile.total", None),
    ("mig.mode.current", None),
)
_APP_FIELDS = "timestamp,gpu_name,gpu_uuid,pid,process_name,used_memory"
_UNKNOWN_FIELD = re.compile(r'Field "([\w.]{1,80})" is not a valid field')
_MAX_RETRIES = 6
_NO_DRIVER = re.compile(
    r"(?i)couldn't communicate with the NVIDIA driver|failed to initialize NVML|No devices were found"
)
# nvidia-smi's exit codes (its manual page, "RETURN VALUE").
_EXIT_REASONS = {
    2: "this driver does not know that question",
    3: "the operation is not available on this device",
    4: "this user may not ask that: run the collector as root or in the job's container",
    6: "no device answered: the card may have fallen off the bus; look for Xid lines in the kernel log",
    8: "a card lacks external power",
    9: "the NVIDIA driver is not loaded: see `lsmod | grep nvidia` and the kernel log",
    10: "the kernel found an interrupt problem with a GPU: see the kernel log",
    12: "the NVML library is missing: the driver's user part is not installed here, or not mounted into this container",
    14: "the infoROM of a card is corrupted",
    15: "the GPU has fallen off the bus or is otherwise not reachable: look for Xid 79 in the kernel log",
}  # fmt: skip


@dataclass(frozen=True)
class _Question:
    file: str
    arguments: tuple[str, ...]


_QUESTIONS = (
    _Question("compute-apps.csv", (f"--query-compute-apps={_APP_FIELDS}", "--format=csv")),
    _Question("nvidia-smi-q.xml", ("-q", "-x")),
    _Question("nvlink-s.txt", ("nvlink", "-s")),
    _Question("nvlink-e.txt", ("nvlink", "-e")),
    _Question("topo-m.txt", ("topo", "-m")),
)


def probe_gpus(
    folder: Path,
    *,
    host: str,
    timeout_s: float = 10.0,
    driver: Path = Path("/proc/driver/nvidia"),
    cancelled: threading.Event | None = None,
) -> list[Item]:
    """Write what nvidia-smi says of this node's GPUs below ``folder/gpu/``.

    Args:
        folder: this host's folder in the bundle.
        host: its name, for the manifest.
        timeout_s: limit of each question; the answers of a healthy node take well under a second each.
        driver: what the kernel shows while the NVIDIA driver is loaded.
        cancelled: set by another thread to end the questions before their time.

    Returns:
        An item for each question; one alone when the first got no answer. Without nvidia-smi there is one too: ``ok``
        with no path where there is no driver either (nothing to collect), not ``ok`` where there is one.
    """
    first = _ask_gpus(folder, host, timeout_s, cancelled)
    if first.missing:
        return [_no_program(host, there_is_a_driver=driver.exists())]
    if first.timed_out:
        return [_alone(first.item)]
    if first.no_driver:
        return [first.item]
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        asked = [pool.submit(_ask, question, folder, host, timeout_s, cancelled) for question in _QUESTIONS]
    return [first.item, *(answer.result() for answer in asked)]


def ask(file: str, arguments: Sequence[str], folder: Path, *, host: str, timeout_s: float = 10.0) -> Item:
    """Put one more question to nvidia-smi and keep its answer as ``folder/gpu/FILE``."""
    return _ask(_Question(file, tuple(arguments)), folder, host, timeout_s, None)


@dataclass(frozen=True)
class _First:
    """How the first question went, which decides about the others."""

    item: Item
    missing: bool
    timed_out: bool
    no_driver: bool


def _ask_gpus(folder: Path, host: str, timeout_s: float, cancelled: threading.Event | None) -> _First:
    fields = list(_GPU_FIELDS)
    question, ran = _gpu_answer(fields, timeout_s, cancelled)
    for _ in range(_MAX_RETRIES):
        unknown = _UNKNOWN_FIELD.search(_said(ran))
        at = next((i for i, (name, _) in enumerate(fields) if unknown and name == unknown[1]), None)
        if ran.code in (0, None) or at is None:
            break
        other = fields[at][1]
        fields[at : at + 1] = [] if other is None else [(other, None)]
        question, ran = _gpu_answer(fields, timeout_s, cancelled)
    item = _item(question, ran, folder, host)
    no_driver = not item.ok and (ran.code == 9 or _NO_DRIVER.search(_said(ran)) is not None)
    return _First(item, ran.missing, ran.timed_out, no_driver)


def _gpu_answer(
    fields: Sequence[tuple[str, str | None]], timeout_s: float, cancelled: threading.Event | None
) -> tuple[_Question, Ran]:
    names = ",".join(name for name, _ in fields)
    question = _Question("query-gpu.csv", (f"--query-gpu={names}", "--format=csv"))
    return question, run_program(_command(question), timeout_s=timeout_s, cancelled=cancelled)


def _said(ran: Ran) -> str:
    return ran.output[:4096].decode("utf-8", errors="replace") + ran.error


def _command(question: _Question) -> list[str]:
    return ["nvidia-smi", *question.arguments]


def _ask(question: _Question, folder: Path, host: str, timeout_s: float, cancelled: threading.Event | None) -> Item:
    return _item(question, run_program(_command(question), timeout_s=timeout_s, cancelled=cancelled), folder, host)


def _item(question: _Question, ran: Ran, folder: Path, host: str) -> Item:
    """Keep what was printed, also with a failure: the text of a refusal says what is wrong."""
    name = f"gpu/{question.file}"
    text = ran.output.decode("utf-8", errors="replace").replace("\0", "")
    kept = ""
    error, reason = _failure(ran, text)
    if text.strip():
        masked = "\n".join(mask_secrets(line) for line in text.split("\n"))
        try:
            write_new(folder / name, masked.encode("utf-8", errors="replace"))
            kept = path_in_bundle(folder, name)
        except OSError as problem:
            error, reason = clean_text(str(problem)), "the answer could not be written to the bundle"
    return Item(
        path=kept, kind=KIND, host=host, command=_command(question), ok=error is None, error=error, reason=reason,
        redacted=bool(kept),
    )  # fmt: skip


def _failure(ran: Ran, text: str) -> tuple[str | None, str | None]:
    if ran.cancelled:
        return "nvidia-smi was ended before it had answered", "the collector was stopped; this says nothing of the GPUs"
    if ran.unkillable:
        return (
            "nvidia-smi does not answer and could not be killed",
            "this itself is a finding: it waits inside the driver (state D), as a GPU or the driver does not answer; "
            "look for Xid lines in the kernel log and drain the node",
        )
    if ran.timed_out:
        return (
            "nvidia-smi did not answer in time",
            "this itself is a finding: the driver or a GPU does not answer; look for Xid lines in the kernel log",
        )
    if ran.cut:
        return "the answer is too long", "only its beginning was kept"
    if ran.code is None:
        return ran.error or "nvidia-smi could not be run", "see whether it can be run by hand"
    said = clean_text(ran.error or text.strip().split("\n", 1)[0])
    if ran.code < 0:
        return f"nvidia-smi was ended by signal {-ran.code}: {said}", "try it by hand"
    if ran.code > 0:
        reason = _EXIT_REASONS.get(ran.code, "nvidia-smi failed: try the command by hand")
        return f"exit code {ran.code}: {said}", reason
    if not text.strip():
        return "nvidia-smi said nothing", ran.error or "try the command by hand"
    return None, None


def _alone(item: Item) -> Item:
    """The first question's item, which also says that no other was asked: one refusal is said once."""
    more = f"the other {len(_QUESTIONS)} questions were not asked, as each would leave another stuck process"
    return item.model_copy(update={"reason": f"{item.reason}; {more}"})


def _no_program(host: str, *, there_is_a_driver: bool) -> Item:
    command = ["nvidia-smi"]
    if there_is_a_driver:
        return Item(
            path="", kind=KIND, host=host, command=command, ok=False, error="nvidia-smi: not found",
            reason="the NVIDIA driver is loaded but nvidia-smi is not on PATH: put its folder on PATH, or start the "
            "container with the driver's utilities (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
            redacted=False,
        )  # fmt: skip
    return Item(
        path="", kind=KIND, host=host, command=command, ok=True,
        reason="there is no NVIDIA driver here, so there was nothing to ask", redacted=False,
    )  # fmt: skip
