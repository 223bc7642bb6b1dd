"""What a rank says it left out: a batch or a step of its own, and not what all leave out or what is no step."""

from __future__ import annotations

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.records import LogSource, PatternSet
from torchtriage.logs.scan.read import scan
from torchtriage.report import Signal


def steps(first: int, last: int) -> list[str]:
    return [f"2026-01-01 10:00:{s:02d},100 INFO step={s} loss={2.5 - s / 100:.4f}" for s in range(first, last + 1)]


def said(words: str) -> str:
    return f"2026-01-01 10:00:05,300 WARNING {words}"


def signals(*ranks: list[str]) -> dict[str, Signal]:
    sources = [LogSource(f"rank{rank}.log", lines, rank=rank) for rank, lines in enumerate(ranks)]
    return {signal.name: signal for signal in analyze(scan(sources, PatternSet([]))).signals}


LEFT_OUT = [
    "step=5 skipping batch: token 70000 out of range",
    "[step 5] skipping this batch: decode error",
    "iteration 5: skipped bad batch",
    "Skipping step 5: sample is corrupt",
    "step 5 was skipped because of an invalid sample",
    "update 5: Skipping backward, loss is nan",
    "image truncated, skipping the batch",
]


@pytest.mark.parametrize("words", LEFT_OUT)
def test_a_rank_that_says_it_left_out_a_step_skipped_it_whether_it_went_on_or_hangs(words: str):
    for told in (
        signals(steps(0, 8), [*steps(0, 4), said(words), *steps(6, 8)]),
        signals(steps(0, 4), [*steps(0, 4), said(words)]),
    ):
        skipped = told["log.step_skipped"]
        assert (skipped.scope.ranks, skipped.facts["step"]) == ([1], 5)
        assert words in skipped.evidence[0].quote
        assert "log.steps_even" not in told


@pytest.mark.parametrize(
    "words",
    [
        "Skipping first 5 batches (resume)",
        "resuming: skipping batch 5",
        "step=5 skipping checkpoint",
        "step 5: skipping evaluation",
        "step=5 skipped=0 lr=0.1",
        "iteration 5 | number of skipped iterations:   0",
        "step=5 gradient overflow, skipping step, lowering loss scale",
    ],
)
def test_what_is_skipped_otherwise_is_no_skipped_step(words: str):
    told = signals(steps(0, 8), [*steps(0, 4), said(words), *steps(5, 8)])
    assert "log.step_skipped" not in told


def test_a_step_that_all_ranks_leave_out_strands_nobody():
    lines = [*steps(0, 4), said("step=5 skipping batch: empty"), *steps(6, 8)]
    assert "log.step_skipped" not in signals(lines, lines)


def test_a_rank_that_prints_the_step_all_the_same_did_it():
    lines = [*steps(0, 4), said("step=5 skipping update: gradient is nan"), *steps(5, 8)]
    assert "log.step_skipped" not in signals(steps(0, 8), lines)


def test_a_rank_that_often_leaves_out_batches_does_so_by_rule():
    lines = [line for s in range(8) for line in (*steps(2 * s, 2 * s), said(f"step={2 * s + 1} skipping batch: short"))]
    assert "said" not in signals(steps(0, 15), lines).get("log.step_skipped", Signal(name="log.step_skipped")).facts
