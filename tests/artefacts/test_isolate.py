import gzip
import os
import pickle
import resource
import time
from pathlib import Path

import pytest

from torchtriage.artefacts.inputs import Artefact, open_inputs
from torchtriage.artefacts.isolate import Job, read_isolated, run_jobs, view_value
from torchtriage.errors import UnreadableError

GOOD = pickle.dumps({"version": "2.10", "pg_config": {"0": {"desc": "default_pg"}}, "pg_status": {}, "entries": []}, 2)
HEAD = b"\x80\x02}(X\x09\x00\x00\x00pg_config"


class Touches:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def _hash_bomb() -> bytes:
    """A tuple of a tuple of ... forty deep, shared at each level, used as a key: its hash takes 2**40 steps."""
    nest = b")" + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(40))
    return HEAD + b"N" + nest + b"Nu."


HOSTILE = {
    "runs a command": pickle.dumps({"pg_config": 1, "entries": Touches()}),
    "asks for 64 GB in nine bytes": b"\x80\x02X\x09\x00\x00\x00pg_configr\xff\xff\xff\x7f.",
    "asks for a string of 4 GB": b"\x80\x02X\x09\x00\x00\x00pg_configX\xff\xff\xff\xff.",
    "asks for bytes of 1 EB": b"\x80\x04X\x09\x00\x00\x00pg_config\x8e" + (1 << 60).to_bytes(8, "little") + b".",
    "is nested a million deep": b"\x80\x02}X\x09\x00\x00\x00pg_config" + b"]" * 1_000_000 + b"a" * 999_999 + b"s.",
    "is a hash that never ends": _hash_bomb(),
    "holds a huge integer": HEAD + b"\x8b" + (1_000_000).to_bytes(4, "little") + b"\x01" * 1_000_000 + b"u.",
}  # fmt: skip


def _artefact(path: Path, content: bytes) -> Artefact:
    path.write_bytes(content)
    with open_inputs([str(path)]) as inputs:
        (artefact,) = inputs.artefacts
    return artefact


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_costs_that_file_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    started = time.monotonic()
    bad = _artefact(tmp_path / "bad", HOSTILE[name])
    good = _artefact(tmp_path / "good", GOOD)
    outcomes = run_jobs([Job("view", a, {"pointer": "/pg_config"}) for a in (bad, good, good, good)])
    assert [o.result for o in outcomes[1:]] == ['{"0":{"desc":"default_pg"}}'] * 3
    assert outcomes[0].error or len(str(outcomes[0].result)) <= 1 << 20
    assert not (tmp_path / "pwned").exists()
    assert time.monotonic() - started < 60
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before_kb, 400_000)


def test_an_error_says_what_was_refused_and_that_nothing_ran(tmp_path: Path) -> None:
    artefact = _artefact(tmp_path / "bad", HOSTILE["runs a command"])
    with pytest.raises(UnreadableError, match=r"asks to import posix\.system; nothing was imported or run"):
        view_value(artefact, "/entries")


def test_a_worker_can_write_no_file(tmp_path: Path) -> None:
    # The limit on file size keeps even a broken reader from writing; a view of a good file works under it.
    artefact = _artefact(tmp_path / "good", GOOD)
    assert read_isolated("view", []) == []
    assert view_value(artefact, "/version") == '"2.10"'
    assert sorted(p.name for p in tmp_path.iterdir()) == ["good"]


def test_progress_reaches_the_number_of_files(tmp_path: Path) -> None:
    artefact = _artefact(tmp_path / "good", GOOD)
    seen: list[tuple[int, int]] = []
    run_jobs([Job("view", artefact, {"pointer": ""})] * 5, lambda done, total: seen.append((done, total)))
    assert sorted(seen) == [(i, 5) for i in range(1, 6)]


def test_files_that_stall_leave_less_time_to_the_next_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.artefacts.isolate.WALL_SECONDS_BASE", 3.0)
    monkeypatch.setattr("torchtriage.artefacts.isolate.WALL_SECONDS_PER_MB", 1.0)
    monkeypatch.setattr("torchtriage.artefacts.isolate.MIN_WALL_SECONDS_BASE", 0.5)
    keys = b"".join(b"\x8a\x10" + (i * (2**61 - 1)).to_bytes(16, "little") + b"N" for i in range(1, 40_000))
    bomb = _artefact(tmp_path / "bad", b"\x80\x04\x8c\x09pg_config}(" + keys + b"u.")
    good = _artefact(tmp_path / "good", GOOD)
    started = time.monotonic()
    outcomes = run_jobs([Job("view", a, {"pointer": "/version"}) for a in (*[bomb] * 4, good)])
    assert all(o.error for o in outcomes[:4])
    assert outcomes[4].result == '"2.10"'
    assert time.monotonic() - started < 15


def test_when_the_time_for_all_is_used_up_the_rest_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.artefacts.isolate.TOTAL_WALL_SECONDS_BASE", -1.0)
    good = _artefact(tmp_path / "good", GOOD)
    (outcome,) = run_jobs([Job("view", good, {"pointer": ""})])
    assert outcome.error is not None
    assert "took all the time" in outcome.error


def test_a_bomb_of_empty_lists_costs_no_gigabyte(tmp_path: Path) -> None:
    content = gzip.compress(b'{"traceEvents":[' + b"[]," * 30_000_000 + b"0]}", 1)
    with pytest.raises(UnreadableError, match="memory"):
        view_value(_artefact(tmp_path / "t.json.gz", content), "/traceEvents/0")


def test_a_pickle_of_more_than_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.write_bytes(GOOD)
    os.truncate(path, 3 << 29)
    with open_inputs([str(path)]) as inputs, pytest.raises(UnreadableError, match="larger than 1 GiB"):
        view_value(inputs.artefacts[0], "/version")


def test_that_a_long_read_goes_on_is_told_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.artefacts.isolate._TELL_EVERY_S", 0.001)
    told: list[tuple[int, int]] = []
    job = Job("view", _artefact(tmp_path / "dump", GOOD), {"pointer": ""})
    run_jobs([job], lambda done, total: told.append((done, total)))
    assert told[0] == (0, 1)
    assert (1, 1) in told
