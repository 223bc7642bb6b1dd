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
from torchtriage.stacks.profiles import Comparison, Profile, compare_ranks, read_flamegraph, summarise

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


def profile(samples: int = 1000, **percent: int) -> Profile:
    made = Profile(samples=samples)
    made.total.update({name: samples * share // 100 for name, share in percent.items()})
    made.own.update(made.total)
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
    compared = compare_ranks(read)
    assert compared.ranks == [0, 1, 2]
    assert {(each.rank, each.function) for each in compared.differences} == {(2, "sums (<string>)")}


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
def test_only_what_the_odd_one_of_three_or_more_ranks_does_more_is_told(n: int) -> None:
    ranks = [(rank, profile(load=5, step=90)) for rank in range(n)] + [(n, profile(load=60, step=35))]
    compared = compare_ranks(ranks)
    assert (compared.ranks, compared.left_out) == ([*range(n + 1)], [])
    assert [(each.rank, each.function, each.share, each.others_share) for each in compared.differences] == [
        (n, "load", 0.6, 0.05)
    ]


def test_of_two_ranks_each_has_what_it_does_more_than_the_other() -> None:
    found = compare_ranks([(0, profile(load=5, step=95)), (1, profile(load=60, step=40))]).differences
    assert [(each.rank, each.function, each.share, each.others_share) for each in found] == [
        (0, "step", 0.95, 0.4),
        (1, "load", 0.6, 0.05),
    ]


def test_of_a_function_and_its_callers_the_innermost_is_told_first() -> None:
    calm, busy = profile(step=90), profile(main=99, step=98, augment=97)
    busy.own.clear()
    busy.own.update(augment=960, step=10, main=10)
    found = compare_ranks([(0, calm), (1, calm), (2, calm), (3, busy)]).differences
    assert [each.function for each in found] == ["augment", "main"]


def test_ranks_that_do_the_same_differ_in_nothing() -> None:
    ranks = [(0, profile(step=90)), (1, profile(step=85)), (2, profile(step=92))]
    assert compare_ranks(ranks) == Comparison(ranks=[0, 1, 2], left_out=[])


@pytest.mark.parametrize(("samples", "told"), [(150, False), (3000, True)])
def test_a_difference_that_few_samples_give_by_chance_is_none(samples: int, told: bool) -> None:
    ranks = [(rank, profile(samples, load=30)) for rank in range(3)] + [(3, profile(samples, load=55))]
    assert bool(compare_ranks(ranks).differences) is told


def test_a_rank_at_the_end_of_a_wide_range_does_not_stand_out() -> None:
    shares = (10, 25, 40, 55, 70)
    assert not compare_ranks([(rank, profile(load=share)) for rank, share in enumerate(shares)]).differences


def test_one_rank_or_few_samples_are_not_compared() -> None:
    few = profile(60, step=100)
    assert compare_ranks([(0, profile(load=60)), (1, few)]) == Comparison(ranks=[], left_out=[1])
    assert compare_ranks([(0, profile(load=60))]) == Comparison(ranks=[], left_out=[])


def test_addresses_without_a_symbol_are_one_function_of_their_library(tmp_path: Path) -> None:
    read = read_flamegraph(
        picture(
            tmp_path,
            box("all", 0, 0, 100),
            box("0x7f71406a3f16 (libc.so.6)", 1, 0, 60),
            box("0x7f71406a3f14 (libc.so.6)", 2, 0, 10),
            box("0x7f0000000001 (libfoo.so)", 1, 60, 30),
            box("0xdeadbeef", 1, 90, 10),
        )
    )
    assert read.total == {
        "code without symbols (libc.so.6)": 60,
        "code without symbols (libfoo.so)": 30,
        "code without symbols": 10,
    }


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
