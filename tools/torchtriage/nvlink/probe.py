"""Asks the node about its NVLinks: what the GPU probe asks, peer access, the kernel log, and counters once more.

Read-only questions, each under a time limit and without a shell, so that it may run beside a job. After one that
hangs no other is asked.
"""

from __future__ import annotations

from time import sleep
from typing import TYPE_CHECKING

from torchtriage.gpu.kernel import probe_kernel
from torchtriage.gpu.probe import ask, probe_gpus

if TYPE_CHECKING:
    from pathlib import Path

    from torchtriage.bundle.manifest import Item

MAX_WINDOW_S = 3600.0
ANSWER_WITHIN_S = 10.0
"""For each question; a healthy node takes well under a second."""
COUNTERS = "nvlink-e.txt"
# Sorts behind the first reading: readings are compared in the order of their names.
COUNTERS_AGAIN = "nvlink-e.window.txt"


def probe_links(folder: Path, *, host: str, window_s: float = 0.0) -> list[Item]:
    """Write the answers below ``folder/gpu`` and ``folder/kernel``.

    Args:
        folder: the host's folder.
        host: its name.
        window_s: how long to wait before the counters are read again; 0 reads them once.
    """
    timeout_s = ANSWER_WITHIN_S
    items = probe_gpus(folder, host=host, timeout_s=timeout_s)
    items += probe_kernel(folder, host=host)
    if len([item for item in items if item.kind == "nvidia_smi"]) == 1 or any(map(hangs, items)):
        return items
    items.append(ask("topo-p2p-n.txt", ("topo", "-p2p", "n"), folder, host=host, timeout_s=timeout_s))
    counted = any(item.ok and item.path.endswith(COUNTERS) for item in items)
    if window_s > 0 and counted:
        sleep(min(window_s, MAX_WINDOW_S))
        items.append(ask(COUNTERS_AGAIN, ("nvlink", "-e"), folder, host=host, timeout_s=timeout_s))
    return items


def hangs(item: Item) -> bool:
    """Whether nvidia-smi did not come back."""
    return item.kind == "nvidia_smi" and item.error is not None and "not answer" in item.error
