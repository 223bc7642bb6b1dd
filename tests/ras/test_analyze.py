"""Judging of RAS answers: recorded ones, and the layouts of every section that NCCL writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtriage.artefacts.evidence import quote_occurs
from torchtriage.artefacts.inputs import open_inputs
from torchtriage.artefacts.isolate import read_isolated
from torchtriage.errors import UnreadableError
from torchtriage.ras.analyze import RasFindings, analyze
from torchtriage.ras.read import read_json, read_task, read_text

DATA = Path(__file__).resolve().parents[1] / "data" / "ras"

HEAD = """SERVER PROTOCOL 2
OK
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.000s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH
    1         2         1         2         2         4   RUNNING      OK

Errors
======

"""
WARNINGS = """Warnings
========

"""


def gpu(rank: int) -> str:
    return f"GPU {rank} managed by process {500 + rank} on node 192.0.2.2"


def of_text(*texts: str) -> RasFindings:
    return analyze([(f"ras-{number}.txt", read_text(text)) for number, text in enumerate(texts)])


def json_answer(counts: list[dict[str, int]], **communicator: Any) -> dict[str, Any]:
    flags = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    ranks = [
        {"rank": r, "host": "192.0.2.2", "pid": 500 + r, "cuda_dev": r, "status": dict(flags), "collective_counts": c}
        for r, c in enumerate(counts)
    ]
    return {
        "nccl_version": "2.28.9",
        "timestamp": "2026-11-30 06:29:08",
        "communicators": [{"hash": "0xab", "size": len(ranks), "ranks": ranks, "missing_ranks": [], **communicator}],
    }


def of_json(*views: Any) -> RasFindings:
    return analyze([(f"ras-{number}.json", read_json(view)) for number, view in enumerate(views)])


def brief(found: RasFindings) -> list[tuple[str, list[int]]]:
    return [(s.name, s.scope.ranks) for s in found.signals]


@pytest.mark.parametrize(
    ("name", "signals", "facts"),
    [
        ("live_skip_branch", [("ras.operation_counts_differ", [1])], ("AllReduce", 8, 9, 1)),
        ("live_dataloader_stall", [("ras.operation_counts_differ", [1])], ("AllReduce", 5, 7, 2)),
        ("live_a2a_split", [("ras.in_step", [0, 1])], (None, None, None, None)),
    ],
)
def test_recorded_answers_are_judged_and_quoted(name: str, signals: list[Any], facts: tuple[Any, ...]) -> None:
    with open_inputs([str(DATA / name)]) as inputs:
        artefacts = inputs.of("ras")
        assert len(artefacts) == 3
        found = analyze([(o.artefact.name, o.result) for o in read_isolated("ras", artefacts)])
        by_name = {a.name: a for a in artefacts}
        assert all(quote_occurs(e, by_name[e.artefact]) for s in found.signals for e in s.evidence)
    assert brief(found) == signals
    told = found.signals[0].facts
    assert tuple(told.get(k) for k in ("operation", "count", "peers_count", "behind_by")) == facts
    assert sorted(found.rank_of_pid.values()) == [0, 1]
    assert found.notes == []


@pytest.mark.parametrize("file", ["ncclras-status.txt", "ncclras-verbose.txt", "ncclras-json.txt"])
def test_each_form_of_an_answer_is_enough(file: str) -> None:
    path = DATA / "live_skip_branch" / file
    answer = read_task(str(path), None, {"format": "json" if "json" in file else "text"})
    found = analyze([(file, answer)])
    assert brief(found) == [("ras.operation_counts_differ", [1])]
    assert found.signals[0].facts["other_operations_equal"]
    assert found.rank_of_pid == {600: 0, 601: 1}


def test_the_grouped_layout_names_the_few() -> None:
    text = HEAD + WARNINGS + (
        "#0-0 (ab) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        f"  3 ranks have launched up to operation 64\n  Rank 3 has launched up to operation 60 -- {gpu(3)}\n\n"
    )  # fmt: skip
    found = of_text(text)
    assert brief(found) == [("ras.operation_counts_differ", [3])]
    assert (found.signals[0].facts["count"], found.signals[0].facts["peers_count"]) == (60, 64)
    assert [e.where for e in found.signals[0].evidence] == ["30", "29"]


def test_the_layout_before_operations_were_told_apart_is_read() -> None:
    text = HEAD + WARNINGS + (
        "#0-0 (ab) MISMATCH\n  Communicator ranks have different collective operation counts\n"
        f"  2 ranks have launched up to operation 6650\n  2 ranks have launched up to operation 6649\n"
        f"  Rank 0 -- {gpu(0)}\n  Rank 2 -- {gpu(2)}\n\n"
    )  # fmt: skip
    found = of_text(text)
    assert brief(found) == [("ras.operation_counts_differ", [0, 2])]


def test_ranks_that_launched_nothing_count_as_zero() -> None:
    text = HEAD + WARNINGS + (
        "#0-0 (ab) MISMATCH\n  Communicator ranks have different Broadcast operation counts\n"
        f"  3 ranks have launched up to operation 2\n  Rank 1 has not launched any operations -- {gpu(1)}\n\n"
    )  # fmt: skip
    assert of_text(text).signals[0].facts["count"] == 0


def test_several_communicators_and_ranks_of_sub_groups_are_mapped_by_process() -> None:
    small = json_answer([{"AllReduce": 5}, {"AllReduce": 4}])["communicators"][0]
    for rank in small["ranks"]:
        rank["pid"] += 2
    whole = json_answer([{"AllReduce": 9}] * 4)
    whole["communicators"].append({**small, "hash": "0xcd"})
    found = of_json(whole)
    assert found.rank_of_pid == {500: 0, 501: 1, 502: 2, 503: 3}
    assert brief(found) == [("ras.operation_counts_differ", [3])]
    assert found.signals[0].facts["communicator_ranks"] == [1]


def test_without_a_communicator_of_the_whole_job_ranks_are_not_guessed() -> None:
    first = json_answer([{"AllReduce": 5}, {"AllReduce": 4}])
    second = json_answer([{"AllReduce": 5}, {"AllReduce": 5}])["communicators"][0]
    for rank in second["ranks"]:
        rank["pid"] += 10
    first["communicators"].append({**second, "hash": "0xcd"})
    found = of_json(first)
    assert found.rank_of_pid == {}
    assert brief(found) == [("ras.operation_counts_differ", [])]
    assert found.signals[0].facts["pids"] == [501]


def test_a_text_answer_about_a_sub_group_does_not_make_its_ranks_global() -> None:
    text = HEAD.replace("MISMATCH", "OK") + WARNINGS + (
        "#1-0 (ef) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        f"  Rank 0 has launched up to operation 3 -- {gpu(2)}\n  Rank 1 has launched up to operation 2 -- {gpu(3)}\n\n"
    )  # fmt: skip
    found = of_text(text)
    assert (found.rank_of_pid, brief(found)) == ({}, [("ras.operation_counts_differ", [])])


def test_json_counts_win_over_text_of_another_moment() -> None:
    text = HEAD + WARNINGS + (
        "#0-0 (ab) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        f"  3 ranks have launched up to operation 64\n  Rank 3 has launched up to operation 60 -- {gpu(3)}\n\n"
    )  # fmt: skip
    view = json_answer([{"AllReduce": 70}] * 3 + [{"AllReduce": 66}])
    found = analyze([("a.txt", read_text(text)), ("b.json", read_json(view))])
    assert [s.facts["peers_count"] for s in found.signals] == [70]


def test_different_status_is_told() -> None:
    text = HEAD + WARNINGS + (
        "#0-0 (ab) MISMATCH\n  Communicator ranks have different status\n  3 ranks have status RUNNING\n"
        f"  Rank 2 has status ABORT -- {gpu(2)}\n\n"
    )  # fmt: skip
    assert brief(of_text(text)) == [("ras.status_differs", [2])]
    view = json_answer([{"AllReduce": 1}] * 3)
    view["communicators"][0]["ranks"][0]["status"]["abort_flag"] = True
    found = of_json(view)
    assert brief(found) == [("ras.status_differs", [0])]
    assert (found.signals[0].facts["status"], found.signals[0].facts["peers_status"]) == ("ABORT", "RUNNING")


def test_missing_ranks_and_dead_processes_are_told() -> None:
    errors = (
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        "  Process 503 on node 192.0.2.2 managing GPU 3\n\n"
        "#0-0 (ab) INCOMPLETE\n  Missing communicator data from 1 rank\n"
        f"  Rank 1 -- {gpu(1)}\n\n"
    )
    found = of_text(HEAD + errors + WARNINGS)
    assert [(s.name, s.facts["pids"], s.facts["dead"]) for s in found.signals] == [
        ("ras.missing_ranks", [501], False),
        ("ras.missing_ranks", [503], True),
    ]
    view = json_answer(
        [{"AllReduce": 1}] * 2, size=3, missing_ranks=[{"rank": 2, "pid": 502, "host": "h", "considered_dead": True}]
    )
    assert brief(of_json(view)) == [("ras.missing_ranks", [2])]


def test_errors_of_a_communicator_are_told() -> None:
    errors = f"#0-0 (ab) ERROR\n  Asynchronous error on 1 rank\n  Rank 3 reported Unhandled CUDA error -- {gpu(3)}\n\n"
    found = of_text(HEAD + errors + WARNINGS)
    assert brief(found) == [("ras.communicator_error", [3])]
    assert (found.signals[0].facts["error"], found.signals[0].facts["phase"]) == (
        "Unhandled CUDA error",
        "asynchronous",
    )
    view = json_answer([{"AllReduce": 1}] * 2)
    view["communicators"][0]["ranks"][1]["status"]["async_error"] = 6
    assert [s.facts["error"] for s in of_json(view).signals] == ["Remote process error"]


def test_an_answer_that_ends_early_is_never_in_step() -> None:
    found = of_text(HEAD.replace("MISMATCH", "OK"))
    assert (found.signals, len(found.notes)) == ([], 1)


@pytest.mark.parametrize("text", ["", "hello", "SERVER PROTOCOL 2\nOK\n", "\x00" * 50])
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        read_text(text)
    with pytest.raises(UnreadableError):
        read_json({"text": text})


WHOLE = (DATA / "live_skip_branch" / "ncclras-status.txt").read_text(encoding="utf-8")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_text_is_refused_or_read_in_part(data: st.DataObject) -> None:
    text = WHOLE[: data.draw(st.integers(0, len(WHOLE)))]
    for _ in range(data.draw(st.integers(0, 5))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.text(max_size=6) | st.just("9" * 5000)) + text[at + 1 :]
    try:
        answer = read_text(text)
    except UnreadableError:
        return
    analyze([("a", json.loads(json.dumps(answer)))])


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just(10**400) | st.just(-1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_value_in_any_place_of_a_json_answer_can_be_judged(data: st.DataObject) -> None:
    view = json_answer([{"AllReduce": 1}] * 3, missing_ranks=[{"rank": 3, "pid": 4}])
    communicator = view["communicators"][0]
    rank = communicator["ranks"][1]
    places = [view, communicator, rank, rank["status"], rank["collective_counts"], communicator["missing_ranks"][0]]
    target = data.draw(st.sampled_from(places))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(HOSTILE)
    try:
        answer = read_json(view)
    except UnreadableError:
        return
    analyze([("a", json.loads(json.dumps(answer)))])
