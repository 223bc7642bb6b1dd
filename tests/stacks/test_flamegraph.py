"""Recording ranks together, reading the numbers out of the pictures, and comparing ranks."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from stacks.live_processes import SLEEPER, WORKER, Process, need_ptrace, running, state
from torchtriage.errors import UnreadableError
from torchtriage.stacks import profiles
from torchtriage.stacks.flamegraph import masked_recording, record_processes
from torchtriage.stacks.profiles import Profile, compare_ranks, read_flamegraph, summarise

if TYPE_CHECKING:
    from pathlib import Path


def box(label: str, depth: int, x: int, width: int) -> str:
    return (
        f'<g><title>{label} ({width:,} samples, 1.00%)</title><rect x="1.0000%" y="{52 + 16 * depth}" width="1.0000%" '
        f'height="15" fill="rgb(1,2,3)" fg:x="{x}" fg:w="{width}"/><text x="1%" y="2">{label}</text></g>'
    )


def picture(folder: Path, *boxes: str) -> Path:
    path = folder / "rank00-pid7.svg"
    path.write_text('<?xml version="1.0"?><svg>' + "".join(boxes) + "</svg>", encoding="utf-8")
    return path


def profile(**shares: int) -> Profile:
    made = Profile(samples=100)
    made.total.update(shares)
    made.own.update(shares)
    return made


def test_ranks_are_recorded_together_and_the_one_that_does_something_else_is_told(tmp_path: Path) -> None:
    need_ptrace()
    folder = tmp_path / "node1" / "flamegraphs"
    kinds = ["squares", "squares", "sums"]
    with running(WORKER, kinds[0]) as a, running(WORKER, kinds[1]) as b, running(WORKER, kinds[2]) as c:
        processes = [Process(each.pid, rank=rank) for rank, each in enumerate((a, b, c))]
        items = record_processes(processes, folder, host="node1", duration_s=2, speedscope=True)
        assert all(state(each.pid) in "RS" for each in (a, b, c))
    assert [(item.rank, item.kind, item.ok, item.error) for item in items] == [
        (rank, kind, True, None) for rank in range(3) for kind in ("flamegraph", "speedscope")
    ]
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"] * 3 + [".svg"] * 3
    pictures = [item for item in items if item.kind == "flamegraph"]
    read = [(item.rank or 0, read_flamegraph(tmp_path / item.path)) for item in pictures]
    hottest = [
        summarise(each, item.path, rank=rank, pid=item.pid, host="node1").hottest[0].function
        for (rank, each), item in zip(read, pictures, strict=True)
    ]
    assert hottest == ["squares (<string>)", "squares (<string>)", "sums (<string>)"]
    differences = compare_ranks(read)
    assert {(each.rank, each.function) for each in differences} >= {(2, "squares (<string>)"), (2, "sums (<string>)")}
    assert not [each for each in differences if each.rank != 2 and abs(each.share - each.others_share) > 0.5]


def test_a_rank_that_waits_gives_samples_only_with_idle_threads(tmp_path: Path) -> None:
    need_ptrace()
    with running(SLEEPER, "0") as process:
        for idle in (False, True):
            (item,) = record_processes(
                [Process(process.pid)], tmp_path / str(idle) / "x", host="x", duration_s=1, idle=idle
            )
            if idle:
                top = summarise(read_flamegraph(tmp_path / item.path), "x", rank=0, pid=None, host=None)
                assert top.hottest[0].total_share > 0.9


def test_a_process_that_is_gone_is_an_entry_with_its_reason(tmp_path: Path) -> None:
    need_ptrace()
    with running(SLEEPER, "0") as process:
        pass
    (item,) = record_processes([Process(process.pid)], tmp_path / "n" / "f", host="n", duration_s=1)
    assert (item.ok, item.path, item.reason) == (False, "", "the process has ended")
    assert list((tmp_path / "n" / "f").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_entry_not_an_exception(tmp_path: Path) -> None:
    need_ptrace()
    (tmp_path / "file").touch()
    (item,) = record_processes([Process(os.getpid())], tmp_path / "file" / "f", host="n", duration_s=1)
    assert not item.ok
    assert "name another" in (item.reason or "")


def test_shares_are_those_of_the_boxes(tmp_path: Path) -> None:
    read = read_flamegraph(
        picture(
            tmp_path,
            box("hot (train.py:4)", 2, 0, 60),
            box("hot (train.py:5)", 2, 60, 10),
            box("&lt;module&gt; (train.py:9)", 1, 0, 90),
            box("all", 0, 0, 1000),
            box("cudaStreamSynchronize (libcudart.so.12)", 1, 90, 910),
        )
    )
    assert read.samples == 1000
    top = summarise(read, "a.svg", rank=0, pid=7, host=None)
    assert [(each.function, each.line, each.self_share, each.total_share) for each in top.hottest] == [
        ("cudaStreamSynchronize (libcudart.so.12)", None, 0.91, 0.91),
        ("hot (train.py)", 4, 0.07, 0.07),
        ("<module> (train.py)", 9, 0.02, 0.09),
    ]


def test_a_function_that_calls_itself_counts_once_in_its_total(tmp_path: Path) -> None:
    read = read_flamegraph(
        picture(tmp_path, box("all", 0, 0, 10), box("f (a.py:1)", 1, 0, 10), box("f (a.py:2)", 2, 0, 8))
    )
    assert (read.total["f (a.py)"], read.own["f (a.py)"]) == (10, 10)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_only_the_odd_one_of_three_or_more_ranks_differs(n: int) -> None:
    ranks = [(rank, profile(load=5, step=90)) for rank in range(n)] + [(n, profile(load=60, step=35))]
    assert [(each.rank, each.function, each.share, each.others_share) for each in compare_ranks(ranks)] == [
        (n, "load", 0.6, 0.05),
        (n, "step", 0.35, 0.9),
    ]


def test_of_two_ranks_each_differs_from_the_other() -> None:
    found = compare_ranks([(0, profile(load=5)), (1, profile(load=60))])
    assert [(each.rank, each.share, each.others_share) for each in found] == [(0, 0.05, 0.6), (1, 0.6, 0.05)]


def test_ranks_that_do_the_same_differ_in_nothing() -> None:
    assert compare_ranks([(0, profile(step=90)), (1, profile(step=85)), (2, profile(step=92))]) == []


def test_one_rank_or_few_samples_are_not_compared() -> None:
    few = Profile(samples=5)
    few.total["step"] = 5
    assert compare_ranks([(0, profile(load=60)), (1, few)]) == []


@pytest.mark.parametrize("content", ["", "<svg></svg>", "<title>f (1 samples, 1%)</title>", "\0" * 1000])
def test_what_is_no_flame_graph_is_unreadable(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.svg"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UnreadableError, match=r"a\.svg"):
        read_flamegraph(path)


def test_a_flame_graph_with_too_many_frames_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MAX_FRAMES", 3)
    with pytest.raises(UnreadableError, match="more than 3 frames"):
        read_flamegraph(picture(tmp_path, *[box("f (a.py:1)", depth, 0, 9) for depth in range(5)]))


def test_secrets_in_recordings_are_masked_and_markup_stays_markup(tmp_path: Path) -> None:
    path = picture(tmp_path, box("all", 0, 0, 9), box("&lt;f&gt; (/w/sk-abcdefghijklmnop.py:1)", 1, 0, 9))
    data = masked_recording(path)
    assert data is not None
    assert b"abcdefghijklmnop" not in data
    assert b"<title>&lt;f&gt; (/w/[masked]" in data
    scope = tmp_path / "a.speedscope.json"
    frame = {"name": "f", "file": "/w/sk-abcdefghijklmnop.py", "line": 1, "col": None}
    scope.write_text(
        json.dumps({"profiles": [{"name": "t", "samples": [[0]]}], "shared": {"frames": [frame]}}), encoding="utf-8"
    )
    data = masked_recording(scope)
    assert data is not None
    assert b"abcdefghijklmnop" not in data
    assert masked_recording(tmp_path / "none.svg") is None
