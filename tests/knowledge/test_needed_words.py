import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.knowledge.needed_words import needed_words
from torchtriage.prose.analyze import load_statements

REGEXES = [(regex, needed) for s in load_statements() for regex, needed in zip(s.regexes, s.needed, strict=True)]
LINES = [line for s in load_statements() for line in (*s.matches, *s.rejects)]


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        (r"\bhang(?:s|ing)?\b", ["hang"]),
        (r"\b(?:crash(?:es)?|died|NaN)\b", ["crash", "died", "nan"]),
        (r"\bon (?:\S{1,12} ){0,2}(?:resume|load)", ["load", "resume"]),
        (r"hangs|hang", ["hang"]),
        (r"(?:rank )?\d{1,4}", []),
        (r"rank|\d{1,4}", []),
        (r"(?!never)[a-z]{1,9}", []),
        (r"(?:stuck){1,3}", ["stuck"]),
        (r"[Oo]ut of memory", ["ut of memory"]),
        ("ſtuck", ["tuck"]),
    ],
)
def test_what_an_expression_needs_is_told_and_nothing_else(regex: str, words: list[str]) -> None:
    assert needed_words(regex) == words


@given(st.lists(st.sampled_from([word for line in LINES for word in line.split()]), max_size=12))
def test_no_expression_matches_a_text_without_its_words(words: list[str]) -> None:
    for line in (" ".join(words), *LINES):
        for regex, needed in REGEXES:
            if needed and not any(word in line.lower() for word in needed):
                assert regex.search(line) is None, (line, regex.pattern)


def test_an_expression_that_cannot_be_parsed_is_an_error() -> None:
    with pytest.raises(re.error):
        needed_words("(")
