"""The telling lines of the kernel log, whatever the source."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from torchtriage.artefacts.recognise import recognise
from torchtriage.gpu.kernel import MAX_LINES, probe_kernel

if TYPE_CHECKING:
    from pathlib import Path

XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid=4711, name=python, GPU has fallen off the bus."
OOM = "Out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB, UID:0"


@pytest.fixture
def host_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle" / "node1"
    folder.mkdir(parents=True)
    return folder


def put_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, code in programs.items():
        (folder / name).write_text(f"#!{sys.executable} -IS\nimport sys\n{code}", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_only_telling_lines_of_dmesg_are_kept_in_a_recognised_form(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"2026-01-02T03:04:05,678901+00:00 {text}" for text in ("usb 1-1: new device", XID, OOM)]
    put_on_path(tmp_path, monkeypatch, dmesg=f"print({chr(10).join(lines)!r})")
    (item,) = probe_kernel(host_folder, host="node1", timeout_s=60)
    assert (item.path, item.ok, item.command) == ("node1/kernel/dmesg.txt", True, ["dmesg", "--time-format", "iso"])
    text = (host_folder / "kernel/dmesg.txt").read_text(encoding="utf-8")
    assert text == f"2026-01-02T03:04:05,678901+00:00 node1 kernel: {XID}\n" + (
        f"2026-01-02T03:04:05,678901+00:00 node1 kernel: {OOM}\n"
    )
    assert recognise(text.encode(), item.path).kind == "kernel_log"


def test_a_log_without_such_a_line_is_told_from_one_that_could_not_be_read(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, dmesg="print('2026-01-02T03:04:05,678901+00:00 usb 1-1: new device')")
    (item,) = probe_kernel(host_folder, host="node1", timeout_s=60)
    assert (item.path, item.ok) == ("", True)
    assert "none of the 1 lines" in (item.reason or "")


def test_an_older_dmesg_is_asked_for_its_own_form_of_times(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""
if sys.argv[1:] == ["-T"]:
    print("[Fri Jan  2 03:04:05 2026] {XID}")
else:
    print("dmesg: unrecognized option", file=sys.stderr); sys.exit(1)
"""
    put_on_path(tmp_path, monkeypatch, dmesg=code)
    (item,) = probe_kernel(host_folder, host="node1", timeout_s=60)
    assert item.command == ["dmesg", "-T"]
    text = (host_folder / "kernel/dmesg.txt").read_text(encoding="utf-8")
    assert text == f"[Fri Jan  2 03:04:05 2026] {XID}\n"


def test_a_closed_dmesg_leads_to_the_journal(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(
        tmp_path,
        monkeypatch,
        dmesg="print('dmesg: read kernel buffer failed: Operation not permitted', file=sys.stderr); sys.exit(1)",
        journalctl=f"print('2026-01-02T03:04:05+0000 node1 kernel: {XID}')",
    )
    (item,) = probe_kernel(host_folder, host="node1", timeout_s=60)
    assert item.command[0] == "journalctl"
    text = (host_folder / "kernel/dmesg.txt").read_text(encoding="utf-8")
    assert text == f"2026-01-02T03:04:05+0000 node1 kernel: {XID}\n"


def test_a_kernel_log_that_is_closed_to_this_user_says_what_to_do(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(
        tmp_path,
        monkeypatch,
        dmesg="print('dmesg: read kernel buffer failed: Operation not permitted', file=sys.stderr); sys.exit(1)",
        journalctl="print('No journal files were opened due to insufficient permissions.', file=sys.stderr)",
    )
    (item,) = probe_kernel(host_folder, host="node1", timeout_s=60, kmsg=tmp_path / "kmsg")
    assert (item.path, item.ok) == ("", False)
    assert "Operation not permitted" in (item.error or "")
    assert "run the collector as root" in (item.reason or "")


def test_a_dmesg_that_hangs_costs_its_time_limit_only(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, dmesg="import signal\nsignal.pause()")
    (item,) = probe_kernel(host_folder, host="node1", timeout_s=0.5, kmsg=tmp_path / "kmsg")
    assert not item.ok
    assert "no answer in time" in (item.error or "")


def test_the_kernels_own_device_is_read_without_blocking(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu 1 2\nbtime 1767323045\n", encoding="ascii")
    kmsg = tmp_path / "kmsg"
    os.mkfifo(kmsg)
    held = os.open(kmsg, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(held, f"6,1,1500000,-;usb 1-1: new device\n3,2,2500000,-;{XID}\n SUBSYSTEM=pci\n".encode())
        (item,) = probe_kernel(host_folder, host="node1", timeout_s=60, kmsg=kmsg, root=tmp_path)
    finally:
        os.close(held)
    assert item.ok
    text = (host_folder / "kernel/dmesg.txt").read_text(encoding="utf-8")
    assert text == f"2026-01-02T03:04:07.500000+00:00 node1 kernel: {XID}\n"


def test_a_storm_of_lines_is_bounded_to_the_last_ones(
    tmp_path: Path, host_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(
        tmp_path, monkeypatch, dmesg="for i in range(20000): print(f'2026-01-02T03:04:05,000000+00:00 NVRM: line {i}')"
    )
    (item,) = probe_kernel(host_folder, host="node1", timeout_s=60)
    lines = (host_folder / "kernel/dmesg.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == MAX_LINES
    assert lines[-1].endswith("NVRM: line 19999")
    assert "only the last" in (item.reason or "")
