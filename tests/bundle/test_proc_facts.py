import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bundle.proc_tree import ProcTree
from torchtriage.bundle import system_calls
from torchtriage.bundle.memory_limits import memory_of
from torchtriage.bundle.mounts import is_network, type_of
from torchtriage.bundle.proc_facts import cpu_used_s, facts_of, write_facts
from torchtriage.bundle.proc_files import each
from torchtriage.bundle.proc_model import ProcFacts
from torchtriage.bundle.processes import find_processes

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc of this machine")
_MOUNTS = """22 1 8:1 / / rw - ext4 /dev/vda rw
23 22 0:9 / /data\\040sets rw shared:1 - nfs4 store:/x rw
24 22 0:9 / /data\\040sets/local rw - xfs /dev/vdb rw
25 22 0:30 / /lus rw - lustre mgs:/l rw
"""


@contextlib.contextmanager
def running(*command: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def facts_when(pid: int, condition: Callable[[ProcFacts], bool]) -> ProcFacts:
    deadline = time.monotonic() + 20
    pause = threading.Event()
    while time.monotonic() < deadline:
        facts = facts_of(pid)
        if facts is not None and condition(facts):
            return facts
        pause.wait(0.01)
    raise AssertionError(f"never so: {facts_of(pid)}")


@linux
def test_a_sleeping_process_is_told_with_its_call_and_its_memory() -> None:
    with running("sleep", "60") as process:
        facts = facts_when(process.pid, lambda f: f.call is not None and f.name == "sleep" and f.state == "S")
    assert facts.call is not None
    assert facts.call.name in ("clock_nanosleep", "nanosleep")
    assert (facts.command, facts.n_threads, facts.tracer_pid) == (["sleep", "60"], 1, 0)
    assert facts.thread_states == {"S": 1}
    assert facts.rss_bytes
    assert facts.runs_since_s is not None
    assert facts.runs_since_s < 60
    assert facts.ppid == os.getpid()


@linux
def test_a_stopped_process_is_told_as_stopped() -> None:
    with running("sleep", "60") as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert facts_when(process.pid, lambda f: f.state == "T").state == "T"


@linux
def test_a_process_that_opens_a_fifo_names_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with running("cat", "pipe", cwd=tmp_path) as process:
        facts = facts_when(process.pid, lambda f: f.call is not None and f.call.path_kind == "fifo")
    assert facts.wchan == "wait_for_partner"
    assert facts.call is not None
    assert (facts.call.name, facts.call.path, facts.call.network_file_system) == (
        "openat",
        str(tmp_path / "pipe"),
        False,
    )


@linux
def test_a_process_that_reads_a_pipe_or_a_fifo_is_told_apart_from_one_that_reads_a_file(tmp_path: Path) -> None:
    with running("cat", stdin=subprocess.PIPE) as process:
        facts = facts_when(process.pid, lambda f: f.call is not None and f.call.name == "read")
        assert facts.call is not None
        assert facts.call.path_kind == "pipe"
        assert process.stdin is not None
        process.stdin.close()
    os.mkfifo(tmp_path / "pipe")
    with running("cat", str(tmp_path / "pipe")) as process, (tmp_path / "pipe").open("wb"):
        facts = facts_when(process.pid, lambda f: f.call is not None and f.call.name == "read")
        assert facts.call is not None
        assert (facts.call.path, facts.call.path_kind) == (str(tmp_path / "pipe"), "fifo")


@linux
def test_cpu_time_between_two_looks_is_told_for_one_process_only() -> None:
    with running(sys.executable, "-c", "while True: pass") as process:
        first = facts_when(process.pid, lambda f: f.state == "R" and f.cpu_s > 0)
        second = facts_when(process.pid, lambda f: f.cpu_s > first.cpu_s)
    used = cpu_used_s(first, second)
    assert used is not None
    assert used > 0
    assert cpu_used_s(first, second.model_copy(update={"start_ticks": 1})) is None


@linux
def test_a_process_that_is_gone_has_no_facts_and_a_zombie_some() -> None:
    process = subprocess.Popen(["true"])
    facts = facts_when(process.pid, lambda f: f.state == "Z")
    assert (facts.call, facts.rss_bytes, facts.command) == (None, None, [])
    process.wait()
    assert facts_of(process.pid) is None


@linux
def test_facts_are_written_under_the_names_of_the_dumps(tmp_path: Path) -> None:
    folder = tmp_path / "node1" / "proc"
    with running("sleep", "60") as process, running("sleep", "60") as ended:
        found = find_processes(own_pid=os.getpid(), pids=[process.pid, ended.pid])
        ended.kill()
        ended.wait()
        wanted = [each for each in found if each.pid in (process.pid, ended.pid)]
        items = {item.pid: item for item in write_facts(wanted, folder, host="node1")}
        again = write_facts([w for w in wanted if w.pid == process.pid], folder / "again", host="node1")
    name = f"pid{process.pid}.json"
    assert items[process.pid].path == f"node1/proc/{name}"
    assert [item.path for item in again] == [f"node1/proc/again/{name}"]
    assert (items[ended.pid].ok, items[ended.pid].error) == (False, "no such process")
    facts = json.loads((folder / name).read_text(encoding="utf-8"))
    assert (facts["proc_facts"], facts["pid"], facts["host"], facts["role"]) == ("1", process.pid, "node1", "rank")


def test_calls_are_named_on_both_architectures_and_negative_descriptors_are_none() -> None:
    text = "257 0xffffff9c 0x7f0000001000 0x0 0x0 0x0 0x0 0x7ffe 0x7f00"
    call = system_calls.parse(text, "x86_64")
    assert call == system_calls.SystemCall(257, "openat", None, 0x7F0000001000)
    assert system_calls.parse(text.replace("257", "56"), "aarch64") == system_calls.SystemCall(
        56, "openat", None, 0x7F0000001000
    )
    assert system_calls.parse("0 0x5 0x1 0x2 0x0 0x0 0x0 0x7ffe 0x7f00", "x86_64") == system_calls.SystemCall(
        0, "read", 5, None
    )
    assert system_calls.parse("499 0x5 0x1 0x2 0x0 0x0 0x0 0x1 0x2", "x86_64") == system_calls.SystemCall(
        499, None, None, None
    )


@pytest.mark.parametrize("text", ["", "running\n", "-1 0x7ffe 0x7f00", "0 zz 0x1 0x2 0x0 0x0 0x0 0x1 0x2", "0 0x1"])
def test_a_thread_outside_of_calls_has_none(text: str) -> None:
    assert system_calls.parse(text, "x86_64") is None


@pytest.mark.parametrize(
    ("path", "file_system"),
    [
        ("/etc/x", "ext4"),
        ("/data sets/a", "nfs4"),
        ("/data sets/local/a", "xfs"),
        ("/data setsX/a", "ext4"),
        ("/lus", "lustre"),
    ],
)
def test_the_mount_of_a_path_is_the_longest_one_that_holds_it(path: str, file_system: str) -> None:
    assert type_of(path, _MOUNTS) == file_system


def test_network_file_systems_are_told_from_those_of_the_node() -> None:
    assert all(map(is_network, ("nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "9p", "fuse.s3fs", "fuse")))
    assert not any(map(is_network, ("ext4", "xfs", "tmpfs", "overlay", "fuseblk", "fusectl", "fuse.overlayfs")))


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_read_that_hangs_on_a_network_file_system_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    tree = ProcTree(tmp_path)
    pid = tree.add(state="D")
    folder = tmp_path / str(pid)
    number = 0 if machine == "x86_64" else 63
    (folder / "syscall").write_text(f"{number} 0x5 0x1 0x2 0x0 0x0 0x0 0x7ffe 0x7f00\n", encoding="utf-8")
    (folder / "wchan").write_text("rpc_wait_bit_killable", encoding="utf-8")
    (folder / "mountinfo").write_text(_MOUNTS, encoding="utf-8")
    (folder / "fd").mkdir()
    (folder / "fd" / "5").symlink_to("/data sets/part\x1b[31m-3.bin")
    facts = facts_of(pid, tmp_path)
    assert facts is not None
    assert facts.call is not None
    assert facts.call.model_dump() == {
        "number": number,
        "name": "read",
        "path": "/data sets/part-3.bin",
        "path_kind": "file",
        "file_system": "nfs4",
        "network_file_system": True,
    }
    assert (facts.state, facts.cpu_s, facts.n_threads) == ("D", 3.0, 3)


def test_the_tightest_memory_limit_counts(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    for name, limit, current in (("", "max", "900"), ("/pod", "800", "700"), ("/pod/box", "max", "600")):
        folder = mount / name.strip("/")
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "memory.max").write_text(f"{limit}\n", encoding="utf-8")
        (folder / "memory.current").write_text(f"{current}\n", encoding="utf-8")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 44\n", encoding="utf-8")
        (folder / "memory.events").write_text("oom 3\noom_kill 2\n", encoding="utf-8")
        (folder / "cgroup.events").write_text("populated 1\nfrozen 0\n", encoding="utf-8")
    process = tmp_path / "7"
    process.mkdir()
    (process / "cgroup").write_text("1:name=systemd:/\n0::/pod/box\n", encoding="utf-8")
    (process / "mountinfo").write_text(f"31 23 0:28 / {mount} rw - cgroup2 cgroup2 rw\n", encoding="utf-8")
    memory = memory_of(str(process))
    assert memory is not None
    assert memory.model_dump() == {
        "version": 2,
        "path": "/pod",
        "limit_bytes": 800,
        "current_bytes": 700,
        "inactive_file_bytes": 44,
        "oom_kills": 2,
        "frozen": False,
    }


def test_version_1_of_control_groups_is_read_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "cg" / "box"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n", encoding="utf-8")
    (folder / "memory.usage_in_bytes").write_text("600\n", encoding="utf-8")
    process = tmp_path / "7"
    process.mkdir()
    (process / "cgroup").write_text("4:cpu,memory:/docker/box\n0::/\n", encoding="utf-8")
    mounted = f"31 23 0:28 /docker {tmp_path / 'cg'} rw - cgroup cgroup rw,memory\n"
    (process / "mountinfo").write_text(mounted, encoding="utf-8")
    memory = memory_of(str(process))
    assert memory is not None
    assert (memory.version, memory.limit_bytes, memory.current_bytes) == (1, None, 600)


def test_a_read_that_does_not_return_is_given_up_and_the_others_are_done() -> None:
    release = threading.Event()

    def work(key: int) -> int:
        if key == 2:
            release.wait(30)
        return key * 10

    done, stuck = each([1, 2, 3, 4], work, 0.05)
    release.set()
    assert (done, stuck) == ({1: 10, 3: 30, 4: 40}, [2])
