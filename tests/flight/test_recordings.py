"""The dumps of recorded two-rank jobs, whose faults are known."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from torchtriage.artefacts.evidence import check_evidence
from torchtriage.flight.tool import analyze_flight_recorder, render

DATA = Path(__file__).resolve().parents[1] / "data" / "flight"

# (recording, status, [(kind, ranks)], culprits, words of the summary)
TRUTH = [
    ("skip_branch", "fault", [("collective_missing", [1])], [1], "rank 1 skipped all_reduce at skip_branch (train"),
    ("live_skip_branch", "fault", [("collective_missing", [1])], [1], "rank 1 skipped all_reduce"),
    ("dataloader_stall", "fault", [("behind_on_enqueue", [1])], [1], "rank 1 did not enqueue all_reduce"),
    ("uneven_batches", "fault", [("type_mismatch", [1])], [1], "all_reduce_barrier [[1]] Float at save_checkpoint"),
    ("a2a_split", "fault", [("size_mismatch", [0])], [0], "[[4608, 512]] -> [[512, 512]]"),
    ("oom_skip_batch", "fault", [("dump_missing", [1])], [1], "rank 1 left no dump"),
    ("healthy_fr", "in_step", [], [], "All 2 ranks issued the same calls"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "status", "divergences", "culprits", "words"), TRUTH)
def test_a_recorded_fault_is_told_with_its_rank_and_place(
    name: str, status: str, divergences: list[tuple[str, list[int]]], culprits: list[int], words: str
) -> None:
    report = analyze_flight_recorder([str(DATA / name)])
    assert (report.status, [(d.kind, d.ranks) for d in report.divergences]) == (status, divergences)
    assert report.culprits.ranks == culprits
    assert words in report.summary


@pytest.mark.parametrize("name", [row[0] for row in TRUTH])
def test_every_quote_is_found_again_in_the_dump(name: str) -> None:
    report = analyze_flight_recorder([str(DATA / name)])
    assert report.evidence
    assert all(check_evidence(evidence, [str(DATA / name)]) for evidence in report.evidence)


@pytest.mark.parametrize("name", [row[0] for row in TRUTH if row[3]])
def test_with_the_files_of_two_ranks_swapped_the_other_rank_is_named(name: str, tmp_path: Path) -> None:
    for path in sorted((DATA / name).glob("nccl_trace_rank_*")):
        shutil.copy(path, tmp_path / f"nccl_trace_rank_{1 - int(path.name[-1])}")
    straight = analyze_flight_recorder([str(DATA / name)])
    swapped = analyze_flight_recorder([str(tmp_path)])
    assert [(d.kind, d.seq, d.collective, d.where) for d in swapped.divergences] == [
        (d.kind, d.seq, d.collective, d.where) for d in straight.divergences
    ]
    assert swapped.culprits.ranks == [1 - rank for rank in straight.culprits.ranks]


def test_of_two_dumps_of_one_rank_one_is_used_and_the_other_is_told() -> None:
    report = analyze_flight_recorder([str(DATA / "live_skip_branch")])
    assert any("rank 1 left 2 dumps" in gap for gap in report.gaps)


def test_the_text_for_an_agent_is_short_and_starts_with_the_verdict() -> None:
    text = render(analyze_flight_recorder([str(DATA / "a2a_split")], check_env=True))
    assert text.startswith("fault: rank 0 issued all_to_all")
    assert len(text) < 2000


@pytest.mark.parametrize(("name", "culprits"), [("gpu_error_1st", [12, 14]), ("lock_gil_1st", [9, 14])])
def test_public_sixteen_rank_sets_give_exactly_the_injected_ranks(
    name: str, culprits: list[int], samples: Path
) -> None:
    report = analyze_flight_recorder([f"{samples}/public/flight_recorder/{name}"])
    assert (report.status, report.culprits.ranks) == ("fault", culprits)
    assert len(render(report)) < 2000
