"""Look at everything of one job on this node and write it into a bundle: a function of one node that returns items.

What dies first is looked at first: stacks and states of the processes, then NCCL RAS, the flight recorder, the GPUs and
the kernel log beside each other, then the processes once more. A probe that fails leaves its reason in the manifest.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.files import is_full
from torchtriage.bundle.job_logs import copy_logs
from torchtriage.bundle.manifest import Item
from torchtriage.bundle.proc_facts import write_facts
from torchtriage.bundle.versions import Versions, versions_of
from torchtriage.flight.probe import probe_flight
from torchtriage.gpu.kernel import probe_kernel
from torchtriage.gpu.probe import probe_gpus
from torchtriage.ras.probe import probe_ras
from torchtriage.stacks.probe import dump_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torchtriage.bundle.processes import JobProcess

AGAIN_AFTER_S = 3.0
"""Between the two looks: long enough for a rank that works to be seen elsewhere."""
ENDING_S = 2.5
"""After an interrupt: how long probes have to bring home what they have."""


@dataclass(frozen=True)
class Limits:
    """How long to wait for whom, in seconds."""

    attach_s: float = 10.0
    again_after_s: float = AGAIN_AFTER_S
    flight_s: float = 8.0
    ras_s: float = 8.0
    gpu_s: float = 10.0
    kernel_s: float = 5.0


@dataclass
class Collected:
    """What came of it."""

    items: list[Item] = field(default_factory=list[Item])
    interrupted: bool = False
    versions: Versions = field(default_factory=Versions)


def collect_node(
    processes: Sequence[JobProcess],
    folder: Path,
    *,
    host: str,
    native: bool = True,
    launcher: bool = False,
    force_ras: bool = False,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Collected:
    """Collect from all probes into one host's folder; never raises for what the processes or the node do.

    Args:
        processes: the processes of one job, as ``choose`` gives them.
        folder: this host's folder in the bundle; it exists and is ours.
        host: its name.
        native: with native frames of the ranks.
        launcher: also the stacks and states of launchers; the ends of their logs are taken in any case.
        force_ras: ask NCCL RAS although the version of NCCL cannot be told.
        limits: time limits.
        progress: called with (probes done, probes in all).
    """
    limits = limits or Limits()
    ranks = [process for process in processes if process.role == "rank"]
    looked_at = [process for process in processes if launcher or process.role != "launcher"]
    found = Collected()
    running: set[str] = set()
    n_done = 0
    lock = threading.Lock()
    stop, stop_dumpers = threading.Event(), threading.Event()  # the dumpers' guard sets its own at its end
    all_done = threading.Event()

    def probe(kind: str, work: Callable[[], list[Item]]) -> None:
        nonlocal n_done
        try:
            items = work()
        except Exception as error:  # one probe must not take the others with it
            text = clean_text(f"{type(error).__name__}: {error}")
            fault = "a fault of torchtriage itself; the rest of the bundle is whole"
            if isinstance(error, OSError) and is_full(error):
                text, fault = clean_text(str(error)), "the bundle's folder cannot be written"
            items = [_nothing(kind, host, text, fault)]
        with lock:
            if kind not in running:
                return  # it was given up
            running.remove(kind)
            found.items.extend(items)
            n_done += 1
            if progress is not None:
                with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
                    progress(n_done, len(probes))
            if not running:
                all_done.set()

    def stacks() -> list[Item]:
        return dump_processes(
            looked_at, folder / "stacks", host=host, native=native, timeout_s=limits.attach_s,
            again_after_s=limits.again_after_s, cancelled=stop_dumpers,
        )  # fmt: skip

    def states() -> list[Item]:
        first = write_facts(looked_at, folder / "proc", host=host)
        found.versions = versions_of(ranks)
        if stop.wait(max(0.0, began + limits.again_after_s - time.monotonic())):
            return first
        return [*first, *write_facts(looked_at, folder / "proc" / "again", host=host)]

    probes: dict[str, Callable[[], list[Item]]] = {
        "stack_dump": stacks,
        "proc_facts": states,
        "ras": lambda: probe_ras(ranks, folder, host=host, timeout_s=limits.ras_s, force=force_ras),
        "flight_recorder": lambda: probe_flight(ranks, folder, host=host, timeout_s=limits.flight_s, cancelled=stop),
        "gpu": lambda: probe_gpus(folder, host=host, timeout_s=limits.gpu_s, cancelled=stop),
        "kernel_log": lambda: probe_kernel(folder, host=host, timeout_s=limits.kernel_s, cancelled=stop),
        "log": lambda: copy_logs(processes, folder / "logs", host=host, cancelled=stop),
    }
    began = time.monotonic()
    running.update(probes)
    started: list[str] = []
    given_up: list[str] = []
    try:
        for kind, work in probes.items():
            started.append(kind)
            # Daemons: a probe that is given up must not keep the program from its end.
            threading.Thread(target=probe, args=(kind, work), name=f"probe {kind}", daemon=True).start()
        all_done.wait()
    except KeyboardInterrupt:
        # What is there is kept. Programs that run are ended at once, and attached processes are let go by their guard.
        found.interrupted = True
        stop.set()
        stop_dumpers.set()
        with lock:
            given_up = [kind for kind in probes if kind not in started]
            running.difference_update(given_up)
            if not running:
                all_done.set()
        with contextlib.suppress(KeyboardInterrupt):
            all_done.wait(ENDING_S)
    with lock:
        found.items += [
            _nothing(
                kind, host, "stopped before it had ended", "the collector was stopped, and this did not end at once"
            )
            for kind in (*running, *given_up)
        ]
        running.clear()
    found.items.sort(key=lambda item: (item.kind, item.rank if item.rank is not None else -1, item.pid or 0, item.path))
    return found


def _nothing(kind: str, host: str, error: str, reason: str) -> Item:
    return Item(path="", kind=kind, host=host, ok=False, error=error, reason=reason, redacted=False)
