"""One timeline over many files: clocks that differ, lines without a time, and orders that nobody can know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.scan.read import LogPattern, LogSource, PatternSet, scan

if TYPE_CHECKING:
    from torchtriage.logs.records import Timeline

MARKER = PatternSet([LogPattern("marker", "boom here")])
START = datetime(2026, 11, 30, 6, tzinfo=UTC)


def stamp(second: float) -> str:
    return (START + timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def steps(rank: int, ahead: float = 0.0, count: int = 10, late: float = 0.0) -> list[str]:
    return [f"{stamp(ahead + late + 3 * n)} [rank{rank}] step {n} loss 2.0" for n in range(count)]


def raised(rank: int, error: str, second: float | None = None) -> list[str]:
    prefix = f"[rank{rank}]: " if second is None else f"{stamp(second)} [rank{rank}] "
    lines = ["Traceback (most recent call last):", f'  File "/workspace/r{rank}.py", line 7, in step', "    x", error]
    return [prefix + line for line in lines]


def timeline(*files: list[str], hosts: tuple[str, ...] = ()) -> Timeline:
    named = [*hosts, *[None] * len(files)]
    return scan([LogSource(f"n{n}.log", lines, host=named[n]) for n, lines in enumerate(files)], MARKER)


def first_movers(*files: list[str]) -> list[int]:
    found = analyze(timeline(*files)).signals
    return sorted(s.scope.ranks[0] for s in found if s.name == "log.python_exception" and s.facts["first"])


def order(*files: list[str]) -> list[int | None]:
    return [match.ranks[0] for match in analyze(timeline(*files)).pattern_matches]


@pytest.mark.parametrize("ahead", [0.0, 37.5, -37.5, 3600.0, -25200.0])
def test_the_skew_of_a_clock_is_told_by_common_steps(ahead):
    read = timeline(steps(0), steps(1), steps(2, ahead))
    assert read.skew == {"n0.log": 0.0, "n1.log": 0.0, "n2.log": pytest.approx(ahead)}
    late = [*steps(2, ahead), f"{stamp(ahead + 30)} [rank2] boom here"]
    assert order([*steps(0), f"{stamp(31)} [rank0] boom here"], steps(1), late) == [2, 0]


def test_the_clock_in_the_middle_is_the_reference():
    assert timeline(steps(0, 600), steps(1), steps(2)).skew == {"n0.log": 600.0, "n1.log": 0.0, "n2.log": 0.0}


def test_a_rank_that_prints_late_by_less_than_a_second_has_no_skewed_clock():
    assert timeline(steps(0), steps(1, late=0.4)).skew == {"n0.log": 0.0, "n1.log": 0.0}


def test_files_of_one_host_share_its_clock():
    read = timeline(steps(0), steps(1), steps(2, 60), steps(3, 60), hosts=("a", "a", "b", "b"))
    assert read.skew == {"a": 0.0, "b": 60.0}


def test_too_few_common_steps_tell_no_skew():
    assert timeline(steps(0, count=4), steps(1, 60, count=4)).skew == {}


def test_steps_that_drift_apart_tell_no_skew():
    drifting = [f"{stamp(5 * n)} [rank1] step {n} loss 2.0" for n in range(10)]
    assert timeline(steps(0), drifting).skew == {}


def test_a_later_attempt_of_the_same_rank_is_no_skewed_clock():
    assert timeline(steps(0), steps(0, 7200)).skew == {}


def test_time_outs_of_one_collective_tell_another_time_zone_and_nothing_finer():
    def timed_out(rank: int, second: float) -> list[str]:
        when = (START + timedelta(seconds=second)).strftime("%m%d %H:%M:%S.%f")
        work = "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)"
        return [
            f"[rank{rank}]:[E{when} p.cpp:1] Watchdog caught collective operation timeout: {work} ran for 600001 ms"
        ]

    assert timeline(timed_out(0, 5), timed_out(1, 3612)).skew == {"n0.log": 0.0, "n1.log": 3600.0}
    assert timeline(timed_out(0, 5), timed_out(1, 55)).skew == {}


def test_inside_a_file_the_order_is_always_known():
    read = timeline([f"{stamp(0)} [rank0] boom here", f"{stamp(0)} [rank1] boom here"])
    one, other = (hit.lines[0] for hit in read.hits)
    assert read.order_is_known(one, other)


@pytest.mark.parametrize(("apart", "known"), [(0.5, False), (1.9, False), (2.5, True)])
def test_stamps_of_clocks_that_nothing_compares_must_lie_apart(apart, known):
    read = timeline([f"{stamp(0)} [rank0] boom here"], [f"{stamp(apart)} [rank1] boom here"])
    one, other = (hit.lines[0] for hit in read.hits)
    assert read.order_is_known(one, other) is known
    assert read.order_is_known(other, one) is known


def test_stamps_of_clocks_that_agree_may_lie_close():
    read = timeline([*steps(0), f"{stamp(31)} [rank0] boom here"], [*steps(1), f"{stamp(31.5)} [rank1] boom here"])
    one, other = (hit.lines[0] for hit in read.hits)
    assert read.order_is_known(one, other)


def test_a_line_that_only_inherits_a_stamp_may_be_of_any_later_time():
    read = timeline([*steps(0), "[rank0] boom here"], [*steps(1), f"{stamp(60)} [rank1] boom here"])
    one, other = (hit.lines[0] for hit in read.hits)
    assert not read.order_is_known(one, other)


def test_a_file_without_any_times_or_steps_comes_last():
    assert order(["[rank0] boom here"], [f"{stamp(0)} [rank1] boom here"]) == [1, 0]


def test_lines_without_a_time_find_their_place_by_their_steps():
    untimed = [f"[rank0] step {n} loss 2.0" for n in range(5)]
    assert order([*untimed, "[rank0] boom here"], [*steps(1), f"{stamp(40)} [rank1] boom here"]) == [0, 1]
    assert order([*untimed, "[rank0] boom here"], [f"{stamp(-5)} [rank1] boom here", *steps(1)]) == [1, 0]


def test_files_without_any_times_are_merged_by_their_steps():
    early = ["[rank1] step 1 loss 2.0", "[rank1] boom here", "[rank1] step 9 loss 2.0"]
    assert order(["[rank0] step 5 loss 2.0", "[rank0] boom here"], early) == [1, 0]


def test_the_first_real_exception_is_told_on_one_clock():
    files = [*steps(0), *raised(0, "RuntimeError: odd", 40)], [*steps(1, 3600), *raised(1, "ValueError: a", 3631)]
    assert first_movers(*files) == [1]


def test_exceptions_whose_order_nobody_knows_are_all_first():
    close = [*steps(0, count=3), *raised(0, "RuntimeError: odd", 31.5)]
    assert first_movers(close, [*steps(1, count=3), *raised(1, "ValueError: a", 31)]) == [0, 1]
    assert first_movers([*steps(0), *raised(0, "RuntimeError: odd")], [*steps(1), *raised(1, "ValueError: a")]) == [
        0,
        1,
    ]


def test_one_fault_on_several_ranks_is_first_on_all_of_them():
    lines = [line.replace("r0.py", "same.py").replace("r1.py", "same.py") for line in
             (*raised(0, "ValueError: rank 0", 1), *raised(1, "ValueError: rank 1", 9))]  # fmt: skip
    assert first_movers(lines) == [0, 1]


def test_a_cascade_never_comes_first():
    assert first_movers([*raised(0, "ConnectionResetError: [Errno 104] x", 1), *raised(1, "ValueError: a", 9)]) == [1]
    assert first_movers(raised(0, "BrokenPipeError: x", 1)) == []


def test_what_the_launcher_saw_fail_first_stays_first():
    table = ["Root Cause (first observed failure):", "  rank      : 1 (local_rank: 1)", "  exitcode  : 1 (pid: 9)"]
    assert first_movers([*raised(0, "ImportError: optional", 1), *raised(1, "ValueError: a", 9), *table]) == [0, 1]


@pytest.mark.parametrize("shift", [86400.0, -86400.0 * 90, 3599.0])
def test_other_names_of_hosts_and_a_shift_of_all_clocks_change_nothing(shift):
    def job(moved: float, *names: str) -> list[tuple[str, list[int], object]]:
        files = (
            [*steps(0, moved), *raised(0, "RuntimeError: odd", moved + 40)],
            [*steps(1, moved + 120), *raised(1, "ValueError: a", moved + 151)],
        )
        found = analyze(timeline(*files, hosts=names)).signals
        return [(s.name, s.scope.ranks, s.facts.get("first")) for s in found]

    assert job(0.0, "a", "b") == job(shift, "zeta", "alpha")


def test_a_year_and_a_day_may_end_while_the_job_runs():
    year = ["[E1231 23:59:59.5 a.cpp:1] [rank0] boom here", "[E0101 00:00:01.5 a.cpp:1] [rank0] boom here"]
    assert [line.time_s for line in timeline(year).hits[0].lines] == [31535999.5, 31536001.5]
    day = ["23:59:59 [rank0] boom here", "00:00:01 [rank0] boom here"]
    assert [line.time_s for line in timeline(day).hits[0].lines] == [86399.0, 86401.0]
