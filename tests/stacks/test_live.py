"""``dump_stacks`` and ``record_flamegraph`` on running processes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stacks.live_processes import SLEEPER, WORKER, need_ptrace, running, state
from stacks.test_flamegraph import box
from torchtriage.bundle.manifest import Item
from torchtriage.bundle.processes import JobProcess, NoJobError
from torchtriage.cli import main
from torchtriage.errors import BadCallError
from torchtriage.stacks import flamegraph
from torchtriage.stacks.live import dump_live, record_flamegraph, render_flamegraph
from torchtriage.stacks.tool import dump_stacks
from torchtriage.tool_reports import FlamegraphReport, ProfileDifference

if TYPE_CHECKING:
    from collections.abc import Callable

GONE = 4194305


def test_running_processes_are_dumped_and_judged_at_once(tmp_path: Path) -> None:
    need_ptrace()
    with running(SLEEPER, "1") as first, running(SLEEPER, "0") as second:
        report = dump_stacks(pids=[first.pid, second.pid], output_dir=str(tmp_path / "dumps"))
        assert [state(process.pid) for process in (first, second)] == ["S", "S"]
    assert sorted(rank.pid or 0 for rank in report.ranks) == sorted([first.pid, second.pid])
    assert {rank.state for rank in report.ranks} == {"lock_wait"}
    assert report.output_dir is not None
    folder = Path(report.output_dir)
    assert folder.parent == tmp_path / "dumps"
    assert folder.name.endswith("-rank00")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_could_not_be_dumped_is_told_with_what_the_kernel_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.stacks.probe.find_py_spy", lambda: "/bin/false")
    with running(SLEEPER, "0") as process:
        dumped = dump_live([process.pid], None, native=False, output_dir=str(tmp_path / "dumps"))
    assert len(dumped.failures) == 1  # not once for each look
    assert f"pid {process.pid}" in dumped.failures[0]
    assert "/proc says: state S" in dumped.failures[0]
    assert "of CPU time" in dumped.failures[0]


def test_recorded_dumps_and_running_processes_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(BadCallError, match="separate calls"):
        dump_stacks([str(tmp_path)], pids=[1])
    with pytest.raises(BadCallError, match="--live"):
        dump_stacks()


def test_the_function_in_which_one_rank_spends_its_time_is_told(tmp_path: Path) -> None:
    need_ptrace()
    with ExitStack() as stack:
        spend = ("sums", "sums", "squares")
        pids = [stack.enter_context(running(WORKER, what)).pid for what in spend]
        report = record_flamegraph(pids=pids, duration=2, rate=50, output_dir=str(tmp_path / "pictures"))
    assert report.status == "collected", report.gaps
    hottest = {rank.pid: rank.hottest[0].function for rank in report.ranks}
    assert [next(name for name in ("sums", "squares") if name in hottest[pid]) for pid in pids] == list(spend)
    assert report.output_dir is not None
    pictures = list(Path(report.output_dir).rglob("*.svg"))
    assert len(pictures) == 3
    assert {path.stat().st_mode & 0o777 for path in pictures} == {0o600}


@pytest.mark.parametrize(
    ("duration", "rate"), [(0.5, 100), (flamegraph.MAX_DURATION_S + 1, 100), (float("nan"), 100), (2, 0), (2, 1001)]
)
def test_durations_and_rates_out_of_range_are_refused(tmp_path: Path, duration: float, rate: int) -> None:
    with pytest.raises(BadCallError, match="takes 1 to"):
        record_flamegraph(pids=[GONE], duration=duration, rate=rate, output_dir=str(tmp_path / "p"))
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("samples", "comparison", "words"),
    [
        ((400, 400, 400), "even", "; no frame stands out between the ranks"),
        ((400, 400, 30), "even", "between the ranks; rank 2 waited: too few samples to compare"),
        ((30, 400, 30), "not_compared", "; ranks 0, 2 waited: too few samples to compare"),
    ],
)
def test_a_comparison_without_a_difference_says_so_in_words_and_as_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: tuple[int, ...], comparison: str, words: str
) -> None:
    found = [_process(rank) for rank in range(len(samples))]
    monkeypatch.setattr("torchtriage.stacks.live.chosen_processes", lambda *_: found)
    monkeypatch.setattr("torchtriage.stacks.live.flamegraph.record_processes", _drawn(samples))
    report = record_flamegraph(output_dir=str(tmp_path / "p"))
    assert (report.status, report.comparison, report.differences) == ("collected", comparison, [])
    assert report.compared_ranks == ([r for r, n in enumerate(samples) if n > 100] if comparison == "even" else [])
    assert words in report.summary
    text = render_flamegraph(report)
    assert words in text
    assert ("Next: torchtriage record-flamegraph --idle --job " in text) == (min(samples) < 100)


def _process(rank: int) -> JobProcess:
    return JobProcess(
        pid=GONE + rank, ppid=1, uid=0, start_ticks=1, role="rank", rank=rank, local_rank=rank, world_size=3,
        rank_pid=None, job="127.0.0.1:29500 run", environment={}, command=("python",),
    )  # fmt: skip


def _drawn(samples: tuple[int, ...]) -> Callable[..., list[Item]]:
    """In place of py-spy: a picture for each rank, of the same functions."""

    def record(ranks: list[JobProcess], folder: Path, **_: object) -> list[Item]:
        items: list[Item] = []
        for process, n in zip(ranks, samples, strict=True):
            name = f"rank{process.rank:02d}.svg"
            boxes = [box("all", 0, 0, n), box("step (train.py:1)", 1, 0, n)]
            (folder / name).write_text("<svg>" + "".join(boxes) + "</svg>", encoding="utf-8")
            items.append(
                Item(path=name, kind="flamegraph", rank=process.rank, pid=process.pid, host="n", ok=True, redacted=True)
            )
        return items

    return record


def test_a_process_that_is_not_there_is_an_error_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "p")
    with pytest.raises(NoJobError, match=str(GONE)):
        record_flamegraph(pids=[GONE], output_dir=output)
    assert main(["record-flamegraph", "--pid", str(GONE), "--output-dir", output]) == 2
    assert main(["dump-stacks", "--pid", str(GONE), "--output-dir", output]) == 2
    assert str(GONE) in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_when_nothing_could_be_recorded_a_look_at_the_stacks_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.stacks.live.flamegraph.record_processes", lambda *_a, **_k: [])
    with running(SLEEPER, "0") as process:
        report = record_flamegraph(pids=[process.pid], duration=1, output_dir=str(tmp_path / "p"))
    assert report.status == "nothing_found"
    assert report.next_checks[0].tool == "collect"
    assert "Next: torchtriage collect --job " in render_flamegraph(report)


def test_the_text_of_a_recording_is_short_whatever_it_holds() -> None:
    differences = [ProfileDifference(rank=rank, function="f" * 500, share=0.9, others_share=0.1) for rank in range(100)]
    report = FlamegraphReport(
        tool="record_flamegraph", status="partial", summary="s" * 5000, differences=differences, gaps=["g" * 900] * 50
    )
    assert len(render_flamegraph(report)) < 2400
