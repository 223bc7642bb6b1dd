"""Two looks at one process: standing, spinning or moving; and what a folder with two looks says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stacks.stack_inputs import BARRIER, LOADER, START, SYNC, USER, dump_text, process, read_text
from torchtriage.stacks.analyze import StackFindings, analyze
from torchtriage.stacks.looks import Change, compare_looks

if TYPE_CHECKING:
    from torchtriage.report import Signal

WAIT = [*SYNC, *USER, *START]
NEXT = [*SYNC, "step (train.py:57)", *USER[1:], *START]


def look(frames: list[str], *, time_s: float | None = None, cpu_s: float | None = None) -> dict[str, Any]:
    seen = process(frames)
    seen["threads"][0] |= {"time_s": time_s, "cpu_s": cpu_s}
    return seen


def change(first: dict[str, Any], second: dict[str, Any]) -> Change:
    found = compare_looks(first, second)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cpu_s", "outcome", "share"),
    [(1.0, "still", 0.0), (1.5, "still", 0.1), (5.9, "spinning", 0.98), (0.5, "still", None)],
)
def test_the_same_frames_are_still_or_spinning_by_the_threads_cpu_time(
    cpu_s: float, outcome: str, share: float | None
) -> None:
    found = change(look(WAIT, time_s=100, cpu_s=1), look(WAIT, time_s=105, cpu_s=cpu_s))
    assert (found.outcome, found.seconds) == (outcome, 5)
    assert found.cpu_share == (pytest.approx(share) if share is not None else None)


def test_without_times_the_same_frames_are_still() -> None:
    found = change(look(WAIT), look(WAIT))
    assert (found.outcome, found.seconds, found.cpu_share) == ("still", None, None)


def test_looks_too_close_to_each_other_say_nothing_of_cpu_time() -> None:
    assert change(look(WAIT, time_s=1, cpu_s=0), look(WAIT, time_s=1.1, cpu_s=0.1)).cpu_share is None


def test_another_line_of_the_users_code_is_moving() -> None:
    found = change(look(WAIT), look(NEXT))
    assert (found.outcome, found.first_where, found.second_where) == (
        "moving",
        "step (train.py:50)",
        "step (train.py:57)",
    )


def test_native_frames_in_one_look_alone_make_no_difference() -> None:
    assert change(look(WAIT), look(USER)).outcome == "still"


def test_a_library_that_polls_under_the_same_user_frame_is_unclear() -> None:
    inner = ["Connection._poll (multiprocessing/connection.py:440)", *LOADER]
    assert change(look([*inner, *USER]), look([*LOADER, *USER])).outcome == "unclear"


def test_a_look_without_python_frames_cannot_be_compared() -> None:
    assert compare_looks(look(WAIT), look(["read (libc.so.6)"])) is None


def two_looks(first: list[list[str]], second: list[list[str]], folder: str = "node/stacks") -> StackFindings:
    dumps = [
        (f"{folder}{again}/rank{rank:02d}-pid{100 + rank}.txt", read_text(dump_text(100 + rank, frames)))
        for again, looks in (("", first), ("/again", second))
        for rank, frames in enumerate(looks)
    ]
    return analyze(dumps, {})


def signals(findings: StackFindings) -> dict[str, Signal]:
    return {signal.name: signal for signal in findings.signals}


def test_the_second_look_says_who_moves_and_counts_no_rank_twice() -> None:
    loading = [*LOADER, *USER[1:], *START]
    findings = two_looks([WAIT, WAIT, loading], [WAIT, NEXT, loading])
    assert [(r.rank, r.state) for r in findings.ranks] == [
        (0, "waiting_on_gpu"),
        (1, "waiting_on_gpu"),
        (2, "data_loading"),
    ]
    found = signals(findings)
    assert found["stacks.still"].scope.ranks == [0, 2]
    moving = found["stacks.moving"]
    assert moving.scope.ranks == [1]
    assert moving.facts == {
        "n_ranks": 3,
        "all_ranks": False,
        "where": "step (train.py:50)",
        "where_later": "step (train.py:57)",
        "waited": True,
    }
    assert [(e.artefact, e.quote) for e in moving.evidence] == [
        ("node/stacks/again/rank01-pid101.txt", "step (train.py:57)")
    ]


def test_the_state_is_that_of_the_first_look() -> None:
    findings = two_looks([[*BARRIER, *USER]], [[*LOADER, *USER]])
    assert findings.ranks[0].state == "in_collective"


def test_processes_without_a_rank_are_matched_by_their_pid() -> None:
    dumps = [(f"node/stacks{again}/pid7.txt", read_text(dump_text(7, WAIT))) for again in ("", "/again")]
    findings = analyze(dumps, {})
    assert [r.pid for r in findings.ranks] == [7]
    assert "stacks.still" in signals(findings)


def test_a_second_look_alone_counts_as_a_first() -> None:
    findings = two_looks([], [WAIT, WAIT])
    assert [r.state for r in findings.ranks] == ["waiting_on_gpu", "waiting_on_gpu"]
    assert not {"stacks.still", "stacks.moving"} & set(signals(findings))


def test_one_look_says_nothing_of_moving() -> None:
    assert not {"stacks.still", "stacks.moving"} & set(signals(two_looks([WAIT, WAIT], [])))


@pytest.mark.parametrize(("cpu_s", "outcome"), [(10.02, "still"), (10.6, "moving")])
def test_a_thread_found_twice_in_a_sleep_went_on_where_it_used_processor_time_between(
    cpu_s: float, outcome: str
) -> None:
    first = look(
        ["clock_nanosleep (libc.so.6)", "time_sleep (python3.12)", "main (train.py:18)"], time_s=100.0, cpu_s=10.0
    )
    second = look(["main (train.py:18)"], time_s=103.0, cpu_s=cpu_s)
    assert change(first, second).outcome == outcome
