"""Reading simulated snapshots as the tool does, without the isolated worker."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from memory.make_snapshot import snapshot
from torchtriage.memory.analyze import MemoryFindings, Snapshot, analyze
from torchtriage.memory.read import summarise_task

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memory.make_snapshot import Allocator
    from torchtriage.memory.judge import Beside


def summary_of(content: Any, folder: Path, name: str = "snapshot.pickle") -> dict[str, Any]:
    """The summary of a snapshot's content."""
    path = folder / name
    path.write_bytes(pickle.dumps(content, protocol=4))
    return summarise_task(str(path), None, {"format": "pickle"})


def device_of(gpu: Allocator, folder: Path) -> dict[str, Any]:
    """The summary of a simulated device."""
    return next(d for d in summary_of(snapshot(gpu), folder)["devices"] if d["device"] == gpu.device)


def findings_of(gpu: Allocator, folder: Path, logs: Mapping[int | None, Beside] | None = None) -> MemoryFindings:
    """What is said of a simulated device."""
    return analyze([Snapshot("snapshot.pickle", None, summary_of(snapshot(gpu), folder))], logs)


def kinds_of(found: MemoryFindings) -> list[str]:
    """The kinds of the findings that mean trouble, in their order."""
    return [one.finding.kind for one in found.faults]
