"""Thinning: what is kept of a log that is too large to be read line by line."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from torchtriage.artefacts.inputs import Artefact
from torchtriage.artefacts.isolate import Outcome, run_jobs
from torchtriage.logs.records import LogPattern, PatternSet
from torchtriage.logs.scan.buckets import HEAD_LINES
from torchtriage.logs.scan.plans import HINTS
from torchtriage.logs.scan.sift import TAIL_LINES, Kept, Sifter, sift
from torchtriage.logs.scan.thin import thinned_logs, thinning_jobs

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TELLING = ["Watchdog caught collective operation timeout", "CUDA error: "]


def thin(lines: list[str], *, budget: int = 60_000, block_bytes: int = 1 << 16) -> list[Kept]:
    data = "".join(f"{line}\n" for line in lines).encode()
    sifter = Sifter(TELLING, HINTS, labelled="", budget=budget)
    kept = sift((data[at : at + block_bytes] for at in range(0, len(data), block_bytes)), sifter)
    assert sifter.n_lines == len(lines)
    return kept


def log_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], part_bytes: int, n: int) -> Artefact:
    """A log of these lines that up to ``n`` workers thin, in parts of at least ``part_bytes``."""
    monkeypatch.setattr("torchtriage.logs.scan.thin.THIN_FROM_BYTES", 0)
    monkeypatch.setattr("torchtriage.logs.scan.thin.MIN_PART_BYTES", part_bytes)
    monkeypatch.setattr("torchtriage.logs.scan.thin.os.cpu_count", lambda: n)
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Artefact("train.log", path, "log", "text", None, path.stat().st_size)


def step_lines(n_steps: int, n_ranks: int = 4) -> list[str]:
    return [
        f"[rank{rank}]: 2026-11-30 12:{step // 60 % 60:02d}:{step % 60:02d} step {step} loss {7.5 - step / 1e6:.6f}"
        for step in range(n_steps)
        for rank in range(n_ranks)
    ]


def test_a_small_log_is_kept_whole() -> None:
    lines = step_lines(200)

    assert thin(lines) == [(number, 1, line) for number, line in enumerate(lines, start=1)]


def test_the_first_and_the_last_lines_of_each_rank_are_kept_and_a_sample_between() -> None:
    lines = step_lines(20_000)

    kept = thin(lines)

    numbers = {number for number, _, _ in kept}
    assert set(range(1, 4 * HEAD_LINES + 1)) <= numbers
    assert set(range(len(lines) - 4 * TAIL_LINES + 1, len(lines) + 1)) <= numbers
    of_rank = [number for number, _, text in kept if text.startswith("[rank2]")]
    assert len(of_rank) < 1400
    assert max(b - a for a, b in itertools.pairwise(of_rank)) <= len(lines) // 16


@given(
    seed=st.integers(0, 1000),
    n_lines=st.integers(1, 6000),
    budget=st.integers(400, 5000),
    block=st.integers(200, 70_000),
)
def test_what_is_kept_stands_for_every_line(seed: int, n_lines: int, budget: int, block: int) -> None:
    rng = random.Random(seed)
    words = ["step {} loss 1.5", "saved shard {}", "CUDA error: {}", "x {}", "Traceback (most recent call last):"]
    lines = [
        f"[rank{rng.randrange(3)}]: " * rng.randrange(2) + rng.choice(words).format(rng.randrange(10**6))
        for _ in range(n_lines)
    ]

    kept = thin(lines, budget=budget, block_bytes=block)

    assert sum(weight for _, weight, _ in kept) == n_lines
    assert all(lines[number - 1] == text for number, _, text in kept)
    assert [number for number, _, _ in kept] == sorted({number for number, _, _ in kept})


def test_a_rank_that_fell_silent_early_keeps_its_last_words() -> None:
    lines = [line for line in step_lines(30_000) if not line.startswith("[rank3]") or "step 1" in line[:48]]
    lines = [line for n, line in enumerate(lines) if not (line.startswith("[rank3]") and n > 40_000)]
    last = [line for line in lines if line.startswith("[rank3]")][-TAIL_LINES:]

    texts = {text for _, _, text in thin(lines)}

    assert set(last) <= texts


def test_one_telling_line_among_a_million_words_is_kept() -> None:
    rng = random.Random(7)
    lines = [f"[rank{rng.randrange(8)}]: read {rng.getrandbits(60):x} from {rng.random()}" for _ in range(40_000)]
    lines[23_456] = "[rank5]: RuntimeError: CUDA error: an illegal memory access was encountered"

    kept = thin(lines, budget=2000)

    assert (23_457, 1, lines[23_456]) in kept
    assert len(kept) < 2000


def test_an_exception_is_kept_whole_although_other_ranks_print_between_its_lines() -> None:
    trace = ["Traceback (most recent call last):"]
    trace += [f'  File "/workspace/m{i}.py", line {i}, in forward\n'.rstrip() for i in range(120)]
    trace += ["ValueError: bad shape"]
    lines = step_lines(10_000)
    for at, text in enumerate(trace):
        lines.insert(20_000 + 3 * at, f"[rank1]: {text}")

    texts = {text for _, _, text in thin(lines, budget=3000)}

    assert {f"[rank1]: {text}" for text in trace} <= texts


def test_a_line_without_a_time_keeps_the_line_that_gives_it_one() -> None:
    lines = step_lines(20_000, 1)
    lines.insert(15_000, "RuntimeError: CUDA error: unspecified launch failure")

    numbers = {number for number, _, _ in thin(lines)}

    assert {15_000, 15_001} <= numbers


def test_very_many_ranks_keep_the_least_of_each() -> None:
    lines = [f"[rank{rank}]: step {step} loss 2.5" for step in range(40) for rank in range(1500)]

    kept = thin(lines, budget=1000)

    assert {text.partition(":")[0] for _, _, text in kept} == {f"[rank{rank}]" for rank in range(1500)}


def test_parts_of_one_file_are_put_together_with_the_right_line_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = step_lines(4000)
    log = log_in_parts(tmp_path, monkeypatch, lines, 100_000, 5)
    patterns = PatternSet([LogPattern("a", TELLING[0])])

    jobs = thinning_jobs([log], patterns)
    losses: list[str] = []
    thinned = thinned_logs(jobs, run_jobs(jobs), losses)["train.log"]

    assert len(jobs) > 2
    assert losses == []
    assert thinned.n_lines == len(lines)
    assert sum(weight for _, weight, _ in thinned.kept) == len(lines)
    assert all(lines[number - 1] == text for number, _, text in thinned.kept)


def test_a_file_that_is_gone_when_its_turn_comes_is_a_loss_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.logs.scan.thin.THIN_FROM_BYTES", 0)
    log = Artefact("train.log", tmp_path / "train.log", "log", "text", None, 5_000_000)

    jobs = thinning_jobs([log], PatternSet([]))
    losses: list[str] = []
    thinned = thinned_logs(jobs, run_jobs(jobs), losses)

    assert thinned["train.log"].kept == []
    assert len(losses) == 1
    assert losses[0].startswith("train.log: a part of it was not read: ")


def test_a_block_that_is_only_looked_through_is_read_when_a_rank_falls_silent_in_it() -> None:
    lines = step_lines(60_000)
    end = len(lines) * 3 // 5
    last = max(n for n, line in enumerate(lines[:end]) if line.startswith("[rank3]"))
    lines = [line for n, line in enumerate(lines) if n <= last or not line.startswith("[rank3]")]

    for block_bytes in (20_000, 50_000, 90_000):
        kept = thin(lines, budget=4000, block_bytes=block_bytes)
        of_rank = [number for number, _, text in kept if text.startswith("[rank3]")]
        assert of_rank[-1] == last + 1
        assert len(of_rank) >= TAIL_LINES


def test_a_value_that_is_no_number_is_kept_with_the_rows_before_it() -> None:
    lines = step_lines(40_000)
    at = 4 * 31_003 + 2
    lines[at] = lines[at].rpartition(" ")[0] + " nan"

    for block_bytes in (20_000, 70_000, 1 << 20):
        numbers = [number for number, _, text in thin(lines, block_bytes=block_bytes) if text.startswith("[rank2]")]
        position = numbers.index(at + 1)
        assert numbers[position - 8 : position] == [at + 1 - 4 * k for k in range(8, 0, -1)]


def test_lines_behind_a_part_that_was_lost_keep_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = step_lines(1000)
    log = log_in_parts(tmp_path, monkeypatch, lines, 60_000, 3)
    jobs = thinning_jobs([log], PatternSet([]))
    outcomes = run_jobs(jobs)
    outcomes[0] = Outcome(log, error="given up")

    losses: list[str] = []
    thinned = thinned_logs(jobs, outcomes, losses)["train.log"]

    assert losses == ["train.log: a part of it was not read: given up"]
    assert thinned.n_lines == len(lines)
    assert thinned.kept
    assert all(lines[number - 1] == text for number, _, text in thinned.kept)


def test_an_endless_line_at_the_border_of_parts_is_not_cut_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.logs.scan.thin._MAX_LINE_BYTES", 50_000)
    lines = [*step_lines(50), "x" * 200_000, *step_lines(50)]
    log = log_in_parts(tmp_path, monkeypatch, lines, 1, 2)

    jobs = thinning_jobs([log], PatternSet([]))
    thinned = thinned_logs(jobs, run_jobs(jobs), [])["train.log"]

    assert thinned.n_lines == len(lines)
    assert all(lines[number - 1].startswith(text) for number, _, text in thinned.kept)


def test_ever_new_marks_cost_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage.logs.scan.sift.MAX_MARKS", 500)
    lines = [f"[rank{number}]: step 1 loss 2.0" for number in range(20_000)]

    kept = thin(lines, budget=2000)

    assert len(kept) < 2500
    assert sum(weight for _, weight, _ in kept) == len(lines)
