"""Numbers that launchers give to tasks are ranks only where nothing contradicts."""

from __future__ import annotations

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.scan.read import LogPattern, LogSource, PatternSet, scan
from torchtriage.logs.timeline.tasks import file_tasks

MARKER = PatternSet([LogPattern("marker", "boom here")])


def ranks_of(*files: list[str], tasks: dict[str, tuple[str, str]] | None = None) -> list[list[int]]:
    sources = [LogSource(f"f{n}", lines, task=(tasks or {}).get(f"f{n}")) for n, lines in enumerate(files)]
    return sorted(match.ranks for match in analyze(scan(sources, MARKER)).pattern_matches)


def test_a_task_that_prints_as_several_ranks_is_a_node():
    lines = ["0: [rank0]: a", "0: [rank1]: a", "1: [rank2]: a", "1: [rank3]: a", "1: boom here", "0: b"]
    assert ranks_of(lines) == [[]]


def test_the_rank_that_a_process_prints_beats_the_number_of_its_task():
    lines = ["0: [rank0]: a", "0: [rank1]: a", "1: [rank2]: a", "1: [rank3]: boom here", "0: b"]
    assert ranks_of(lines) == [[3]]


def test_a_number_of_tasks_that_is_not_the_world_size_gives_no_ranks():
    lines = ["0: world_size: 16", "1: a", "0: b", "1: boom here"]
    assert ranks_of(lines) == [[]]
    assert ranks_of([*lines[1:], "0: world_size: 2"]) == [[1]]


def test_local_ranks_of_one_node_are_ranks():
    assert ranks_of(["[default0]: a", "[default3]: boom here"]) == [[3]]


def test_local_ranks_of_two_nodes_are_not_ranks():
    assert ranks_of(["[default0]: a", "[default3]: boom here"], ["[default0]: a", "[default3]: b"]) == [[]]


def test_a_rank_beside_a_local_rank_tells_the_ranks_of_the_whole_node():
    node = ["[default0]:[rank8]: a", "[default3]: boom here"]
    assert ranks_of(["[default0]:[rank0]: a", "[default3]: b"], node) == [[11]]


def test_pods_of_one_process_each_are_ranks_and_others_are_not():
    assert ranks_of(["pod/a-0 x", "pod/a-3 boom here"]) == [[3]]
    assert ranks_of(["pod/a-0 world_size: 16", "pod/a-3 boom here"]) == [[]]
    # The operator that names a master and workers counts the master first.
    assert ranks_of(["pod/a-master-0 x", "pod/a-worker-0 boom here"]) == [[]]
    assert ranks_of(["[pod/a-0/c] [rank0] x", "[pod/a-0/c] [rank1] x", "[pod/a-1/c] boom here"]) == [[]]


def test_compose_counts_from_one_unless_it_shows_a_zero():
    assert ranks_of(["trainer-1  | a", "trainer-2  | boom here"]) == [[]]
    assert ranks_of(["trainer-0  | a", "trainer-1  | boom here"]) == [[1]]


def test_steps_of_a_task_count_for_its_rank():
    lines = [f"{rank}: step {step} loss 2.0" for step in range(4) for rank in range(2)]
    timeline = scan([LogSource("log", [*lines, "1: [rank1]: boom here"])], MARKER)
    assert sorted(timeline.metrics.owners) == [0, 1]
    assert timeline.metrics.owners[1].last_step == 3


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["train_4711_0.out", "train_4711_1.out"], ["0", "1"]),
        (["logs/slurm-123_0.out", "logs/slurm-123_1.out"], ["0", "1"]),
        (["train_0.out", "train_0.err", "train_1.out", "train_1.err"], ["0", "0", "1", "1"]),
        (["worker-0.log", "worker-1.log", "worker-2.log"], ["0", "1", "2"]),
        (["gpu0.log", "gpu1.log"], ["0", "1"]),
        (["a/attempt_0/0/stderr.log", "a/attempt_0/1/stdout.log"], ["0", "1"]),
        (["slurm-4711.out", "slurm-4712.out"], []),
        (["train_1.out", "train_2.out"], []),
        (["run_2026-11-29.log", "run_2026-11-30.log"], []),
        (["train_0.out"], []),
        (["torch-2.10.log", "torch-2.11.log"], []),
        (["a-master-0.log", "a-worker-0.log", "a-worker-1.log"], []),
        (["run_0.log", "run_1.log"], []),
        (["node0.log", "node1.log"], []),
        (["train.log.0", "train.log.1"], []),
    ],
)
def test_numbers_in_file_names_are_tasks_only_where_they_count_from_zero(names, told):
    assert [mark[1].rpartition("\0")[2] for mark in file_tasks(names).values()] == told


def test_a_worker_of_a_later_attempt_is_the_same_task():
    found = file_tasks(["a/attempt_0/1/stderr.log", "a/attempt_1/1/stderr.log"])
    assert len(set(found.values())) == 1


def test_files_of_tasks_give_their_lines_a_rank_unless_the_lines_contradict():
    tasks = file_tasks(["x_0.log", "x_1.log"])
    marks = {"f0": tasks["x_0.log"], "f1": tasks["x_1.log"]}
    assert ranks_of(["a"], ["boom here"], tasks=marks) == [[1]]
    assert ranks_of(["[rank0] a", "[rank1] a"], ["[rank2] a", "boom here"], tasks=marks) == [[]]
