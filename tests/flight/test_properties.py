"""Whatever the bytes, the subset or the order of the dumps: a verdict that holds, or a named gap; never a traceback."""

from __future__ import annotations

import functools
import json
import pickle
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from flight_sets.cases import CASES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight.flight_dumps import call, dump, loop
from torchtriage.artefacts.inputs import open_inputs
from torchtriage.artefacts.isolate import read_isolated
from torchtriage.flight.analyze import analyze
from torchtriage.flight.model import RankDump
from torchtriage.flight.read import summarise
from torchtriage.flight.tool import analyze_flight_recorder, rank_dumps, render

FAULTS = ("skip-ddp", "order-", "p2p-", "host-", "gpu-", "early-", "size-")
CHOSEN = [next(case for case in CASES if case.id.startswith(start)) for start in FAULTS]
GROUPS = {"0": [0, 1]}
CONTENT = pickle.dumps(dump([*loop(5, call("all_reduce")), call("all_reduce", done=False)], GROUPS), protocol=2)
WORDS = ("entries", "pg_config", "pg_status", "version", "name", "ranks", "state", "profiling_name", "frames",
         "retired", "process_group", "collective_seq_id", "p2p_seq_id", "record_id", "time_created_ns", "input_sizes",
         "is_p2p",
         "last_enqueued_collective", "last_completed_collective", "pg_id", "timeout_ms")  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8) | st.sampled_from(
    ("nccl:all_reduce", "nccl:send 0->1", "completed", "scheduled", "[0, 1]", "2.10", 0, 1))  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=8)
    ),
    max_leaves=40,
)


@functools.cache
def _dumps(name: str) -> tuple[RankDump, ...]:
    with tempfile.TemporaryDirectory() as folder:
        next(case for case in CHOSEN if case.id == name).build(Path(folder) / "set")
        with open_inputs([folder]) as inputs:
            return tuple(rank_dumps(read_isolated("flight", inputs.of("flight_recorder"))))


def _told(dumps: list[RankDump]) -> tuple[list[tuple[Any, ...]], list[int]]:
    found = analyze(dumps)
    return [(d.kind, d.group, tuple(d.ranks), d.seq) for d in found.divergences], found.culprit_ranks


@pytest.mark.parametrize("name", [case.id for case in CHOSEN])
def test_the_order_of_the_files_changes_nothing(name: str) -> None:
    dumps = list(_dumps(name))
    right = _told(dumps)
    for seed in range(12):
        random.Random(seed).shuffle(dumps)
        assert _told(dumps) == right


@pytest.mark.parametrize("name", [case.id for case in CHOSEN])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_of_any_subset_of_the_ranks_what_is_missing_is_told_and_no_stranger_is_blamed(name: str, data: Any) -> None:
    dumps = _dumps(name)
    every_rank = {one.rank for one in dumps}
    kept = data.draw(st.lists(st.sampled_from(dumps), min_size=1, unique_by=lambda one: one.rank))
    found = analyze(kept)
    absent = every_rank - {one.rank for one in kept}
    if absent:
        told = {rank for d in found.divergences if d.kind == "dump_missing" for rank in d.ranks}
        assert absent <= told
        assert not any(signal.name == "flight.in_step" for signal in found.signals)
    assert {rank for d in found.divergences for rank in d.ranks} <= every_rank


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_any_tree_is_summarised_or_refused_in_words(tree: Any) -> None:
    from torchtriage.errors import UnreadableError

    for view in (tree, {"entries": tree}, {"version": "2.10", "entries": [tree], "pg_config": tree, "pg_status": tree}):
        try:
            summary = json.loads(json.dumps(summarise(view)))
        except UnreadableError as error:
            assert str(error)
            continue
        analyze([RankDump("a", 0, None, summary, 1), RankDump("b", 1, None, summary, 2)])


@settings(max_examples=15, deadline=None)
@given(st.binary(max_size=400) | st.builds(
    lambda at, change, end: (CONTENT[:at] + change + CONTENT[at + len(change):])[:end],
    st.integers(0, len(CONTENT)), st.binary(max_size=6), st.integers(0, len(CONTENT))))  # fmt: skip
def test_any_bytes_in_the_place_of_a_dump_give_an_answer_and_a_gap(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "nccl_trace_rank_0").write_bytes(CONTENT)
        (Path(folder) / "nccl_trace_rank_1").write_bytes(content)
        report = analyze_flight_recorder([folder])
        assert render(report)
        assert report.gaps or report.divergences or report.status == "in_step"
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(exist_ok=True)
