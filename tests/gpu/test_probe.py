"""Questions to nvidia-smi: what is kept, and what is told when it fails."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from torchtriage.artefacts.recognise import recognise
from torchtriage.gpu.probe import probe_gpus

if TYPE_CHECKING:
    from pathlib import Path

HEALTHY = """
import sys
asked = " ".join(sys.argv[1:])
if asked.startswith("--query-gpu="):
    names = sys.argv[1].split("=")[1].split(",")
    print(", ".join(names)); print(", ".join("1" for _ in names))
elif asked.startswith("--query-compute-apps="):
    print("timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]")
    print("2026/01/01, X, GPU-1, 7, python train.py --api-key=abcdefgh12345678, 10 MiB")
elif asked == "-q -x":
    print('<?xml version="1.0" ?><nvidia_smi_log><gpu/></nvidia_smi_log>')
elif asked == "topo -m":
    print("\\tGPU0\\tGPU1")
else:
    print("GPU 0: X (UUID: GPU-1)\\n\\t Link 0: 26.562 GB/s")
"""


@pytest.fixture
def host_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle" / "node1"
    folder.mkdir(parents=True)
    return folder


def put_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f"#!{sys.executable} -IS\n{code}", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_answers_are_kept_in_a_form_that_readers_recognise(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, HEALTHY)
    items = probe_gpus(host_folder, host="node1", timeout_s=60)
    assert [(item.path, item.ok, item.error) for item in items] == [
        (f"node1/gpu/{name}", True, None)
        for name in (
            "query-gpu.csv",
            "compute-apps.csv",
            "nvidia-smi-q.xml",
            "nvlink-s.txt",
            "nvlink-e.txt",
            "topo-m.txt",
        )
    ]
    assert items[2].command == ["nvidia-smi", "-q", "-x"]
    for item in items:
        content = (host_folder.parent / item.path).read_bytes()
        assert recognise(content, item.path).kind == "nvidia_smi", item.path


def test_secrets_in_command_lines_are_masked(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, HEALTHY)
    probe_gpus(host_folder, host="node1", timeout_s=60)
    text = (host_folder / "gpu/compute-apps.csv").read_text(encoding="utf-8")
    assert "abcdefgh12345678" not in text
    assert "[masked]" in text


def test_fields_that_a_driver_does_not_know_are_asked_for_by_their_older_name_or_left_out(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = """
import sys
for name in ("clocks_event_reasons.active", "temperature.memory"):
    if "--query-gpu" in sys.argv[1] and name in sys.argv[1].split("=")[1].split(","):
        print(f'Field "{name}" is not a valid field to query.'); sys.exit(2)
"""
    put_on_path(tmp_path, monkeypatch, refuse + HEALTHY)
    first = probe_gpus(host_folder, host="node1", timeout_s=60)[0]
    assert first.ok
    head = (host_folder / "gpu/query-gpu.csv").read_text(encoding="utf-8").split("\n")[0]
    assert "clocks_throttle_reasons.active" in head
    assert "temperature.memory" not in head


def test_a_hanging_nvidia_smi_is_a_finding_and_is_not_asked_again(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, "import signal\nsignal.pause()")
    items = probe_gpus(host_folder, host="node1", timeout_s=0.5)
    assert [(item.ok, item.path, item.error) for item in items] == [
        (False, "", "nvidia-smi did not answer in time"),
    ]
    assert "this itself is a finding" in (items[0].reason or "")
    assert "the other 5 questions were not asked" in (items[0].reason or "")


def test_a_driver_that_is_not_loaded_gives_one_item_with_what_nvidia_smi_said(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, "import sys\nprint('NVIDIA-SMI has failed')\nsys.exit(9)")
    items = probe_gpus(host_folder, host="node1", timeout_s=60)
    assert [(item.ok, item.error) for item in items] == [(False, "exit code 9: NVIDIA-SMI has failed")]
    assert "driver is not loaded" in (items[0].reason or "")


def test_garbage_is_kept_without_breaking_anything(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 100)")
    items = probe_gpus(host_folder, host="node1", timeout_s=60)
    assert len(items) == 6
    assert all((host_folder.parent / item.path).is_file() for item in items)


def test_without_driver_and_program_there_is_nothing_to_ask(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (item,) = probe_gpus(host_folder, host="node1", driver=tmp_path / "nothing")
    assert (item.ok, item.path) == (True, "")
    assert "no NVIDIA driver" in (item.reason or "")


def test_a_driver_without_the_program_is_a_failure(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (item,) = probe_gpus(host_folder, host="node1", driver=tmp_path)
    assert not item.ok
    assert "not on PATH" in (item.reason or "")


def test_a_file_that_somebody_planted_is_not_written_over(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, HEALTHY)
    victim = tmp_path / "victim"
    (host_folder / "gpu").mkdir()
    (host_folder / "gpu/query-gpu.csv").symlink_to(victim)
    first = probe_gpus(host_folder, host="node1", timeout_s=60)[0]
    assert not first.ok
    assert not victim.exists()
