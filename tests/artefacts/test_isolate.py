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
