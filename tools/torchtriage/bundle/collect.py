"""Look at everything of one job on this node and write it into a bundle: a function of one node that returns items.

What dies first is looked at first: stacks and states of the processes, then NCCL RAS, the flight recorder, the GPUs and
the kernel log beside each other, then the processes once more. A probe that fails leaves its reason in the manifest.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.bundle.job_logs import copy_logs
from torchtriage.bundle.manifest import Item
from torchtriage.bundle.proc_facts import write_facts
from torchtriage.flight.probe import probe_flight
from torchtriage.gpu.kernel import probe_kernel
from torchtriage.gpu.probe import probe_gpus
from torchtriage.ras.probe import probe_ras
from torchtriage.stacks.probe import dump_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path
    from types import FrameType

    from torchtriage.bundle.processes import JobProcess

AGAIN_AFTER_S = 3.0
"""Between the two looks: long enough for a rank that works to be seen elsewhere."""


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


@contextlib.contextmanager
def at_most_one_interrupt() -> Generator[Callable[[], None], None, None]:
    """Within it the first Ctrl-C interrupts and further ones do nothing, so that what was taken is still written.

    Yields what makes even a first one do nothing. Only the main thread can do so; elsewhere nothing is changed.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: None
        return

    def no_more() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def first(number: int, frame: FrameType | None) -> None:
        no_more()
        before(number, frame)

    signal.signal(signal.SIGINT, first)
    try:
        yield no_more
    finally:
        signal.signal(signal.SIGINT, before)


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
    n_done = 0
    lock = threading.Lock()

    def probe(kind: str, work: Callable[[], list[Item]]) -> None:
        nonlocal n_done
        try:
            items = work()
        except Exception as error:  # one probe must not take the others with it
            text = clean_text(f"{type(error).__name__}: {error}")
            reason = "a fault of torchtriage itself; the rest of the bundle is whole"
            items = [Item(path="", kind=kind, host=host, ok=False, error=text, reason=reason, redacted=False)]
        with lock:
            found.items.extend(items)
            n_done += 1
            if progress is not None:
                progress(n_done, len(probes))

    def stacks() -> list[Item]:
        return dump_processes(
            looked_at, folder / "stacks", host=host, native=native, timeout_s=limits.attach_s,
            again_after_s=limits.again_after_s,
        )  # fmt: skip

    def states() -> list[Item]:
        first = write_facts(looked_at, folder / "proc", host=host)
        threading.Event().wait(max(0.0, began + limits.again_after_s - time.monotonic()))
        return [*first, *write_facts(looked_at, folder / "proc" / "again", host=host)]

    probes: list[tuple[str, Callable[[], list[Item]]]] = [
        ("stack_dump", stacks),
        ("proc_facts", states),
        ("ras", lambda: probe_ras(ranks, folder, host=host, timeout_s=limits.ras_s, force=force_ras)),
        ("flight_recorder", lambda: probe_flight(ranks, folder, host=host, timeout_s=limits.flight_s)),
        ("gpu", lambda: probe_gpus(folder, host=host, timeout_s=limits.gpu_s)),
        ("kernel_log", lambda: probe_kernel(folder, host=host, timeout_s=limits.kernel_s)),
        ("log", lambda: copy_logs(processes, folder / "logs", host=host)),
    ]
    began = time.monotonic()
    with ThreadPoolExecutor(len(probes)) as pool:
        try:
            running: list[Future[None]] = [pool.submit(probe, kind, work) for kind, work in probes]
            for one in running:
                one.result()
        except KeyboardInterrupt:
            # What is there is kept; probes are bounded in time, and the attached processes are let go by their guard.
            found.interrupted = True
            with contextlib.suppress(KeyboardInterrupt):
                pool.shutdown(wait=True, cancel_futures=True)
    found.items.sort(key=lambda item: (item.kind, item.rank if item.rank is not None else -1, item.pid or 0, item.path))
    return found
