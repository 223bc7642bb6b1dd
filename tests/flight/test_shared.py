"""What many ranks have in common is passed on small, kept once, and comes back as it was."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight.flight_dumps import BASE_NS, call, dump, job, loop, rank_dump
from torchtriage.flight.analyze import analyze
from torchtriage.flight.columns import Columns, pack_columns, unpack_column
from torchtriage.flight.job import build_job
from torchtriage.flight.model import RankDump, Track
from torchtriage.flight.rank_lists import RankLists, pack_ranks, unpack_ranks
from torchtriage.flight.read import summarise

STEPS = loop(500, call("all_reduce", 10), call("broadcast", 11), call("all_gather", 12), call("all_reduce", 13))
ROWS = st.tuples(
    st.integers(0, 1 << 31), st.integers(-1, (1 << 62) - 1), st.integers(0, 70_000), st.integers(0, 2),
    st.integers(0, 1 << 43),
)  # fmt: skip


def tracks(*calls_by_rank: list[dict[str, Any]], **options: Any) -> list[Track]:
    return build_job(job(*calls_by_rank, **options)).groups[0].tracks


@settings(max_examples=100, deadline=None)
@given(st.lists(ROWS, max_size=30))
def test_whatever_was_packed_comes_back(rows: list[tuple[int, int, int, int, int]]) -> None:
    columns = Columns("0", "", 0)
    columns.rows.extend(rows)
    packed = json.loads(json.dumps(pack_columns(columns)))
    for position, name in enumerate(("index", "seq", "token", "finished")):
        assert list(unpack_column(packed[name], packed["n"])) == [row[position] for row in rows]
    assert packed["last_ms"] == max((row[4] for row in rows), default=0)


@pytest.mark.parametrize("packed", [["H", "AAAA"], ["~b", "eJxjYGBgAAAABAAB"], ["x", ""], ["H", "eJwDAAAAAAE="]])
def test_a_column_that_is_not_what_it_says_is_refused(packed: list[str]) -> None:
    with pytest.raises(ValueError):
        unpack_column(packed, 3)


def test_a_column_cannot_swell_beyond_its_length() -> None:
    columns = Columns("0", "", 0)
    columns.rows.extend((k, k, k % 2, 1, 0) for k in range(100_000))
    packed = pack_columns(columns)
    with pytest.raises(ValueError):
        unpack_column(packed["token"], 10)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 5000), max_size=40) | st.builds(range, st.integers(0, 99), st.integers(0, 999)))
def test_a_list_of_ranks_comes_back_letter_by_letter(ranks: Any) -> None:
    text = str(list(ranks))
    assert unpack_ranks(json.loads(json.dumps(pack_ranks(text)))) == text


@pytest.mark.parametrize(
    "text", ["", "[]", "[0,1,2,3,4,5,6,7,8,9,10,11,12]", "[00, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]", "x"]
)
def test_other_ways_to_write_ranks_are_kept(text: str) -> None:
    assert unpack_ranks(pack_ranks(text)) == text


def test_the_ranks_of_thousands_are_a_few_numbers_and_one_object() -> None:
    world = str(list(range(4096)))
    assert pack_ranks(world) == [0, 4095, 1]
    assert pack_ranks(str(list(range(3, 4096, 8)))) == [3, 4091, 8]
    lists = RankLists()
    assert lists.of(pack_ranks(world)) is lists.of(world)


def test_a_summary_grows_with_what_is_new_and_not_with_the_calls() -> None:
    short, long = (len(json.dumps(summarise(dump(STEPS[:n], {"0": list(range(512))})))) for n in (200, 2000))
    assert long < 1.5 * short < 3000


def test_ranks_that_made_the_same_calls_share_one_history() -> None:
    a, b, c = tracks(STEPS, STEPS, STEPS[:-1])
    assert a.calls is b.calls
    assert a.calls is not c.calls
    assert a.calls.soft == array("I", [*c.calls.soft, a.soft_at(a.last)])


def test_ranks_whose_last_call_is_unfinished_share_the_columns() -> None:
    waiting = [*STEPS[:-1], {**STEPS[-1], "done": False}]
    a, b = tracks(STEPS, waiting)
    assert a.calls.soft is b.calls.soft
    assert (a.first_unfinished, b.first_unfinished) == (None, len(STEPS))


def test_the_time_of_every_call_is_known_to_the_millisecond() -> None:
    track = tracks(STEPS[:5], STEPS[:5])[0]
    assert [track.time_ms(seq) for seq in range(1, 6)] == [BASE_NS // 1_000_000 + k for k in range(5)]
    assert track.time_ms(6) is None


def test_coalesced_calls_and_numbers_that_start_over_keep_their_entries() -> None:
    view = dump(loop(4, call("all_reduce", 10)), {"0": [0, 1]})
    for entry, seq in zip(view["entries"], (7, 1, 1, 2), strict=True):
        entry["collective_seq_id"] = seq
    track = build_job([rank_dump(0, view), rank_dump(1, view)]).groups[0].tracks[0]
    assert (track.first, track.last) == (1, 2)
    assert [track.index_at(seq) for seq in (1, 2, 7)] == [1, 3, None]


def test_one_rank_of_a_thousand_is_named_and_a_thousand_histories_are_two() -> None:
    ranks = {"0": list(range(1000))}
    healthy, behind = (summarise(dump(calls, ranks)) for calls in (waiting(), waiting()[:-1]))
    dumps = [
        RankDump(f"r{rank}", rank, None, {**(behind if rank == 77 else healthy), "first_ns": [rank, rank]})
        for rank in range(1000)
    ]
    assert len({id(track.calls) for track in build_job(dumps).groups[0].tracks}) == 2
    found = analyze(dumps)
    assert (found.culprit_ranks, found.divergences[0].kind) == ([77], "behind_on_enqueue")


def waiting() -> list[dict[str, Any]]:
    return [*STEPS[:40], {**STEPS[0], "done": False}]
