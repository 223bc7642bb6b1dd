"""dump_stacks on recorded and written dumps, through the isolated reader."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stacks.stack_inputs import LOADER, START, SYNC, USER, dump_text
from torchtriage.artefacts.evidence import check_evidence
from torchtriage.errors import BadCallError, InputNotFoundError, OutsideRootsError
from torchtriage.stacks.tool import dump_stacks, render
from torchtriage.wording import rank_ranges

if TYPE_CHECKING:
    from torchtriage.tool_reports import StacksReport

DATA = Path(__file__).parents[1] / "data" / "stacks"


def states(report: StacksReport) -> dict[int | None, str]:
    return {each.rank: each.state for each in report.ranks}


@pytest.mark.parametrize(
    ("case", "expected", "culprits"),
    [
        ("dataloader_stall", {0: "waiting_on_gpu", 1: "data_loading"}, [1]),
        ("uneven_batches", {0: "waiting_on_gpu", 1: "waiting_on_gpu"}, []),
        ("skip_branch", {0: "waiting_on_gpu", 1: "waiting_on_gpu"}, []),
        ("a2a_split", {0: "waiting_on_gpu", 1: "waiting_on_gpu"}, []),
    ],
)
def test_recorded_jobs_are_judged_as_they_were_made(case: str, expected: dict[int, str], culprits: list[int]) -> None:
    paths = [str(DATA / case)]
    report = dump_stacks(paths)
    assert states(report) == expected
    assert report.culprits.ranks == culprits
    assert report.status == ("fault" if culprits else "inconclusive")
    assert all(check_evidence(each, paths) for each in report.evidence)
    if not culprits:
        assert [check.tool for check in report.next_checks] == ["analyze_flight_recorder"]


@pytest.mark.parametrize(
    ("kept", "case", "expected"),
    [
        ("*.txt", "dataloader_stall", {0: "python_running", 1: "data_loading"}),
        ("*.json", "dataloader_stall", {0: "python_running", 1: "data_loading"}),
        ("*.txt", "uneven_batches", {0: "python_running", 1: "in_collective"}),
        ("*.json", "skip_branch", {0: "waiting_on_gpu", 1: "waiting_on_gpu"}),
    ],
)
def test_dumps_without_native_frames_are_not_over_read(
    tmp_path: Path, kept: str, case: str, expected: dict[int, str]
) -> None:
    for path in [*(DATA / case).glob(kept), *(DATA / case).glob("rank-of-*")]:
        if ".native." not in path.name:
            shutil.copy(path, tmp_path)
    report = dump_stacks([str(tmp_path)])
    assert states(report) == expected
    assert (report.status, report.culprits.ranks) == ("inconclusive", [])
    assert all(check_evidence(each, [str(tmp_path)]) for each in report.evidence)
    if "python_running" in expected.values():
        assert any("--native" in check.why for check in report.next_checks)


def test_a_barrier_against_a_device_wait_is_told_by_place() -> None:
    report = dump_stacks([str(DATA / "uneven_batches")])
    assert "save_checkpoint (train_gpt2.py:79)" in report.summary
    assert "run_train_loop (train_gpt2.py:86)" in report.summary
    assert any("barrier (torch/distributed/distributed_c10d.py:5030)" in each.quote for each in report.evidence)


def test_one_process_alone_is_inconclusive() -> None:
    report = dump_stacks([str(DATA / "skip_branch" / "pyspy-pid654.txt")])
    assert report.status == "inconclusive"
    assert "one process alone" in report.summary


def test_an_unreadable_dump_is_a_gap_by_name(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text(dump_text(5, [*SYNC, *USER]), encoding="utf-8")
    (tmp_path / "rank1.json").write_text('[{"frames": 1, "owns_gil": true}]', encoding="utf-8")
    report = dump_stacks([str(tmp_path)])
    assert [gap for gap in report.gaps if gap.startswith("rank1.json: holds no stack dump")]


def test_a_folder_without_dumps_is_inconclusive(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here\n", encoding="utf-8")
    report = dump_stacks([str(tmp_path)])
    assert (report.status, report.ranks, report.gaps) == (
        "inconclusive",
        [],
        ["no stack dump was found in what was given"],
    )


def test_a_pid_with_two_recorded_ranks_takes_its_rank_from_the_dumps_name(tmp_path: Path) -> None:
    for rank in (0, 1):
        folder = tmp_path / f"rank_{rank}"
        folder.mkdir()
        (folder / "rank-of-pid7").write_text(str(rank), encoding="utf-8")
        (folder / "pyspy-pid7.txt").write_text(dump_text(7, [*SYNC, *USER]), encoding="utf-8")
    report = dump_stacks([str(tmp_path)])
    assert states(report) == {0: "waiting_on_gpu", 1: "waiting_on_gpu"}
    assert "pid 7 is recorded with 2 different ranks" in report.gaps[0]


def test_a_call_without_paths_and_wrong_paths_are_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(BadCallError, match="separate calls"):
        dump_stacks([str(DATA)], pids=[1])
    with pytest.raises(BadCallError, match="pass recorded dumps"):
        dump_stacks()
    with pytest.raises(InputNotFoundError):
        dump_stacks([str(tmp_path / "none")])
    with pytest.raises(OutsideRootsError):
        dump_stacks([str(DATA)], roots=[tmp_path])


def test_hostile_text_is_cleaned_in_the_report(tmp_path: Path) -> None:
    text = dump_text(5, ["run\u202e (\x1b[31mevil.py:3)", "f (--token=hf_abcdefghijklmnop.py:1)"])
    (tmp_path / "rank0.txt").write_text(text, encoding="utf-8")
    shown = dump_stacks([str(tmp_path)]).model_dump_json()
    assert "\\u202e" not in shown
    assert "\u202e" not in shown
    assert "hf_abc" not in shown


def test_the_text_form_is_short_and_collapses_ranks(tmp_path: Path) -> None:
    for rank in range(64):
        frames = [*LOADER, *USER, *START] if rank == 7 else [*SYNC, *USER, *START]
        (tmp_path / f"rank_{rank}").mkdir()
        (tmp_path / f"rank_{rank}" / "stack.txt").write_text(dump_text(100 + rank, frames), encoding="utf-8")
    text = render(dump_stacks([str(tmp_path)]))
    assert text.startswith("fault: rank 7 is not waiting for the others: data_loading at step (train.py:50)")
    assert "rank 0-6,8-63: waiting_on_gpu" in text
    assert len(text) < 1600


def test_ranks_are_written_as_ranges() -> None:
    assert rank_ranges([7, 0, 1, 2, 3, 9, 10]) == "0-3,7,9-10"
    assert rank_ranges([]) == ""


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'",
            "root",
        ),
        ("Error: Failed to suspend process\nReason: EPERM: Operation not permitted", "--nonblocking"),
        ("Error: Failed to find python version from target process", "no Python process"),
        ("Error: No such file or directory (os error 2)", "had ended"),
    ],
)
def test_a_dumpers_error_message_is_a_gap_with_advice(tmp_path: Path, message: str, advice: str) -> None:
    (tmp_path / "pyspy-pid7.txt").write_text(message + "\n", encoding="utf-8")
    report = dump_stacks([str(tmp_path)])
    assert report.gaps[0].startswith("pyspy-pid7.txt: holds an error instead of a stack: ")
    assert advice in report.gaps[0]


def test_the_next_check_is_a_command_that_can_be_pasted() -> None:
    text = render(dump_stacks([str(DATA / "uneven_batches")]))
    assert f"\nNext: torchtriage analyze-flight-recorder {DATA / 'uneven_batches'}\n" in text


def test_the_one_rank_that_does_not_wait_is_named_though_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    later = ["step (train.py:51)", *USER[1:]]
    for name, loads in (("", [*LOADER, *USER]), ("again/", [*LOADER, *later])):
        (tmp_path / f"{name}rank0-pid7.txt").write_text(dump_text(7, [*SYNC, *USER, *START]), encoding="utf-8")
        (tmp_path / f"{name}rank1-pid8.txt").write_text(dump_text(8, [*loads, *START]), encoding="utf-8")
    report = dump_stacks([str(tmp_path)])
    assert (report.status, report.culprits.ranks) == ("inconclusive", [])
    assert report.summary.startswith(
        "rank 1 does not wait with the others: data_loading at step (train.py:50), while 1 rank(s) wait"
    )
    assert report.summary.endswith("rank 0 stood still and rank 1 moved on")


def test_the_one_process_without_a_rank_that_does_not_wait_is_named_by_its_pid(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(dump_text(7, [*SYNC, *USER, *START]), encoding="utf-8")
    (tmp_path / "b.txt").write_text(dump_text(8, [*LOADER, *USER, *START]), encoding="utf-8")
    assert dump_stacks([str(tmp_path)]).summary.startswith("process 8 does not wait with the others: data_loading at ")


def test_a_rank_that_stands_in_python_alone_may_wait_too(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text(dump_text(7, [*SYNC, *USER, *START]), encoding="utf-8")
    (tmp_path / "rank1.txt").write_text(dump_text(8, USER), encoding="utf-8")
    assert dump_stacks([str(tmp_path)]).summary.startswith("rank 1 may not wait with the others: python_running at ")


def test_when_several_do_not_wait_nobody_stands_out(tmp_path: Path) -> None:
    for rank, frames in enumerate(([*SYNC, *USER, *START], [*LOADER, *USER], [*LOADER, *USER])):
        (tmp_path / f"rank{rank}.txt").write_text(dump_text(7 + rank, frames), encoding="utf-8")
    assert "no single rank stands out" in dump_stacks([str(tmp_path)]).summary


@pytest.mark.parametrize(
    ("why", "summary"),
    [
        ("the process has ended", "process 5 has ended, so that it has no stack; dump its peers"),
        ("a thread of the kernel, not a program", "process 5 could not be read, so that where it stands is not known"),
    ],
)
def test_a_process_without_frames_is_told_without_an_empty_place(tmp_path: Path, why: str, summary: str) -> None:
    (tmp_path / "pid5.txt").write_text(f"Error: no stack could be had of pid 5: {why}\n", encoding="utf-8")
    report = dump_stacks([str(tmp_path)])
    assert report.summary == summary
    assert not [line for line in render(report).splitlines() if line.endswith((" ", " at"))]


def test_an_ended_rank_beside_waiting_ones_is_named_without_an_empty_place(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text(dump_text(7, [*SYNC, *USER, *START]), encoding="utf-8")
    ended = "Error: no stack could be had of pid 8: the process has ended\n"
    (tmp_path / "rank1.txt").write_text(ended, encoding="utf-8")
    assert dump_stacks([str(tmp_path)]).summary.startswith("rank 1 is not waiting for the others: exited, while 1 rank")
