"""Texts that playbook entries name: found exactly, at a cost that hardly depends on how many there are."""

from __future__ import annotations

import time

import pytest

from torchtriage.logs.analyze import PatternMatch, analyze
from torchtriage.logs.scan.literals import DIGITS, LiteralIndex
from torchtriage.logs.scan.read import MAX_HITS_KEPT, LogPattern, PatternSet, scan, text_source


def matches(text: str, *patterns: LogPattern) -> list[PatternMatch]:
    return analyze(scan([text_source(text)], PatternSet(patterns))).pattern_matches


def test_a_literal_with_digits_is_verified_in_the_line():
    found = matches("error 12 here\nerror 13 here", LogPattern("p", "error 13"))
    assert [(match.evidence.where, match.evidence.signal) for match in found] == [("2", "log.pattern")]


def test_case_matters():
    assert matches("Cuda error", LogPattern("p", "CUDA error")) == []


def test_groups_called_rank_are_ranks_and_others_are_facts():
    pattern = LogPattern(
        "dup", "Duplicate GPU", r"rank (?P<rank_a>\d+) and rank (?P<rank_b>\d+) both on .* (?P<bus>\w+)$"
    )
    (found,) = matches("[rank9]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60", pattern)
    assert (found.ranks, found.facts) == ([0, 1], {"bus": "60"})


def test_a_regex_that_does_not_match_rejects_the_line():
    assert matches("boom 1", LogPattern("p", "boom", r"boom [a-z]")) == []


def test_a_regex_that_does_not_compile_is_a_note():
    found = analyze(scan([text_source("boom")], PatternSet([LogPattern("p", "boom", "(")])))
    assert (found.pattern_matches, found.notes) == ([], ["pattern p: its regex does not compile"])


def test_matches_of_one_rank_are_counted_and_few_are_kept():
    timeline = scan([text_source("[rank1] boom\n" * 500 + "[rank0] boom")], PatternSet([LogPattern("p", "boom")]))
    assert [len(hits.lines) for hits in timeline.hits] == [MAX_HITS_KEPT, 1]
    assert [(match.ranks, match.count) for match in analyze(timeline).pattern_matches] == [([1], 500), ([0], 1)]


def test_the_text_is_in_the_quotation_of_a_long_line():
    (found,) = matches("[rank0] " + "word " * 200 + "needle in hay", LogPattern("p", "needle in hay"))
    assert "needle in hay" in found.evidence.quote


def test_a_secret_is_masked_in_a_quotation():
    (found,) = matches("boom token=hf_" + "a" * 40, LogPattern("p", "boom"))
    assert "aaaa" not in found.evidence.quote


@pytest.mark.parametrize(
    ("literal", "line", "occurs"),
    [
        ("out of memory", "CUDA out of memory.", True),
        ("OutOfMemoryError", "torch.OutOfMemoryError: x", True),
        ("Error", "MyErrors", True),
        ("a b c", "xa b cy", True),
        ("a b c", "a  b c", False),
        ("exitcode: -9", "(exitcode: -6)", True),
        ("", "anything", False),
    ],
)
def test_the_index_answers_like_a_plain_search_of_templates(literal, line, occurs):
    assert (LiteralIndex([literal]).candidates(line.translate(DIGITS)) == (0,)) is occurs


def test_many_patterns_cost_little():
    few = PatternSet([LogPattern("p", "CUDA out of memory")])
    many = PatternSet(
        [LogPattern(f"p{i}", f"failure of kind{i % 50} in unit {chr(97 + i % 26)}{i}") for i in range(600)]
    )
    text = "\n".join(f"[rank{i % 8}] step {i} loss {7 + i / 1e4:.4f} tokens 4096" for i in range(3000))
    times: list[float] = []
    for patterns in (few, many, few, many):
        start = time.perf_counter()
        scan([text_source(text)], patterns)
        times.append(time.perf_counter() - start)
    assert min(times[1], times[3]) < 3 * min(times[0], times[2]) + 0.05
