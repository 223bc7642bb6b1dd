"""Answers of nvidia-smi as it prints them, with values that the tests choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage.gpu.read import read_task

if TYPE_CHECKING:
    from pathlib import Path

HEADER = (
    "timestamp, index, name, uuid, pci.bus_id, pstate, utilization.gpu [%], power.draw [W], power.limit [W], "
    "clocks.current.sm [MHz], clocks.max.sm [MHz], clocks_event_reasons.active, memory.used [MiB], memory.total [MiB], "
    "ecc.errors.uncorrected.volatile.total"
)
APPS = "timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]"
NOW = "2026/01/02 10:00:00.123"
SPINS: dict[str, Any] = {"use": "100 %", "power": "150.10 W"}
RESTS: dict[str, Any] = {"use": "0 %", "power": "118.00 W"}


def gpu(index: int, **values: Any) -> str:
    """One row of --query-gpu; a card at full load unless told."""
    v: dict[str, Any] = {
        "use": "98 %", "power": "652.20 W", "limit": "700.00 W", "sm": "1980 MHz", "max_sm": "1980 MHz",
        "reasons": "0x0000000000000004", "ecc": "0", "name": "NVIDIA H200", "total": "143771 MiB",
    } | values  # fmt: skip
    return (
        f"{NOW}, {index}, {v['name']}, GPU-{index}, 00000000:0{index}:00.0, P0, {v['use']}, {v['power']}, "
        f"{v['limit']}, {v['sm']}, {v['max_sm']}, {v['reasons']}, 90000 MiB, {v['total']}, {v['ecc']}"
    )


def app(index: int, pid: int, mib: int = 2138, name: str = "/opt/venv/bin/python3") -> str:
    """One row of --query-compute-apps."""
    return f"{NOW}, NVIDIA H200, GPU-{index}, {pid}, {name}, {mib} MiB"


def read(tmp_path: Path, *lines: str) -> dict[str, Any]:
    """What the reader gives for an answer of these lines."""
    path = tmp_path / "answer"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_task(str(path), None, {})
