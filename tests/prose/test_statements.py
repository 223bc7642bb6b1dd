import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.prose.analyze import is_denied, load_statements, said
from torchtriage.prose.read import MAX_SENTENCES, is_prose, sentences

EXAMPLES = [(s.signal, line) for s in load_statements() for line in s.matches]
NEAR_MISSES = [(s.signal, line) for s in load_statements() for line in s.rejects]


@pytest.mark.parametrize(("signal", "line"), EXAMPLES)
def test_every_example_says_what_it_stands_under(signal: str, line: str) -> None:
    assert signal in {s.name for s in said(line)}


@pytest.mark.parametrize(("signal", "line"), NEAR_MISSES)
def test_no_near_miss_says_it(signal: str, line: str) -> None:
    assert signal not in {s.name for s in said(line)}


def test_every_expression_has_an_example() -> None:
    for statement in load_statements():
        for regex in statement.regexes:
            assert any(regex.search(line) for line in statement.matches), (statement.signal, regex.pattern)


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]:[E1130 12:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught a timeout when it is over",
        "2026-11-30 12:00:00 INFO the trainer is in the loop",
        'File "/workspace/train.py", line 3, in the_function',
        "RuntimeError: it is not possible to do this because of that",
        "{'loss': 0.1, 'it': 3}",
    ],
)
def test_a_line_that_software_printed_is_no_prose(line: str) -> None:
    assert not is_prose(line)


def test_a_sentence_keeps_the_line_it_stands_in() -> None:
    (first, second) = sentences("It trains fine. Then it hangs.")
    assert (first.text, second.text, second.line_number) == ("It trains fine.", "Then it hangs.", 1)


def test_the_rank_that_differs_is_the_scope() -> None:
    (signal,) = [s for s in said("only rank 3 prints anything") if s.name == "said.one_rank_differs"]
    assert signal.scope.ranks == [3]


def test_a_denial_in_another_clause_takes_nothing_back() -> None:
    assert not is_denied("it is not new, it hangs", 15)
    assert is_denied("it has never hung", 13)


def test_no_text_yields_more_sentences_than_the_limit() -> None:
    assert sum(1 for _ in sentences("it is so. " * 5000)) <= MAX_SENTENCES


@given(st.text(max_size=500))
def test_any_text_can_be_read(text: str) -> None:
    for signal in said(text):
        assert signal.evidence


@given(st.lists(st.sampled_from([line for _, line in EXAMPLES + NEAR_MISSES]), min_size=1, max_size=6))
def test_a_text_says_what_its_lines_say(lines: list[str]) -> None:
    assert {s.name for s in said("\n".join(lines))} == {s.name for line in lines for s in said(line)}


def test_what_is_quoted_in_a_sentence_is_not_said() -> None:
    assert "said.fails" not in {s.name for s in said("We see `this can leak resources` at the end of the run.")}
    assert "said.fails" in {s.name for s in said("We see `a line` and then it hangs.")}
