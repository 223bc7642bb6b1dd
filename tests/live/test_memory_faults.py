"""Memory faults on demand: the truth names what exists, and every program runs, small and on a CPU."""

from __future__ import annotations

import ast
import importlib.util
from typing import TYPE_CHECKING

import pytest
from faults.memory.record import HERE, Recorder, load_faults, record_all

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = load_faults()
JOB = HERE / "job"
PLAYBOOK = HERE.parents[2] / "playbook"
KINDS = {"activation_peak", "single_large_allocation", "optimizer_state", "leak", "fragmentation", "other_process",
         "history_truncated"}  # fmt: skip
IN_EVERY_RUN = "healthy-first-steps"


def _functions(path: Path) -> set[str]:
    return {
        node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    }


def _places(truth: dict[str, object], key: str) -> list[str]:
    found = truth.get(key, [])
    return [found] if isinstance(found, str) else list(found)  # type: ignore[call-overload]


def test_every_fault_has_a_program_and_a_truth_that_the_playbook_knows() -> None:
    modes = {path.stem for path in PLAYBOOK.glob("*/*.md")} | {"healthy", "insufficient-evidence"}
    programs = {name for path in JOB.glob("*.py") for name in _functions(path)}

    for fault in FAULTS:
        truth = dict(fault.truth)
        assert fault.program in programs, fault.name
        assert {truth["failure_mode"], *truth.get("acceptable", [])} <= modes, fault.name
        assert set(truth["kinds"]) <= KINDS, fault.name
        assert bool(truth["kinds"]) == (truth["failure_mode"] != "healthy"), fault.name


def test_every_place_that_a_truth_names_is_a_function_of_the_job() -> None:
    for fault in FAULTS:
        truth = dict(fault.truth)
        for place in [*_places(truth, "call_site"), *_places(truth, "held_by")]:
            file, function = place.split(":")
            assert function in _functions(JOB / file), (fault.name, place)


def test_a_job_is_expected_to_fail_where_it_is_said_to_run_out_of_memory() -> None:
    for fault in FAULTS:
        assert bool(fault.out_of_memory) == (fault.ends == "out_of_memory"), fault.name
        assert set(fault.out_of_memory) <= set(range(fault.ranks)), fault.name


def test_no_name_in_the_job_gives_a_fault_away() -> None:
    telling = {
        "fault",
        "fragment",
        "fragmentation",
        "hold",
        "huge",
        "keep",
        "leak",
        "oom",
        "strand",
        "stranded",
        "waste",
    }
    names = {name for path in JOB.glob("*.py") for name in _functions(path)}

    assert not [name for name in names if telling & set(name.lower().split("_"))]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="runs training programs: needs torch")
@pytest.mark.xdist_group("live")
@pytest.mark.parametrize(
    "name",
    [
        # Compiling takes a minute and more on a CPU.
        name if name == IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(fault.name for fault in FAULTS if not fault.long)
    ],
)
def test_a_program_runs_without_a_gpu_or_says_that_it_cannot(name: str, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    recorder = Recorder(tmp_path / "out", JOB, tmp_path / "scratch", "cpu")

    rows = record_all(recorder, [fault for fault in FAULTS if fault.name == name], 1)

    assert not {"problems", "error"} & rows[0].keys(), rows
