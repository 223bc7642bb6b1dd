"""A live look: nvidia-smi that answers, that counts on, that hangs, that fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchtriage.nvlink import probe
from torchtriage.nvlink.tool import nvlink_health

if TYPE_CHECKING:
    from torchtriage.bundle.manifest import Item

RECORDED = Path(__file__).resolve().parents[1] / "data" / "nvlink" / "healthy_h200"
ANSWERS = f"""
import pathlib, sys
asked = " ".join(sys.argv[1:])
folder = pathlib.Path({str(RECORDED)!r})
files = {{
    "nvlink -s": "nvlink_s", "nvlink -e": "nvlink_e", "topo -m": "topo_m", "topo -p2p n": "topo_p2p_n", "-q -x": "q_x",
}}
if asked.startswith("--query-gpu="):
    names = sys.argv[1].split("=")[1].split(",")
    print(", ".join(names)); print(", ".join("N/A" for _ in names))
elif asked.startswith("--query-compute-apps="):
    print("timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]")
else:
    print(folder.joinpath(files[asked] + ".txt").read_text())
"""
COUNTS_ON = """
import pathlib, sys
asked = " ".join(sys.argv[1:])
seen = pathlib.Path(__file__).with_name("seen")
if asked == "nvlink -e":
    seen.open("a").write("x")
    print("GPU 0: NVIDIA H200 (UUID: GPU-0a0a0a0a-1111-2222-3333-444455556666)")
    for link in range(18):
        print(f"\\t Link {link}: Replay Errors: {len(seen.read_text()) if link == 5 else 0}")
elif asked == "nvlink -s":
    print("GPU 0: NVIDIA H200 (UUID: GPU-0a0a0a0a-1111-2222-3333-444455556666)")
    for link in range(18):
        print(f"\\t Link {link}: 26.562 GB/s")
elif asked.startswith("--query-gpu="):
    names = sys.argv[1].split("=")[1].split(",")
    print(", ".join(names)); print(", ".join("N/A" for _ in names))
"""
FAILS = """
import sys
print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
sys.exit(9)
"""


def no_kernel_log(folder: Path, *, host: str) -> list[Item]:
    """That of the machine that runs the tests says nothing here."""
    del folder, host
    return []


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, alone on PATH, to be written."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(probe, "probe_kernel", no_kernel_log)
    return folder / "nvidia-smi"


def write(program: Path, code: str) -> None:
    program.write_text(f"#!{sys.executable} -IS\n{code}", encoding="utf-8")
    program.chmod(0o755)


def test_a_node_that_answers_is_judged_and_its_answers_are_kept(nvidia_smi: Path) -> None:
    write(nvidia_smi, ANSWERS)
    report = nvlink_health()
    assert (report.status, len(report.gpus), report.gpus[0].active_links) == ("ok", 2, 18)
    assert report.output_dir is not None
    kept = {path.name for path in Path(report.output_dir).glob("*/gpu/*")}
    assert {"nvlink-s.txt", "nvlink-e.txt", "topo-m.txt", "topo-p2p-n.txt", "nvidia-smi-q.xml"} <= kept
    assert nvlink_health([report.output_dir]).status == "ok"


def test_a_window_tells_what_grows(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(nvidia_smi, COUNTS_ON)
    waited: list[float] = []
    monkeypatch.setattr(probe, "sleep", waited.append)
    assert nvlink_health().status == "ok"
    report = nvlink_health(window=30)
    assert (waited, report.status, report.gpus[0].links[5].growth) == ([30], "degraded", {"replay errors": 1.0})
    assert "grew by 1" in report.summary


def test_a_nvidia_smi_that_hangs_is_a_finding(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(nvidia_smi, "import signal\nsignal.pause()\n")
    monkeypatch.setattr(probe, "ANSWER_WITHIN_S", 0.5)
    report = nvlink_health(window=5)
    assert (report.status, report.action, report.gpus) == ("failed", "reboot_node", [])
    assert "does not answer" in report.summary


def test_a_driver_that_is_not_there_is_unknown(nvidia_smi: Path) -> None:
    write(nvidia_smi, FAILS)
    report = nvlink_health()
    assert report.status == "unknown"
    assert any("driver" in gap for gap in report.gaps)
    nvidia_smi.unlink()
    assert nvlink_health().status == "unknown"
