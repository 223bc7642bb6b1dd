"""Copying what a job's processes print: the files they have open, masked, once each, and no pipe."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from torchtriage.bundle.job_logs import copy_logs
from torchtriage.bundle.processes import JobProcess


def process(pid: int, role: str = "rank", rank: int | None = None) -> JobProcess:
    return JobProcess(
        pid=pid, ppid=1, uid=0, start_ticks=1, role=role, rank=rank, local_rank=rank, world_size=2, rank_pid=None,
        job="here", environment={}, command=("python3",),
    )  # fmt: skip


class Streams:
    """A /proc in which processes have files open."""

    def __init__(self, root: Path) -> None:
        self.proc, self.files = root / "proc", root / "files"
        self.files.mkdir()
        self.bundle = root / "bundle" / "node1"

    def open(self, pid: int, number: int, target: Path, flags: int = os.O_WRONLY | os.O_APPEND) -> None:
        folder, told = self.proc / str(pid) / "fd", self.proc / str(pid) / "fdinfo"
        for each in (folder, told):
            each.mkdir(parents=True, exist_ok=True)
        (folder / str(number)).symlink_to(target)
        (told / str(number)).write_text(f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t1\n", encoding="utf-8")

    def file(self, name: str, text: str) -> Path:
        path = self.files / name
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def streams(tmp_path: Path) -> Streams:
    return Streams(tmp_path)


def test_both_streams_of_ranks_and_launchers_are_copied_with_their_times(streams: Streams) -> None:
    out = streams.file("out", "step=1\n")
    os.utime(out, ns=(5, 1_700_000_000_000_000_000))
    streams.open(7, 1, out)
    streams.open(7, 2, streams.file("err", "warned\n"))
    streams.open(3, 1, streams.file("console", "all of it\n"))
    processes = [process(3, "launcher"), process(7, rank=1)]
    items = copy_logs(processes, streams.bundle / "logs", host="node1", proc=streams.proc)
    names = ["launcher-pid3.stdout.log", "rank01-pid7.stdout.log", "rank01-pid7.stderr.log"]
    assert [item.path for item in items] == [f"node1/logs/{name}" for name in names]
    assert [item.rank for item in items] == [None, 1, 1]
    assert all(item.ok and item.redacted and item.reason is None for item in items)
    assert items[1].command[:2] == ["tail", "-c"]
    assert items[1].command[-1] == str(out)
    copied = streams.bundle / "logs" / names[1]
    assert (copied.read_text(encoding="utf-8"), copied.stat().st_mtime_ns) == ("step=1\n", 1_700_000_000_000_000_000)
    assert copied.stat().st_mode & 0o777 == 0o600


def test_a_file_that_several_write_to_is_copied_once(streams: Streams) -> None:
    shared = streams.file("all", "x\n")
    for pid in (7, 8):
        streams.open(pid, 1, shared)
        streams.open(pid, 2, shared)
    items = copy_logs([process(7, rank=0), process(8, rank=1)], streams.bundle / "logs", host="n", proc=streams.proc)
    assert [item.path for item in items] == ["node1/logs/rank00-pid7.stdout.log"]


def test_pipes_and_devices_are_left_alone(streams: Streams) -> None:
    pipe = streams.files / "pipe"
    os.mkfifo(pipe)
    streams.open(7, 1, pipe)
    streams.open(7, 2, Path("/dev/null"))
    assert copy_logs([process(7, rank=0)], streams.bundle / "logs", host="n", proc=streams.proc) == []
    assert not streams.bundle.exists()


def test_workers_and_helpers_and_the_departed_have_no_log(streams: Streams) -> None:
    streams.open(9, 1, streams.file("out", "x\n"))
    processes = [process(9, "dataloader worker", 0), process(9, "helper", 0), process(404, rank=1)]
    assert copy_logs(processes, streams.bundle / "logs", host="n", proc=streams.proc) == []


def test_of_a_long_log_the_end_is_kept_from_the_beginning_of_a_line(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.bundle.job_logs.MAX_LOG_BYTES", 1 << 20)
    text = "".join(f"step={step} loss=2.5\n" for step in range(100_000))
    streams.open(7, 1, streams.file("out", text))
    (item,) = copy_logs([process(7, rank=0)], streams.bundle / "logs", host="n", proc=streams.proc)
    copied = (streams.bundle.parent / item.path).read_text(encoding="utf-8")
    assert item.reason == "the last 1 MiB"
    assert (1 << 20) - 100 < len(copied) <= 1 << 20
    assert text.endswith("\n" + copied)


def test_secrets_are_masked_and_odd_bytes_survive_as_text(streams: Streams) -> None:
    path = streams.files / "out"
    path.write_bytes(b"login with token hf_abcdefghijklmnopqrstuvwx\n\xff\xfe bytes\nAPI_KEY=sk-abcdefghijklmnop12\n")
    streams.open(7, 1, path)
    (item,) = copy_logs([process(7, rank=0)], streams.bundle / "logs", host="n", proc=streams.proc)
    copied = (streams.bundle.parent / item.path).read_text(encoding="utf-8")
    assert "abcdefghijklmnop" not in copied
    assert copied.count("[masked]") == 2
    assert copied.count("\n") == 3


def test_zeros_that_nobody_wrote_are_left_out(streams: Streams) -> None:
    path = streams.files / "out"
    with path.open("wb") as file:  # cut while it was open, as a rotation does; the next write is far behind
        file.seek(1 << 40)
        file.write(b"step=1\n")
    streams.open(7, 1, path)
    (item,) = copy_logs([process(7, rank=0)], streams.bundle / "logs", host="n", proc=streams.proc)
    assert (streams.bundle.parent / item.path).read_text(encoding="utf-8") == "step=1\n"


def test_when_it_is_cancelled_each_log_still_gives_its_last_line(streams: Streams) -> None:
    stop = threading.Event()
    stop.set()
    for pid in (7, 8):
        streams.open(pid, 1, streams.file(f"out-{pid}", "one\ntwo\nthree"))
    ranks = [process(7, rank=0), process(8, rank=1)]
    items = copy_logs(ranks, streams.bundle / "logs", host="n", proc=streams.proc, cancelled=stop)
    assert [(streams.bundle.parent / item.path).read_text(encoding="utf-8") for item in items] == ["two\nthree"] * 2


def test_a_planted_file_is_not_overwritten_and_the_reason_is_told(streams: Streams) -> None:
    streams.open(7, 1, streams.file("out", "x\n"))
    planted = streams.bundle / "logs" / "rank00-pid7.stdout.log"
    planted.parent.mkdir(parents=True)
    planted.symlink_to(streams.files / "elsewhere")
    (item,) = copy_logs([process(7, rank=0)], streams.bundle / "logs", host="n", proc=streams.proc)
    assert (item.ok, item.path) == (False, "")
    assert item.reason
    assert not (streams.files / "elsewhere").exists()


def test_the_number_of_logs_is_bounded(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.bundle.job_logs.MAX_LOGS", 3)
    for pid in range(10, 20):
        streams.open(pid, 1, streams.file(f"out-{pid}", "x\n"))
    ranks = [process(pid, rank=pid - 10) for pid in range(10, 20)]
    assert len(copy_logs(ranks, streams.bundle / "logs", host="n", proc=streams.proc)) == 3


def test_each_log_keeps_its_newest_lines_when_time_is_short(streams: Streams) -> None:
    for pid in (7, 8):
        streams.open(pid, 1, streams.file(f"out-{pid}", "".join(f"step={step}\n" for step in range(1000))))
    seconds = iter(range(100_000))
    ranks = [process(7, rank=0), process(8, rank=1)]
    items = copy_logs(
        ranks, streams.bundle / "logs", host="n", proc=streams.proc, limit_s=100, clock=lambda: float(next(seconds))
    )
    for item in items:
        copied = (streams.bundle.parent / item.path).read_text(encoding="utf-8")
        assert copied.startswith("step=9")
        assert copied.endswith("\nstep=999\n")
        assert "no time" in (item.reason or "")


def test_a_long_log_of_one_progress_bar_keeps_its_end(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.bundle.job_logs.MAX_LOG_BYTES", 1 << 20)
    path = streams.files / "out"
    path.write_bytes(b"".join(b"\r%6d/99999 token=abcdefghij" % step for step in range(50_000)))
    streams.open(7, 1, path)
    (item,) = copy_logs([process(7, rank=0)], streams.bundle / "logs", host="n", proc=streams.proc)
    copied = (streams.bundle.parent / item.path).read_bytes()
    assert copied.endswith(b"\r 49999/99999 token=[masked]")
    assert b"abcdefghij" not in copied


@pytest.mark.parametrize("flags", [os.O_PATH, os.O_RDONLY, os.O_PATH | os.O_WRONLY])
def test_what_is_not_open_for_writing_holds_no_output_and_is_not_copied(streams: Streams, flags: int) -> None:
    """``O_PATH`` needs no right to a file: a rank could have a collector that runs as root copy any file."""
    streams.open(7, 1, streams.file("secrets", "not for everybody\n"), flags)
    (item,) = copy_logs([process(7, rank=1)], streams.bundle / "logs", host="n", proc=streams.proc)
    assert (item.ok, item.path) == (False, "")
    assert item.reason
    assert "not open for writing" in item.reason


def test_a_stream_of_which_nothing_is_told_is_not_copied(streams: Streams) -> None:
    streams.open(7, 1, streams.file("out", "x\n"))
    (streams.proc / "7" / "fdinfo" / "1").unlink()
    (item,) = copy_logs([process(7, rank=1)], streams.bundle / "logs", host="n", proc=streams.proc)
    assert not item.ok


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read what another user's job may not")
@pytest.mark.parametrize(("mode", "copied"), [(0o600, False), (0o640, False), (0o644, True)])
def test_root_copies_for_another_user_only_what_that_user_may_read(streams: Streams, mode: int, copied: bool) -> None:
    out = streams.file("out", "x\n")
    out.chmod(mode)
    streams.open(7, 1, out)
    told = "Uid:\t65534\t65534\t65534\t65534\nGid:\t65534\t65534\t65534\t65534\nGroups:\t\n"
    (streams.proc / "7" / "status").write_text(told, encoding="utf-8")
    theirs = dataclasses.replace(process(7, rank=1), uid=65534)
    (item,) = copy_logs([theirs], streams.bundle / "logs", host="n", proc=streams.proc)
    assert item.ok is copied


@pytest.mark.parametrize("groups", ["Uid:\t0\t0\t0\t0\nGid:\t0\n", "Gid:\t0\n"])
def test_a_process_that_is_not_its_users_any_more_gives_no_file_of_others(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, groups: str
) -> None:
    streams.open(7, 1, streams.file("out", "x\n"))
    (streams.proc / "7" / "status").write_text(groups, encoding="utf-8")
    monkeypatch.setattr("torchtriage.bundle.stream_rights.os.geteuid", lambda: 0)
    theirs = dataclasses.replace(process(7, rank=1), uid=65534)
    (item,) = copy_logs([theirs], streams.bundle / "logs", host="n", proc=streams.proc)
    assert (item.ok, item.path) == (False, "")
