"""Every entry of the playbook proves itself on texts as people paste them (evals/symptoms/examples/).

Of each text: the mode is the answer; without the lines that decide it the answer is weaker; with a neighbour's lines in
their place the neighbour is the answer; and who printed what, on which host and at which hour, changes nothing.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from torchtriage.knowledge.load import load_playbook
from torchtriage.verdict.tool import explain_symptom

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchtriage.report import Verdict

FOLDER = Path(__file__).resolve().parents[2] / "evals" / "symptoms" / "examples"
KEYS = {"mode", "text", "decisive", "undecidable", "confusable"}
STRENGTH = {"diagnosed": 2, "suspected": 1}
HOURS_LATER = 5


def _examples() -> list[tuple[str, str, dict[str, Any]]]:
    """All examples, by branch and with a name of their own: the mode, and its number where a mode has several."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        seen: Counter[str] = Counter()
        for example in document["examples"]:
            seen[example["mode"]] += 1
            number = seen[example["mode"]]
            name = example["mode"] if number == 1 else f"{example['mode']}-{number}"
            found.append((document["branch"], name, example))
    return found


EXAMPLES = _examples()
DECIDABLE = [(name, example) for _, name, example in EXAMPLES if "undecidable" not in example]
each_decidable = pytest.mark.parametrize("example", [e for _, e in DECIDABLE], ids=[name for name, _ in DECIDABLE])
each = pytest.mark.parametrize("example", [e for *_, e in EXAMPLES], ids=[name for _, name, _ in EXAMPLES])


@functools.cache
def explained(text: str) -> Verdict:
    return explain_symptom(text)


def answer(verdict: Verdict) -> str | None:
    """The mode that is named, or named first."""
    if verdict.failure_mode is not None:
        return verdict.failure_mode
    return verdict.candidates[0].failure_mode if verdict.candidates else None


def standing(verdict: Verdict, mode: str) -> tuple[int, float]:
    """How much is said for a mode: the status where it is the answer, then the confidence."""
    if answer(verdict) != mode:
        return (-1, 0.0)
    return (STRENGTH.get(verdict.status, 0), verdict.confidence)


def with_lines(example: dict[str, Any], instead: list[str]) -> str:
    """The text with other lines where the first decisive one stood, and without the rest of them."""
    decisive = list(example["decisive"])
    lines: list[str] = []
    for line in example["text"].splitlines():
        if line in decisive:
            lines += instead
            instead = []
        else:
            lines.append(line)
    return "\n".join(lines)


# What must not matter. Rank 0 keeps its number: that it is the main process means something.

_RANK = re.compile(r"(?P<before>\[rank|(?<![A-Za-z])[Rr]ank(?: \[| ?: ?| |=))(?P<rank>\d{1,4})\b")
_HOST = re.compile(r"\b(?:node|worker|host)-?(?P<number>\d{1,4})\b")
_HOUR = re.compile(r"(?<![\d:<\[])(?P<hour>[01]\d)(?=:[0-5]\d:[0-5]\d\b)")


def other_ranks(text: str) -> tuple[str, dict[int, int]]:
    """The text with its ranks above 0 in reverse order, and which became which."""
    ranks = sorted({int(m["rank"]) for m in _RANK.finditer(text)} - {0})
    became = {0: 0} | dict(zip(ranks, reversed(ranks), strict=True))
    return _RANK.sub(lambda m: f"{m['before']}{became[int(m['rank'])]}", text), became


def other_hosts(text: str) -> str:
    return _HOST.sub(lambda m: f"rack{int(m['number']) + 40}", text)


def later(text: str) -> str:
    if any(int(m["hour"]) + HOURS_LATER > 23 for m in _HOUR.finditer(text)):
        return text
    return _HOUR.sub(lambda m: f"{int(m['hour']) + HOURS_LATER:02}", text)


def told(verdict: Verdict) -> tuple[str, str | None]:
    return (verdict.status, answer(verdict))


# How the examples are written


def test_the_examples_of_a_branch_are_of_its_own_modes_and_leave_none_out() -> None:
    entries = load_playbook().entries
    for branch in {branch for branch, *_ in EXAMPLES}:
        shown = {example["mode"] for b, _, example in EXAMPLES if b == branch}
        assert shown == {entry.id for entry in entries.values() if entry.branch == branch}


@each
def test_an_example_is_short_and_its_decisive_lines_are_lines_of_it(example: dict[str, Any]) -> None:
    lines = example["text"].splitlines()
    assert example.keys() <= KEYS
    assert 3 <= len(lines) <= 14
    assert ("decisive" in example) != ("undecidable" in example)
    assert set(example.get("decisive", ())) <= set(lines)
    assert len(example.get("decisive", ())) < len(lines)


@each
def test_the_neighbour_of_an_example_is_one_that_the_entry_warns_of(example: dict[str, Any]) -> None:
    confusable = example["confusable"]
    book = load_playbook()
    others = {confusable["mode"], *confusable.get("flips_to", ())}
    assert example["mode"] not in others
    assert others <= book.entries.keys()
    if not confusable.get("flips_to"):
        text = book.text(book.entries[example["mode"]])
        assert f"`{confusable['mode']}`" in text.partition("## Confused with")[2].partition("\n## ")[0]


# What must be answered


@each_decidable
def test_the_mode_is_the_answer(example: dict[str, Any]) -> None:
    assert answer(explained(example["text"])) == example["mode"]


@each_decidable
def test_without_its_decisive_lines_the_answer_is_weaker(example: dict[str, Any]) -> None:
    whole, rest = explained(example["text"]), explained(with_lines(example, []))
    assert rest.status != "diagnosed"
    assert standing(rest, example["mode"]) < standing(whole, example["mode"])


@each_decidable
def test_with_the_neighbours_lines_the_neighbour_is_the_answer(example: dict[str, Any]) -> None:
    confusable = example["confusable"]
    verdict = explained(with_lines(example, confusable["lines"]))
    assert answer(verdict) in {confusable["mode"], *confusable.get("flips_to", ())}


@each
@pytest.mark.parametrize("change", [other_hosts, later], ids=["hosts", "hours"])
def test_hosts_and_hours_do_not_matter(example: dict[str, Any], change: Callable[[str], str]) -> None:
    assert told(explained(change(example["text"]))) == told(explained(example["text"]))


@each
def test_the_numbers_of_ranks_matter_only_for_whom_is_named(example: dict[str, Any]) -> None:
    text, became = other_ranks(example["text"])
    before, after = explained(example["text"]), explained(text)
    assert told(after) == told(before)
    assert after.culprits.ranks == sorted(became.get(rank, rank) for rank in before.culprits.ranks)


@each
def test_what_a_text_cannot_tell_is_left_open(example: dict[str, Any]) -> None:
    if "undecidable" in example:
        verdict = explained(example["text"])
        named = {c.failure_mode for c in verdict.candidates}
        assert verdict.status in ("inconclusive", "suspected")
        assert {example["mode"], example["confusable"]["mode"]} <= named
