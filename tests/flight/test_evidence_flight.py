"""What is quoted of a dump can be found again and shown; what cannot is left out."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from flight.flight_dumps import call, dump, loop
from torchtriage import check_evidence
from torchtriage.flight.naming import named, named_site
from torchtriage.flight.tool import analyze_flight_recorder, render

if TYPE_CHECKING:
    from pathlib import Path

    from torchtriage.tool_reports import FlightReport

REDUCE = call("all_reduce", 10)
OPEN_REDUCE = call("all_reduce", 10, done=False)


def views(n_ranks: int = 3, op: str = "all_reduce") -> list[dict[str, Any]]:
    """Ranks 0 to n - 1 of which the last one is a call behind; one more left no dump."""
    world = {"0": list(range(n_ranks + 1))}
    steps = loop(4, call(op, 10))
    made = [dump(steps if r == n_ranks - 1 else [*steps, call(op, 10, done=False)], world) for r in range(n_ranks)]
    for rank, view in enumerate(made):
        for entry in view["entries"]:
            entry["time_created_ns"] += rank
    return made


def analyzed(folder: Path, made: list[dict[str, Any]]) -> FlightReport:
    for rank, view in enumerate(made):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(view, 2))
    return analyze_flight_recorder([str(folder)])


def rekeyed(view: dict[str, Any], key: Any) -> dict[str, Any]:
    group = view["pg_config"]["0"]
    entries = [{**e, "process_group": (str(key), "group_0")} for e in view["entries"]]
    return {**view, "pg_config": {key: {**group, "name": str(key)}}, "entries": entries}


@pytest.mark.parametrize("key", ["\x1b]0;title\x07\x1b[2J", "hf_" + "abcdefgh" * 4, "k" * 300, 0, 7])
def test_quotes_of_groups_with_odd_keys_are_found_again_or_left_out(tmp_path: Path, key: Any) -> None:
    report = analyzed(tmp_path, [rekeyed(view, key) for view in views()])
    assert report.evidence
    assert all(quote.where.isprintable() and check_evidence(quote, [str(tmp_path)]) for quote in report.evidence)
    assert render(report).replace("\n", "").isprintable()


def test_counters_under_a_key_that_cannot_be_shown_are_not_quoted(tmp_path: Path) -> None:
    made: list[dict[str, Any]] = [
        {**view, "entries": [], "pg_status": {"\x1b[2Jtoken=abcd1234": view["pg_status"]["0"]}} for view in views()
    ]
    report = analyzed(tmp_path, made)
    assert all(quote.where.isprintable() and check_evidence(quote, [str(tmp_path)]) for quote in report.evidence)


def test_a_long_name_with_invisible_characters_is_not_quoted_with_an_end_that_it_has_not(tmp_path: Path) -> None:
    report = analyzed(tmp_path, views(op="\u200b" * 400 + "all_reduce" + "x" * 200))
    assert all(check_evidence(quote, [str(tmp_path)]) for quote in report.evidence)


def test_words_of_a_job_stand_in_quotation_marks() -> None:
    assert named("all_reduce") == "all_reduce"
    assert named("send 0->1") == "send 0->1"
    assert named("Run this now") == '"Run this now"'
    assert named_site("train (train.py:10)") == "train (train.py:10)"
    assert named_site("<lambda> (train.py:?)") == "<lambda> (train.py:?)"
    assert named_site("run it now (train.py:10)") == '"run it now" (train.py:10)'
    assert named_site("train (run it now:10)") == 'train "(run it now:10)"'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1}', "JSON of another kind"),
        (b"2026-11-30 12:00:00 error: no space left\n", "a log"),
        (b"[" * 1000, "not a flight-recorder dump|JSON of another kind|text"),
        (json.dumps({"version": "2.10", "pg_config": None, "pg_status": {}}).encode(), "an empty dump"),
    ],
)
def test_a_file_named_like_a_dump_is_told_for_what_it_is(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "nccl_trace_rank_3").write_bytes(content)
    gaps = [gap for gap in analyzed(tmp_path, views()).gaps if gap.startswith("nccl_trace_rank_3: ")]
    assert any(word in gap for gap in gaps for word in words.split("|"))


def test_a_log_beside_the_dumps_is_no_gap(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text("12:00:00 step 1 loss 2.0\n")
    (tmp_path / "stack_dump_3.txt").write_text("text\n")
    assert not any("named like" in gap for gap in analyzed(tmp_path, views()).gaps)
