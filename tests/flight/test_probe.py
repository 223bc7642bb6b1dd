"""Dumps that lie there and dumps on demand, of processes that are played by files."""

from __future__ import annotations

import bz2
import contextlib
import os
import pickle
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from torchtriage.artefacts.identity import identity_of
from torchtriage.artefacts.recognise import recognise
from torchtriage.bundle.processes import JobProcess
from torchtriage.flight.job_environment import environment_of_job
from torchtriage.flight.probe import probe_flight

if TYPE_CHECKING:
    from pathlib import Path

    from torchtriage.bundle.manifest import Item

UID = os.geteuid()
BOOT_S = 1_700_000_000
HZ = os.sysconf("SC_CLK_TCK")
STARTED_TICKS = 1000 * HZ
AFTER_NS = (BOOT_S + 2000) * 10**9
BEFORE_NS = (BOOT_S + 500) * 10**9


def dump(**more: Any) -> bytes:
    return pickle.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": [], **more}, protocol=2)


class Node:
    """A node with a /proc, a folder for the dumps and a bundle."""

    def __init__(self, tmp_path: Path) -> None:
        self.proc = tmp_path / "proc"
        self.proc.mkdir()
        (self.proc / "stat").write_text(f"cpu 1\nbtime {BOOT_S}\n", encoding="ascii")
        self.dumps = tmp_path / "dumps"
        self.dumps.mkdir()
        self.prefix = f"{self.dumps}/fr_"
        self.folder = tmp_path / "bundle" / "node1"
        self.folder.mkdir(parents=True)
        self.readers: dict[int, int] = {}
        self.answers: dict[int, list[bytes]] = {}

    def process(self, rank: int | None, *, number: int | None = None, **environment: str) -> JobProcess:
        pid = 4700 + (rank if rank is not None else number or 0)
        variables = {"TORCH_FR_DUMP_TEMP_FILE": self.prefix, "HOME": str(self.dumps), **environment}
        (self.proc / str(pid) / "fd").mkdir(parents=True)
        raw = b"\0".join(f"{name}={value}".encode() for name, value in variables.items() if value)
        (self.proc / str(pid) / "environ").write_bytes(raw + b"\0")
        return JobProcess(
            pid=pid, ppid=1, uid=UID, start_ticks=STARTED_TICKS, role="rank", rank=rank, local_rank=rank, world_size=2,
            rank_pid=None, job="job", environment=variables, command=("python",),
        )  # fmt: skip

    def loads_nccl(self, process: JobProcess) -> None:
        line = "7f00-7f01 r-xp 00000000 08:01 5    /usr/lib/libnccl.so.2\n"
        (self.proc / str(process.pid) / "maps").write_text(line, encoding="ascii")

    def lies(self, rank: int, data: bytes, mtime_ns: int) -> Path:
        path = self.dumps / f"fr_{rank}"
        path.write_bytes(data)
        os.utime(path, ns=(mtime_ns, mtime_ns))
        return path

    def pipe(self, rank: int, *answers: bytes) -> Path:
        """A pipe that a rank reads; asked, it writes these contents, one at each later look."""
        path = self.dumps / f"fr_{rank}.pipe"
        os.mkfifo(path)
        self.readers[rank] = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.answers[rank] = list(answers)
        return path

    def turn(self, _: float) -> None:
        """What happens while the collector waits: torch looks at its pipe, then writes."""
        for rank, reader in self.readers.items():
            if reader >= 0 and self._asked(reader):
                os.close(reader)
                self.readers[rank] = -1
            if self.readers[rank] < 0 and self.answers[rank]:
                (self.dumps / f"fr_{rank}").write_bytes(self.answers[rank].pop(0))

    def _asked(self, reader: int) -> bool:
        try:
            return bool(os.read(reader, 128))
        except BlockingIOError:
            return False

    def probe(self, *processes: JobProcess, timeout_s: float = 60) -> list[Item]:
        return probe_flight(processes, self.folder, host="node1", timeout_s=timeout_s, proc=self.proc, sleep=self.turn)

    def close(self) -> None:
        for reader in self.readers.values():
            if reader >= 0:
                os.close(reader)


@pytest.fixture
def node(tmp_path: Path) -> Any:
    node = Node(tmp_path)
    yield node
    node.close()


def brief(items: list[Item]) -> list[tuple[str, bool, int | None]]:
    return [(item.path, item.ok, item.rank) for item in items]


def test_dumps_that_lie_there_are_copied_with_their_time(node: Node) -> None:
    for rank in (0, 1):
        node.lies(rank, dump(rank=rank), AFTER_NS)
    items = node.probe(node.process(0), node.process(1))
    assert brief(items) == [
        ("node1/flight/nccl_trace_rank_0", True, 0),
        ("node1/flight/nccl_trace_rank_1", True, 1),
    ]
    copy = node.folder / "flight/nccl_trace_rank_1"
    assert copy.read_bytes() == dump(rank=1)
    assert copy.stat().st_mtime_ns == AFTER_NS
    assert copy.stat().st_mode & 0o777 == 0o600
    assert identity_of(items[1].path, trailing_number_is_rank=True).rank == 1


@pytest.mark.parametrize(
    ("name", "file"),
    [("XDG_CACHE_HOME", "torch/comm_lib_trace_rank_0"), ("HOME", ".cache/torch/comm_lib_trace_rank_0")],
)
def test_without_a_prefix_the_default_places_are_looked_at(node: Node, name: str, file: str) -> None:
    path = node.dumps / file
    path.parent.mkdir(parents=True)
    path.write_bytes(dump())
    items = node.probe(node.process(0, **{"TORCH_FR_DUMP_TEMP_FILE": "", name: str(node.dumps)}))
    assert [item.ok for item in items] == [True]
    assert items[0].command[2] == str(path)


def test_the_older_name_of_the_prefix_counts_too(node: Node) -> None:
    node.lies(0, dump(), AFTER_NS)
    process = node.process(0, TORCH_FR_DUMP_TEMP_FILE="", TORCH_NCCL_DEBUG_INFO_TEMP_FILE=node.prefix)
    assert [item.ok for item in node.probe(process)] == [True]


def test_a_rank_with_a_pipe_is_asked_and_its_older_dump_is_kept_apart(node: Node) -> None:
    node.lies(0, dump(n=1), AFTER_NS)
    node.pipe(0, dump(n=2))
    items = node.probe(node.process(0, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix))
    assert brief(items) == [
        ("node1/flight/nccl_trace_rank_0", True, 0),
        ("node1/flight/ondemand_nccl_trace_rank_0", True, 0),
    ]
    assert (node.folder / "flight/nccl_trace_rank_0").read_bytes() == dump(n=1)
    fresh = node.folder / "flight/ondemand_nccl_trace_rank_0"
    assert fresh.read_bytes() == dump(n=2)
    assert recognise(fresh.read_bytes(), fresh.name).kind == "flight_recorder"
    assert identity_of(items[1].path, trailing_number_is_rank=True).rank == 0
    assert items[1].command == ["tee", f"{node.prefix}0.pipe"]


def test_a_dump_is_taken_only_when_it_has_stopped_growing_and_is_whole(node: Node) -> None:
    whole = dump(text="x" * 1000)
    node.pipe(0, whole[:10], whole[:500], whole[:500], whole[:500], whole[:500], whole)
    node.probe(node.process(0, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix))
    assert (node.folder / "flight/ondemand_nccl_trace_rank_0").read_bytes() == whole


def test_one_rank_that_does_not_answer_leaves_the_others_dumps(node: Node) -> None:
    node.pipe(0)
    node.pipe(1, dump())
    ranks = [node.process(rank, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix) for rank in (0, 1)]
    items = node.probe(*ranks, timeout_s=0.5)
    assert brief(items) == [("", False, 0), ("node1/flight/ondemand_nccl_trace_rank_1", True, 1)]
    assert items[0].error == "no dump came"
    assert "interpreter's lock" in (items[0].reason or "")


def test_a_pipe_that_the_program_named_itself_is_found_among_its_open_files(node: Node) -> None:
    pipe = node.pipe(0, dump())
    process = node.process(None, number=9, TORCH_FR_DUMP_TEMP_FILE="")
    (node.proc / str(process.pid) / "fd/17").symlink_to(pipe)
    node.loads_nccl(process)
    assert brief(node.probe(process)) == [("node1/flight/ondemand_nccl_trace_rank_0", True, 0)]


@pytest.mark.parametrize(
    ("name", "with_nccl", "with_stem"),
    [("fr_0", False, False), ("commands_0", True, False), ("frames_0", True, False), ("fr_10", True, False),
     ("other_fr_0", True, True)],
)  # fmt: skip
def test_a_pipe_that_may_be_the_programs_own_is_never_written_to(
    node: Node, name: str, with_nccl: bool, with_stem: bool
) -> None:
    pipe = node.dumps / f"{name}.pipe"
    os.mkfifo(pipe)
    node.readers[99] = reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    node.answers[99] = []
    process = node.process(0, **({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": node.prefix} if with_stem else {}))
    (node.proc / str(process.pid) / "fd/17").symlink_to(pipe)
    if with_nccl:
        node.loads_nccl(process)
    (item,) = node.probe(process, timeout_s=0)
    assert os.read(reader, 1) == b""  # nobody has written
    if not with_stem:
        assert item.ok
        assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in (item.reason or "")


def test_a_pipe_that_nobody_reads_is_told(node: Node) -> None:
    os.close(node.readers.pop(0) if node.pipe(0) else -1)
    (item,) = node.probe(node.process(0, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix))
    assert not item.ok
    assert "nobody reads this pipe" in (item.reason or "")


def test_a_pipe_that_is_not_there_is_told(node: Node) -> None:
    (item,) = node.probe(node.process(0, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix))
    assert "no such pipe" in (item.reason or "")


def test_only_a_fifo_of_the_jobs_user_is_written_to(node: Node, tmp_path: Path) -> None:
    victim = node.dumps / "fr_0.pipe"
    victim.write_bytes(b"kept")
    (item,) = node.probe(node.process(0, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix))
    assert item.error == "it is not a FIFO"
    assert victim.read_bytes() == b"kept"
    (node.dumps / "fr_1.pipe").symlink_to(node.pipe(2))
    (item,) = node.probe(node.process(1, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix))
    assert not item.ok
    node.pipe(3)
    stranger = node.process(3, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix)
    stranger = JobProcess(**{**stranger.__dict__, "uid": UID + 1})
    (item,) = node.probe(stranger)
    assert "not to the job's user" in (item.error or "")
    node.turn(0)
    assert node.readers[3] >= 0  # nothing was written


def test_no_link_is_followed_and_no_other_users_file_is_read(node: Node, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (node.dumps / "fr_0").symlink_to(secret)
    (item,) = node.probe(node.process(0))
    assert (item.path, item.ok) == ("", False)
    node.lies(1, dump(), AFTER_NS)
    stranger = JobProcess(**{**node.process(1).__dict__, "uid": UID + 1})
    (item,) = node.probe(stranger)
    assert (item.path, item.ok) == ("", False)
    os.mkfifo(node.dumps / "fr_2")
    (item,) = node.probe(node.process(2))
    assert item.error == "it is not a regular file"
    assert not list(node.folder.rglob("*rank*"))


def test_a_dump_of_an_earlier_run_does_not_speak_for_this_one(node: Node) -> None:
    node.lies(0, dump(), BEFORE_NS)
    (item,) = node.probe(node.process(0))
    assert (item.path, item.ok) == ("", True)
    assert "of an earlier run" in (item.reason or "")


def test_a_dump_of_an_earlier_run_is_saved_packed_before_a_fresh_one_overwrites_it(node: Node) -> None:
    node.lies(0, dump(n=1), BEFORE_NS)
    node.pipe(0, dump(n=2))
    items = node.probe(node.process(0, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix))
    assert brief(items) == [
        ("node1/flight/earlier_run_rank_0.bz2", True, 0),
        ("node1/flight/ondemand_nccl_trace_rank_0", True, 0),
    ]
    packed = (node.folder / "flight/earlier_run_rank_0.bz2").read_bytes()
    assert bz2.decompress(packed) == dump(n=1)
    assert recognise(packed, "earlier_run_rank_0.bz2").kind != "flight_recorder"


class Server:
    """A worker server on a unix socket, in a thread of this process."""

    def __init__(self, path: Path, answers: dict[str, bytes]) -> None:
        self.asked: list[str] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.answers = answers
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    request = connection.recv(4096)
                    if not request:  # whoever connected saw who listens, and left
                        continue
                    handler = request.split(b" ")[1].decode().rpartition("/")[2]
                    self.asked.append(handler)
                    connection.sendall(self.answers.get(handler, NOT_FOUND))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)


NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"


def served(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def with_server(node: Node, rank: int, answers: dict[str, bytes]) -> tuple[JobProcess, Server]:
    path = node.dumps / f"worker-{rank}.sock"
    process = node.process(rank, TORCH_FR_DUMP_TEMP_FILE="", TORCH_WORKER_SERVER_SOCKET=str(path))
    # The kernel says who listens: this process.
    (node.proc / str(os.getpid())).symlink_to(node.proc / str(process.pid))
    return replace(process, pid=os.getpid()), Server(path, answers)


RECORD = b'{"version":"2.10","pg_config":{},"pg_status":{},"entries":[{"profiling_name":"gloo:all_reduce"}]}'
NO_RECORD = b'{"version":"2.10","pg_config":{},"pg_status":{},"entries":[]}'


def test_a_worker_server_is_asked_once_for_the_record_of_gloo(node: Node) -> None:
    process, server = with_server(node, 3, {"fr_trace_json": served(RECORD)})
    (item,) = node.probe(process)
    server.close()
    assert brief([item]) == [("node1/flight/ondemand_fr_trace_rank_3", True, 3)]
    assert item.command[-1] == "http://localhost/handler/fr_trace_json"
    kept = node.folder / "flight/ondemand_fr_trace_rank_3"
    assert kept.read_bytes() == RECORD
    assert recognise(RECORD, kept.name).kind == "flight_recorder"
    assert identity_of(item.path, trailing_number_is_rank=True).rank == 3
    assert server.asked == ["fr_trace_json"]


@pytest.mark.parametrize(
    ("nccl", "kept", "asked"),
    [
        (dump(entries=[{"profiling_name": "nccl:all_reduce"}]), ["ondemand_nccl_trace_rank_0"], 1),
        (dump(), ["ondemand_fr_trace_rank_0"], 2),
    ],
)
def test_of_a_rank_with_nccl_the_record_of_nccl_comes_first(
    node: Node, nccl: bytes, kept: list[str], asked: int
) -> None:
    answers = {"fr_trace_json": served(RECORD), "dump_nccl_trace_pickle": served(nccl)}
    process, server = with_server(node, 0, answers)
    node.loads_nccl(process)
    items = node.probe(process)
    server.close()
    assert [item.path.rpartition("/")[2] for item in items if item.path] == kept
    assert server.asked == ["dump_nccl_trace_pickle", "fr_trace_json"][:asked]


@pytest.mark.parametrize(
    ("answer", "error", "kept"),
    [
        (served(NO_RECORD), None, False),
        (NOT_FOUND, "the server answered 404", False),
        (b"SSH-2.0-x\r\n\r\n", "the answer is not that of a worker server", False),
        (b"x" * 40_000, "the answer is not that of a worker server", False),
        (served(RECORD)[:-5], "the answer ends early", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n" + RECORD * 99, "the record is larger", True),
    ],
)
def test_what_a_worker_server_answers_otherwise_is_told(
    node: Node, answer: bytes, error: str | None, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.flight.probe.MAX_DUMP_BYTES", 1000)
    process, server = with_server(node, 0, {"fr_trace_json": answer})
    (item,) = node.probe(process)
    server.close()
    assert (item.error or "").startswith(error or "")
    assert item.ok is (error is None)
    assert item.reason
    assert bool(item.path) is kept


def test_a_server_that_does_not_answer_costs_its_limit_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.flight.probe.SERVER_S", 0.1)
    process, server = with_server(node, 0, {})
    server.close()
    (node.dumps / "worker-0.sock").unlink()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(node.dumps / "worker-0.sock"))
        silent.listen()
        (item,) = node.probe(process)
    assert item.error == "no answer in time"


def test_only_a_socket_on_which_the_process_itself_listens_is_asked(node: Node) -> None:
    process, server = with_server(node, 0, {"fr_trace_json": served(RECORD)})
    other = replace(process, pid=4700)
    (item,) = node.probe(other)
    assert item.error == f"process {os.getpid()} of uid {UID} listens there"
    (item,) = node.probe(replace(process, uid=UID + 1))
    assert "not to the job's user" in (item.error or "")
    path = node.dumps / "worker-0.sock"
    path.rename(node.dumps / "moved")
    path.symlink_to(node.dumps / "moved")
    (item,) = node.probe(process)
    assert item.error == "it is not a socket"
    path.unlink()
    path.write_bytes(b"kept")
    (item,) = node.probe(process)
    assert item.error == "it is not a socket"
    server.close()
    assert server.asked == []


@pytest.mark.parametrize(("at", "size", "kept"), [(0, 1 << 40, 0), (1 << 16, 1 << 40, 1 << 16)])
def test_a_hole_in_a_dump_is_not_copied_and_told(node: Node, at: int, size: int, kept: int) -> None:
    path = node.dumps / "fr_0"
    with path.open("wb") as file:
        file.write(b"x" * at)
        file.truncate(size)
    os.utime(path, ns=(AFTER_NS, AFTER_NS))
    (item,) = node.probe(node.process(0))
    assert (item.ok, item.error) == (False, f"of its {size} bytes those from {kept} on were never written")
    assert (node.folder / "flight/nccl_trace_rank_0").stat().st_size == kept


def test_when_it_is_stopped_nobody_is_asked_or_waited_for(node: Node) -> None:
    stop = threading.Event()
    stop.set()
    node.lies(0, dump(), AFTER_NS)
    node.pipe(0)
    process = node.process(0, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=node.prefix)
    items = probe_flight([process], node.folder, host="node1", proc=node.proc, cancelled=stop)
    assert brief(items) == [("node1/flight/nccl_trace_rank_0", True, 0)]
    assert os.read(node.readers[0], 1) == b""  # nobody has written


def test_dumps_that_are_cut_count_against_what_all_may_take(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.flight.probe.MAX_DUMP_BYTES", 10)
    monkeypatch.setattr("torchtriage.flight.probe.MAX_ALL_BYTES", 15)
    for rank in range(3):
        node.lies(rank, dump(), AFTER_NS)
    node.probe(*(node.process(rank) for rank in range(3)))
    assert sorted(path.stat().st_size for path in (node.folder / "flight").iterdir()) == [0, 5, 10]


def test_a_process_without_torch_or_without_a_rank_is_told_to_be_so(node: Node, tmp_path: Path) -> None:
    process = node.process(0)
    maps = node.proc / str(process.pid) / "maps"
    maps.write_text("7f-8f r 0 0 5   /usr/bin/python3.11\n", encoding="utf-8")
    checked = environment_of_job(process, proc=node.proc)
    assert checked.dumps is None
    (sentence,) = checked.sentences
    assert "no libtorch is mapped), and it is rank 0: it has not imported torch yet" in sentence
    (sentence,) = environment_of_job(replace(process, rank=None), proc=node.proc).sentences
    assert "no variable of its environment tells a rank: it is no training process" in sentence
    maps.unlink()
    (sentence,) = environment_of_job(process, proc=node.proc).sentences
    assert "cannot be seen" in sentence


def test_a_dump_without_bound_is_cut(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.flight.probe.MAX_DUMP_BYTES", 10)
    node.lies(0, dump(), AFTER_NS)
    (item,) = node.probe(node.process(0))
    assert (item.ok, item.path) == (False, "node1/flight/nccl_trace_rank_0")
    assert (node.folder / "flight/nccl_trace_rank_0").stat().st_size == 10


def test_a_job_with_neither_dump_nor_pipe_is_told_how_to_have_them(node: Node) -> None:
    (item,) = node.probe(node.process(0), node.process(1))
    assert (item.ok, item.path, item.rank) == (True, "", None)
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in (item.reason or "")
    assert node.probe() == []


def test_paths_are_followed_as_the_process_in_its_container_sees_them(node: Node, tmp_path: Path) -> None:
    root = tmp_path / "container"
    (root / "real/dumps").mkdir(parents=True)
    (root / "data").symlink_to("/real")
    (root / "real/dumps/fr_0").write_bytes(dump())
    process = node.process(0, TORCH_FR_DUMP_TEMP_FILE="/data/dumps/fr_")
    (node.proc / str(process.pid) / "root").symlink_to(root)
    for name, namespace in (("self", "mnt:[1]"), (str(process.pid), "mnt:[2]")):
        (node.proc / name / "ns").mkdir(parents=True)
        (node.proc / name / "ns/mnt").symlink_to(namespace)
    assert brief(node.probe(process)) == [("node1/flight/nccl_trace_rank_0", True, 0)]


def test_the_environment_of_a_running_job_is_checked_with_its_own_torch_and_user(node: Node, tmp_path: Path) -> None:
    site = tmp_path / "root/env/site-packages"
    (site / "torch-2.6.0+cu124.dist-info").mkdir(parents=True)
    process = node.process(3, TORCH_FR_BUFFER_SIZE="2000")
    folder = node.proc / str(process.pid)
    (folder / "maps").write_text(
        "7f00-7f01 r-xp 0 00:01 5   /env/site-packages/torch/lib/libtorch_cpu.so\n"
        "7f02-7f03 r-xp 0 00:01 6   /usr/lib/libnccl.so.2.21.5\n",
        encoding="utf-8",
    )
    (folder / "root").symlink_to(tmp_path / "root")
    sentences = environment_of_job(process, proc=node.proc).sentences
    assert any("torch 2.6 does not know TORCH_FR_BUFFER_SIZE" in sentence for sentence in sentences)
    assert sentences[-1].startswith(f"Remark: this process's dumps go to {node.prefix}3")


def test_a_gloo_job_is_told_that_no_watchdog_dumps(node: Node, tmp_path: Path) -> None:
    (tmp_path / "root/env/site-packages/torch-2.13.0.dist-info").mkdir(parents=True)
    process = node.process(0)
    folder = node.proc / str(process.pid)
    (folder / "maps").write_text("7f-8f r 0 0 5   /env/site-packages/torch/lib/libtorch_cpu.so\n", encoding="utf-8")
    (folder / "root").symlink_to(tmp_path / "root")
    assert any("uses gloo" in sentence for sentence in environment_of_job(process, proc=node.proc).sentences)
