import json
from pathlib import Path
from typing import Any

import pytest

from torchtriage.artefacts.inputs import Artefact
from torchtriage.bundle.proc_analyze import ProcFindings, analyze
from torchtriage.bundle.proc_model import CgroupMemory, ProcFacts, WaitCall
from torchtriage.bundle.proc_read import read_task
from torchtriage.errors import UnreadableError
from torchtriage.signals import SIGNALS, SignalSpec

NFS = WaitCall(
    number=0, name="read", path="/data/a.bin", path_kind="file", file_system="nfs4", network_file_system=True
)
FIFO = WaitCall(number=257, name="openat", path="/tmp/f", path_kind="fifo", file_system="ext4")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "stopped",
        "uninterruptible_on_network_fs",
        "blocked_in_open_of_fifo",
        "near_memory_limit",
        "no_cpu_progress",
    ):
        if f"proc.{name}" not in SIGNALS:
            monkeypatch.setitem(SIGNALS, f"proc.{name}", SignalSpec(meaning=name, health="neutral"))


def judged(folder: Path, *looks: dict[str, Any]) -> ProcFindings:
    records = []
    for number, look in enumerate(looks):
        base: dict[str, Any] = {"pid": 100, "start_ticks": 5, "ppid": 1, "name": "python3", "role": "rank", "rank": 0}
        base |= {"time_s": 1000.0, "state": "S", "cpu_s": 50.0, "n_threads": 9, "host": "node1"}
        path = folder / f"{number}.json"
        path.write_text(ProcFacts(**(base | look)).model_dump_json(), encoding="utf-8")
        records.append((path.name, read_task(str(path), None, {"format": "json"})))
    return analyze(records)


def names(found: ProcFindings) -> list[tuple[str, list[int]]]:
    return [(signal.name, signal.scope.ranks) for signal in found.signals]


def test_a_stopped_rank_is_told_with_its_tracer(tmp_path: Path) -> None:
    found = judged(tmp_path, {}, {"pid": 101, "rank": 1, "state": "t", "tracer_pid": 77, "tracer_name": "gdb"})
    assert names(found) == [("proc.stopped", [1])]
    (signal,) = found.signals
    assert signal.facts["tracer_name"] == "gdb"
    assert [(e.where, e.quote) for e in signal.evidence] == [("/state", '"t"'), ("/tracer_pid", "77")]
    assert (found.rank_of_pid, found.ranks) == ({100: 0, 101: 1}, {0, 1})


def test_a_process_that_our_own_dumper_held_is_not_stopped(tmp_path: Path) -> None:
    assert names(judged(tmp_path, {"state": "t", "tracer_pid": 7, "tracer_is_ours": True})) == []


def test_a_process_that_runs_again_in_the_second_look_is_not_stopped(tmp_path: Path) -> None:
    assert names(judged(tmp_path, {"state": "T"}, {"state": "S", "time_s": 1000.5})) == []


def test_a_frozen_control_group_stops_its_processes(tmp_path: Path) -> None:
    memory = CgroupMemory(version=2, path="/pod", current_bytes=5, frozen=True)
    assert names(judged(tmp_path, {"memory": memory})) == [("proc.stopped", [0])]


def test_a_read_on_a_network_file_system_that_lasts_is_told_with_its_path(tmp_path: Path) -> None:
    look = {"state": "D", "call": NFS, "wchan": "rpc_wait_bit_killable", "rank": 3}
    found = judged(tmp_path, look, {**look, "time_s": 1003.0, "cpu_s": 51.0})
    assert names(found) == [("proc.uninterruptible_on_network_fs", [3])]
    facts = found.signals[0].facts
    assert (facts["path"], facts["file_system"], facts["looks"]) == ("/data/a.bin", "nfs4", 2)


def test_reads_of_two_files_or_a_local_one_are_no_stuck_read(tmp_path: Path) -> None:
    other = NFS.model_copy(update={"path": "/data/b.bin"})
    later = {"state": "D", "call": other, "time_s": 1003.0, "cpu_s": 51.0}
    assert names(judged(tmp_path, {"state": "D", "call": NFS}, later)) == []
    local = NFS.model_copy(update={"network_file_system": False})
    assert names(judged(tmp_path, {"state": "D", "call": local})) == []


def test_an_open_of_a_fifo_that_nobody_writes_is_told(tmp_path: Path) -> None:
    found = judged(tmp_path, {"call": FIFO, "wchan": "wait_for_partner", "role": "dataloader worker"})
    assert names(found) == [("proc.blocked_in_open_of_fifo", [0])]
    assert (found.signals[0].facts["role"], found.signals[0].facts["path"]) == ("dataloader worker", "/tmp/f")


@pytest.mark.parametrize(
    ("name", "path", "path_kind", "kind", "writes"),
    [
        ("read", "pipe:[12]", "pipe", "pipe", False),
        ("write", "pipe:[12]", "pipe", "pipe", True),
        ("read", "/tmp/f", "fifo", "pipe", False),
        ("recvfrom", "socket:[9]", "socket", "socket", False),
        ("read", "socket:[9]", "socket", "socket", False),
        ("read", "/dev/pts/3", "file", "terminal", False),
    ],
)
def test_a_read_or_write_that_waits_for_somebody_else_is_told_from_one_of_a_file(
    tmp_path: Path, name: str, path: str, path_kind: str, kind: str, writes: bool
) -> None:
    look = {"call": {"number": 0, "name": name, "path": path, "path_kind": path_kind}, "rank": 3}
    found = judged(tmp_path, look, {**look, "time_s": 1003.0, "cpu_s": 51.0})
    assert names(found) == [("proc.waits_for_other_end", [3])]
    facts = found.signals[0].facts
    assert (facts["kind"], facts["writes"], facts["path"], facts["looks"]) == (kind, writes, path, 2)


@pytest.mark.parametrize(
    ("call", "role", "later"),
    [
        ({"name": "read", "path": "/data/a.bin", "path_kind": "file"}, "rank", {}),
        ({"name": "epoll_wait", "path": "anon_inode:[eventpoll]", "path_kind": "anonymous"}, "rank", {}),
        ({"name": "read", "path": "pipe:[12]", "path_kind": "pipe"}, "helper", {}),
        ({"name": "read", "path": "pipe:[12]", "path_kind": "pipe"}, "rank", {"path": "pipe:[13]"}),
    ],
)
def test_a_read_of_a_file_or_by_a_helper_or_of_two_pipes_waits_for_nobody_in_particular(
    tmp_path: Path, call: dict[str, str], role: str, later: dict[str, str]
) -> None:
    first = {"call": {"number": 0, **call}, "role": role}
    second = {"call": {"number": 0, **call, **later}, "role": role, "time_s": 1003.0, "cpu_s": 51.0}
    assert names(judged(tmp_path, first, second)) == []


def test_ranks_without_cpu_time_between_two_looks_are_told_together(tmp_path: Path) -> None:
    looks = [
        {
            "pid": 100 + rank,
            "rank": rank,
            "time_s": 1000.0 + 3 * look,
            "cpu_s": 50.0 + look * (3.0 if rank == 2 else 0.0),
        }
        for look in (0, 1)
        for rank in range(4)
    ]
    found = judged(tmp_path, *looks)
    assert names(found) == [("proc.no_cpu_progress", [0, 1, 3])]
    assert found.signals[0].facts == {"seconds": 3.0, "n_ranks": 4, "all_ranks": False}


def test_a_pid_that_was_given_again_is_another_process(tmp_path: Path) -> None:
    assert names(judged(tmp_path, {}, {"start_ticks": 6, "time_s": 1003.0})) == []


def test_memory_near_the_limit_counts_without_cache_and_names_all_ranks_under_it(tmp_path: Path) -> None:
    full = CgroupMemory(version=2, path="/pod", limit_bytes=1000, current_bytes=990, inactive_file_bytes=10)
    found = judged(tmp_path, {"memory": full}, {"memory": full, "pid": 101, "rank": 1})
    assert names(found) == [("proc.near_memory_limit", [0, 1])]
    assert found.signals[0].facts["share"] == 0.98
    cache = full.model_copy(update={"inactive_file_bytes": 400})
    assert names(judged(tmp_path, {"memory": cache})) == []


def test_quotes_can_be_found_again(tmp_path: Path) -> None:
    from torchtriage.artefacts.evidence import quote_occurs

    found = judged(tmp_path, {"state": "D", "call": NFS})
    path = tmp_path / "0.json"
    artefact = Artefact(
        name="0.json", path=path, kind="proc_facts", format="json", compression=None, size_bytes=path.stat().st_size
    )
    assert found.signals[0].evidence
    assert all(quote_occurs(evidence, artefact) for evidence in found.signals[0].evidence)


@pytest.mark.parametrize("text", ["[]", "{}", '{"pid": "x", "state": "S"}', '{"pid": 5, "state": 7}', '{"pid": -1}'])
def test_what_is_no_fact_sheet_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableError):
        read_task(str(path), None, {"format": "json"})


def test_fields_of_another_type_count_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    broken = {"pid": 5, "state": "D", "call": "read", "memory": [1], "rank": True, "cpu_s": "9", "time_s": 1e300}
    path.write_text(json.dumps(broken), encoding="utf-8")
    facts = read_task(str(path), None, {"format": "json"})
    assert [facts[key] for key in ("call", "memory", "rank", "cpu_s", "time_s")] == [None] * 5
    assert analyze([("x.json", facts)]).signals == []
