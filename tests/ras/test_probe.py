"""Asking a RAS service on this node: what is asked, what is kept, and when nobody is asked at all."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from torchtriage.artefacts.recognise import recognise
from torchtriage.bundle.processes import JobProcess
from torchtriage.ras.nccl_version import nccl_version_of, parse_version
from torchtriage.ras.own_address import NotOwnAddressError, own_socket_address
from torchtriage.ras.probe import ask, probe_ras

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VERSION = (2, 28, 9)
TEXT = b"""NCCL version 2.28.9 compiled with CUDA 13.0

Job summary
===========

Errors
======

Warnings
========

"""
JSON = b"""{
  "nccl_version": "2.28.9",
  "communicators": [{"ranks": [{"rank": 0, "pid": 600}, {"rank": 1, "pid": 601}]}]
}
"""

Server = tuple[str, list[list[str]]]


@pytest.fixture
def host_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle" / "node1"
    folder.mkdir(parents=True)
    return folder


def answer_like_nccl(connection: socket.socket, asked: list[str]) -> None:
    with connection.makefile("rb") as lines:
        for line in lines:
            asked.append(line.decode().strip())
            if asked[-1].startswith("CLIENT PROTOCOL"):
                connection.sendall(b"SERVER PROTOCOL 2\n")
            elif asked[-1] == "VERBOSE STATUS":
                connection.sendall(JSON if "SET FORMAT json" in asked else TEXT)
                return
            else:
                connection.sendall(b"OK\n")


@contextmanager
def serving(answer: Callable[[socket.socket, list[str]], None]) -> Iterator[Server]:
    """A server on a port of its own; yields its address and what each connection asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[list[str]] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            asked.append([])
            with connection:
                try:
                    answer(connection, asked[-1])
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_text_and_json_are_asked_for_once_each_and_kept_as_they_came(host_folder: Path) -> None:
    with serving(answer_like_nccl) as (address, asked):
        items = ask(address, host_folder, nccl_version=VERSION, timeout_s=30, host="node1")
    assert asked == [
        ["CLIENT PROTOCOL 3", "SET FORMAT json", "TIMEOUT 3", "VERBOSE STATUS"],
        ["CLIENT PROTOCOL 2", "TIMEOUT 3", "VERBOSE STATUS"],
    ]
    assert [(item.path, item.ok, item.kind) for item in items] == [
        ("node1/ras/ncclras-json.txt", True, "ras"),
        ("node1/ras/ncclras-verbose.txt", True, "ras"),
    ]
    assert (host_folder / "ras/ncclras-json.txt").read_bytes() == b"SERVER PROTOCOL 2\nOK\nOK\n" + JSON
    assert (host_folder / "ras/ncclras-verbose.txt").read_bytes() == b"SERVER PROTOCOL 2\nOK\n" + TEXT
    kinds = [recognise((host_folder.parent / item.path).read_bytes(), item.path) for item in items]
    assert [(found.kind, found.format) for found in kinds] == [("ras", "json"), ("ras", "text")]


def test_a_version_before_json_is_asked_for_text_alone(host_folder: Path) -> None:
    with serving(answer_like_nccl) as (address, asked):
        items = ask(address, host_folder, nccl_version=(2, 27, 7), timeout_s=30)
    assert len(asked) == 1
    assert [item.path for item in items] == ["node1/ras/ncclras-verbose.txt"]


@pytest.mark.parametrize("version", [(2, 26, 2), (2, 26, 5), (2, 27, 3)])
def test_versions_that_crash_when_asked_are_never_asked(version: tuple[int, int, int], host_folder: Path) -> None:
    with serving(answer_like_nccl) as (address, asked):
        (item,) = ask(address, host_folder, nccl_version=version, timeout_s=30, force=True)
    assert asked == []
    assert not item.ok
    assert "known to die" in (item.reason or "")


def test_an_unknown_version_is_asked_only_when_forced(host_folder: Path) -> None:
    with serving(answer_like_nccl) as (address, asked):
        (item,) = ask(address, host_folder, nccl_version=None, timeout_s=30)
        assert asked == []
        assert "force" in (item.reason or "")
        assert len(ask(address, host_folder, nccl_version=None, timeout_s=30, force=True)) == 2
    assert len(asked) == 2


def test_a_version_without_the_service_has_nothing_to_ask(host_folder: Path) -> None:
    (item,) = ask("localhost", host_folder, nccl_version=(2, 21, 5), timeout_s=30)
    assert (item.ok, item.path) == (True, "")


def test_an_answer_about_another_jobs_processes_is_not_kept(host_folder: Path) -> None:
    with serving(answer_like_nccl) as (address, asked):
        (item,) = ask(address, host_folder, nccl_version=VERSION, timeout_s=30, pids=frozenset({7}))
        assert "another job's" in (item.reason or "")
        assert not (host_folder / "ras").exists()
        items = ask(address, host_folder, nccl_version=VERSION, timeout_s=30, pids=frozenset({7, 601}))
    assert all(item.ok for item in items)
    assert len(asked) == 3


def test_nobody_listening_is_told(host_folder: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        (item,) = ask(address, host_folder, nccl_version=VERSION, timeout_s=30)
    assert item.error == "nobody listens there"


def test_a_server_that_never_answers_costs_its_time_limit_once(host_folder: Path) -> None:
    with serving(lambda connection, _: [None for _ in iter(lambda: connection.recv(100), b"")]) as (address, _):
        (item,) = ask(address, host_folder, nccl_version=VERSION, timeout_s=0.3)
    assert (item.path, item.ok, item.error) == ("", False, "no whole answer in time")


def test_a_server_that_drips_is_cut_off_by_the_total_limit(host_folder: Path) -> None:
    stop = threading.Event()

    def drip(connection: socket.socket, _: list[str]) -> None:
        connection.sendall(b"SERVER PROTOCOL 2\nOK\nOK\n")
        while not stop.wait(0.02):
            connection.sendall(b"{")

    with serving(drip) as (address, _):
        (item,) = ask(address, host_folder, nccl_version=VERSION, timeout_s=0.5)
        stop.set()
    assert (item.ok, item.error) == (False, "no whole answer in time")
    assert (host_folder / "ras/ncclras-json.txt").read_bytes().startswith(b"SERVER PROTOCOL 2\nOK\nOK\n{{")


def test_an_answer_that_stops_in_the_middle_is_kept_and_told(host_folder: Path) -> None:
    def close_after(connection: socket.socket, asked: list[str]) -> None:
        connection.sendall(b"SERVER PROTOCOL 2\nOK\n")
        with connection.makefile("rb") as lines:
            for line in lines:
                if line == b"VERBOSE STATUS\n":
                    connection.sendall(TEXT[:60])
                    return

    with serving(close_after) as (address, _):
        (item,) = ask(address, host_folder, nccl_version=(2, 27, 7), timeout_s=30)
    assert (item.path, item.ok, item.error) == ("node1/ras/ncclras-verbose.txt", False, "the answer ends early")


def test_another_program_at_the_address_is_not_kept(host_folder: Path) -> None:
    def garbage(connection: socket.socket, _: list[str]) -> None:
        connection.sendall(bytes(range(256)) * 100)
        connection.recv(1 << 16)

    with serving(garbage) as (address, _):
        (item,) = ask(address, host_folder, nccl_version=VERSION, timeout_s=30)
    assert (item.path, item.ok) == ("", False)
    assert not (host_folder / "ras").exists()


def test_a_connection_that_is_reset_is_told(host_folder: Path) -> None:
    def reset(connection: socket.socket, _: list[str]) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with serving(reset) as (address, _):
        (item,) = ask(address, host_folder, nccl_version=VERSION, timeout_s=30)
    assert (item.path, item.ok) == ("", False)
    assert item.error


def test_an_answer_without_end_is_bounded(host_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.ras.probe.MAX_ANSWER_BYTES", 100_000)

    def endless(connection: socket.socket, _: list[str]) -> None:
        connection.sendall(b"SERVER PROTOCOL 2\nOK\n")
        while True:
            connection.sendall(b"x" * 10_000)

    with serving(endless) as (address, _):
        (item,) = ask(address, host_folder, nccl_version=(2, 27, 7), timeout_s=30)
    assert (item.ok, item.error) == (False, "the answer is too long")
    assert (host_folder / "ras/ncclras-verbose.txt").stat().st_size == 100_000


def test_only_addresses_of_this_node_are_asked(tmp_path: Path) -> None:
    assert own_socket_address("localhost", 28028, root=tmp_path) == ("127.0.0.1", 28028)
    assert own_socket_address("0.0.0.0:9", 28028, root=tmp_path) == ("127.0.0.1", 9)
    assert own_socket_address("[::1]:9", 28028, root=tmp_path) == ("::1", 9)
    assert own_socket_address("127.3.2.1", 28028, root=tmp_path) == ("127.3.2.1", 28028)
    # 192.0.2.0/24 and 2001:db8::/32 are for documentation: nobody's.
    for other in ("192.0.2.7:28028", "[2001:db8::1]:28028", "224.0.0.1:9", "255.255.255.255:1"):
        with pytest.raises(NotOwnAddressError, match="not an address of this node"):
            own_socket_address(other, 28028, root=tmp_path)


@pytest.mark.parametrize("address", ["", "[::1", "localhost:0", "localhost:99999", "a b:1", "localhost:1x", "\x00:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(NotOwnAddressError):
        own_socket_address(address, 28028)


def test_a_node_that_lets_any_address_be_bound_has_loopback_only(tmp_path: Path) -> None:
    setting = tmp_path / "proc/sys/net/ipv4/ip_nonlocal_bind"
    setting.parent.mkdir(parents=True)
    setting.write_text("1\n", encoding="ascii")
    with pytest.raises(NotOwnAddressError):
        own_socket_address("192.0.2.7:1", 28028, root=tmp_path)
    assert own_socket_address("127.0.0.1:1", 28028, root=tmp_path) == ("127.0.0.1", 1)


def test_an_address_elsewhere_is_refused_with_a_reason(host_folder: Path) -> None:
    (item,) = ask("192.0.2.7:28028", host_folder, nccl_version=VERSION, timeout_s=30)
    assert not item.ok
    assert "collect on that node" in (item.reason or "")


def fake_process(proc: Path, pid: int, maps: str, **environment: str) -> JobProcess:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "maps").write_text(maps, encoding="utf-8")
    (proc / str(pid) / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t{pid % 10}\n", encoding="utf-8")
    (proc / str(pid) / "root").symlink_to(proc.parent / "root")
    return JobProcess(
        pid=pid, ppid=1, uid=0, start_ticks=1, role="rank", rank=pid % 10, local_rank=0, world_size=2, rank_pid=None,
        job="job", environment=environment, command=("python",),
    )  # fmt: skip


MAPS = "7f00-7f01 r-xp 00000000 00:01 5                          {path}\n7f02-7f03 rw-p 00000000 00:00 0 \n"
WHEEL = "/opt/env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"


def test_the_version_is_told_from_the_wheel_beside_the_library(tmp_path: Path) -> None:
    (tmp_path / "root/opt/env/lib/python3.12/site-packages/nvidia_nccl_cu12-2.27.3.dist-info").mkdir(parents=True)
    fake_process(tmp_path / "proc", 600, MAPS.format(path=WHEEL))
    assert nccl_version_of(600, tmp_path / "proc") == (2, 27, 3)


def test_the_version_is_told_from_the_name_of_a_system_library(tmp_path: Path) -> None:
    fake_process(tmp_path / "proc", 600, MAPS.format(path="/usr/lib/x86_64-linux-gnu/libnccl.so.2.26.5"))
    assert nccl_version_of(600, tmp_path / "proc") == (2, 26, 5)


def test_the_version_is_told_from_conda(tmp_path: Path) -> None:
    (tmp_path / "root/opt/conda/conda-meta").mkdir(parents=True)
    (tmp_path / "root/opt/conda/conda-meta/nccl-2.24.3.1-hb92ee24_0.json").touch()
    fake_process(tmp_path / "proc", 600, MAPS.format(path="/opt/conda/lib/libnccl.so.2"))
    assert nccl_version_of(600, tmp_path / "proc") == (2, 24, 3)


def test_a_version_that_names_do_not_tell_is_none(tmp_path: Path) -> None:
    fake_process(tmp_path / "proc", 600, MAPS.format(path="/home/me/nccl/build/lib/libnccl.so.2"))
    assert nccl_version_of(600, tmp_path / "proc") is None
    assert nccl_version_of(601, tmp_path / "proc") is None
    assert parse_version("2.28.9+cuda13.0") == (2, 28, 9)
    assert parse_version("two") is None


def test_a_job_is_asked_at_its_own_address_and_its_version_is_heeded(tmp_path: Path, host_folder: Path) -> None:
    (tmp_path / "root/opt/env/lib/python3.12/site-packages/nvidia_nccl_cu13-2.28.9.dist-info").mkdir(parents=True)
    proc = tmp_path / "proc"
    with serving(answer_like_nccl) as (address, asked):
        ranks = [fake_process(proc, pid, MAPS.format(path=WHEEL), NCCL_RAS_ADDR=address) for pid in (600, 601)]
        items = probe_ras(ranks, host_folder, host="node1", timeout_s=30, proc=proc)
    assert [item.ok for item in items] == [True, True]
    assert len(asked) == 2


def test_a_job_with_a_crashing_version_on_any_rank_is_not_asked(tmp_path: Path, host_folder: Path) -> None:
    proc = tmp_path / "proc"
    with serving(answer_like_nccl) as (address, asked):
        ranks = [
            fake_process(proc, 600, MAPS.format(path="/usr/lib/libnccl.so.2.28.9"), NCCL_RAS_ADDR=address),
            fake_process(proc, 601, MAPS.format(path="/usr/lib/libnccl.so.2.27.3"), NCCL_RAS_ADDR=address),
        ]
        (item,) = probe_ras(ranks, host_folder, host="node1", timeout_s=30, proc=proc)
    assert asked == []
    assert item.error == "not asked: NCCL 2.27.3"


def test_a_job_without_nccl_has_no_service(tmp_path: Path, host_folder: Path) -> None:
    rank = fake_process(tmp_path / "proc", 600, MAPS.format(path="/usr/lib/libc.so.6"))
    (item,) = probe_ras([rank], host_folder, host="node1", proc=tmp_path / "proc")
    assert (item.ok, item.path) == (True, "")
    assert probe_ras([], host_folder, host="node1") == []


def test_a_service_that_is_off_or_in_another_network_is_not_looked_for(tmp_path: Path, host_folder: Path) -> None:
    proc = tmp_path / "proc"
    maps = MAPS.format(path="/usr/lib/libnccl.so.2.28.9")
    off = fake_process(proc, 600, maps, NCCL_RAS_ENABLE="0")
    (item,) = probe_ras([off], host_folder, host="node1", proc=proc)
    assert item.error == "the service is off"
    elsewhere = fake_process(proc, 601, maps)
    for name, namespace in (("self", "net:[1]"), ("601", "net:[2]")):
        (proc / name / "ns").mkdir(parents=True)
        (proc / name / "ns/net").symlink_to(namespace)
    (item,) = probe_ras([elsewhere], host_folder, host="node1", proc=proc)
    assert "container" in (item.error or "")


def test_an_empty_address_is_as_good_as_none(tmp_path: Path, host_folder: Path) -> None:
    proc = tmp_path / "proc"
    rank = fake_process(proc, 600, "", NCCL_RAS_ADDR="")
    (item,) = probe_ras([rank], host_folder, host="node1", proc=proc)
    assert item.ok
    assert "no process of this job has NCCL loaded" in (item.reason or "")
