"""Two moments of one rank, and the ranks of one job against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from memory.make_snapshot import MIB, Allocator, snapshot, torch_frame, user, write
from memory.simulated_jobs import Job, trained
from memory.truths import summary_of
from torchtriage.memory.analyze import Snapshot, analyze, snapshots_of
from torchtriage.memory.compare import compare_moments, compare_ranks
from torchtriage.memory.render import render
from torchtriage.memory.tool import memory_snapshot

if TYPE_CHECKING:
    from pathlib import Path


def _rank(folder: Path, rank: int, extra_bytes: int = 0) -> Snapshot:
    """A rank that trains, and whose loss makes logits of some bytes in every step."""
    job = Job(Allocator(device=0), parameter_bytes=2 * MIB)
    job.setup()
    head = [torch_frame("cross_entropy", "nn/functional.py", 3400)]
    for _ in range(5):
        activations = job.forward()
        logits = job.gpu.alloc(extra_bytes, job.at(22, *head)) if extra_bytes else None
        job.backward(activations)
        if logits is not None:
            job.gpu.free(logits, job.autograd({"name": "LogSoftmaxBackward0", "filename": "??", "line": 0}))
        job.optimize()
        job.zero_grad()
    return Snapshot(f"snapshot-rank{rank:02d}.pickle", rank, summary_of(snapshot(job.gpu), folder))


def test_the_rank_with_the_logits_is_named_with_the_place(tmp_path: Path) -> None:
    ranks = [_rank(tmp_path, rank, 400 * MIB if rank == 3 else 0) for rank in range(4)]
    found = analyze(ranks)
    (heavier,) = [d for d in found.differences if d.of == "ranks"]
    assert (heavier.rank, heavier.last_rank, heavier.n_ranks) == (3, True, 4)
    assert heavier.more_bytes == pytest.approx(400 * MIB, rel=0.05)
    assert heavier.changes[0].site == "train (/job/train.py:22)"
    (signal,) = [s for s in found.signals if s.name == "memory.rank_heavier"]
    assert signal.scope.ranks == [3]
    assert found.faults == []


def test_ranks_alike_differ_in_nothing(tmp_path: Path) -> None:
    found = analyze([_rank(tmp_path, rank, 8 * MIB * (rank % 2)) for rank in range(4)])
    assert [d for d in found.differences if d.of == "ranks"] == []
    assert found.steady


def _moments(*jobs: tuple[str, Job], folder: Path) -> list[Snapshot]:
    return snapshots_of([(name, summary_of(snapshot(job.gpu), folder)) for name, job in jobs])


def test_what_came_between_two_moments_is_named(tmp_path: Path) -> None:
    early = trained(4)
    late = trained(9, lambda job, number: job.keep(30 * MIB) if number >= 5 else None)
    # In whatever order they are given: their events have times.
    (found,) = compare_moments(_moments(("b_late", late), ("a_early", early), folder=tmp_path))
    assert (found.before, found.after, found.more_bytes) == ("a_early", "b_late", 120 * MIB)
    assert [(c.site, c.before, c.after) for c in found.changes] == [
        ("train (/job/train.py:26)", (0, 0), (120 * MIB, 4))
    ]


def test_snapshots_of_unknown_ranks_are_compared_only_when_they_are_two(tmp_path: Path) -> None:
    jobs = [(f"snapshot_{name}", trained(3)) for name in "abc"]
    assert compare_moments(_moments(*jobs, folder=tmp_path)) == []
    assert len(compare_moments(_moments(*jobs[:2], folder=tmp_path))) == 1
    assert compare_ranks(_moments(*jobs, folder=tmp_path)) == []


def test_one_rank_whose_snapshot_has_no_device_is_left_out(tmp_path: Path) -> None:
    nothing = Snapshot("snapshot-rank07.pickle", 7, {"devices": [], "notes": [], "pinned": 0, "settings": {}})
    assert compare_ranks([_rank(tmp_path, 0), nothing]) == []


def test_the_report_of_a_pair_lists_the_places(tmp_path: Path) -> None:
    write(tmp_path / "before.pickle", snapshot(trained(4).gpu))
    write(tmp_path / "after.pickle", snapshot(trained(9, lambda job, _: job.keep(30 * MIB)).gpu))
    report: Any = memory_snapshot([str(tmp_path)], compare=True)
    assert report.status == "fault"
    (comparison,) = report.comparisons
    assert comparison.changes[0].site == "train (/job/train.py:26)"
    assert "train (/job/train.py:26)" in render(report)


def test_two_devices_of_one_process_are_no_two_ranks(tmp_path: Path) -> None:
    gpus = [Allocator(device=0), Allocator(device=1)]
    gpus[0].alloc(900 * MIB, [user("main", 1)])
    gpus[1].alloc(9 * MIB, [user("main", 1)])
    summary = summary_of(snapshot(*gpus), tmp_path)
    assert compare_ranks([Snapshot("snapshot-rank00.pickle", 0, summary)]) == []
