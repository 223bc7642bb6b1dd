"""Sends and receives in batches: what is left of finished ones, and a call that was left out of one."""

from __future__ import annotations

from typing import Any

from flight.flight_dumps import call, dump, job, p2p, rank_dump
from torchtriage.flight.analyze import analyze
from torchtriage.flight.columns import MAX_P2P_ROWS
from torchtriage.flight.read import summarise

GROUPS = {"0": [0, 1]}
NORM = call("all_reduce", 40, done=False)


def _batch(*parts: dict[str, Any], done: bool = False) -> list[dict[str, Any]]:
    return [*parts, {**call("coalesced", 30, [], done=done), "p2p": True}]


def _dump(*batches: list[dict[str, Any]], active_only: bool = False) -> dict[str, Any]:
    """The calls of a batch have its number and no events; a dump of active calls lacks its finished last entry."""
    view = dump([c for batch in batches for c in batch], GROUPS)
    numbers = [number for number, batch in enumerate(batches, 1) for c in batch if c["p2p"]]
    for entry in view["entries"]:
        if entry["is_p2p"]:
            entry["p2p_seq_id"] = numbers.pop(0)
    if active_only:
        view["entries"] = [entry for entry in view["entries"] if entry["state"] != "completed"]
    return view


def _open_p2p(view: dict[str, Any]) -> list[int]:
    return [row[4] for track in summarise(view)["tracks"] for row in track["p2p"]]


def test_members_of_finished_batches_are_not_unfinished_in_a_dump_of_active_calls() -> None:
    done = _batch(p2p("send", 0, 1), p2p("recv", 0, 1), done=True)
    alone = _batch(p2p("send", 0, 1), done=True)
    waiting = _batch(p2p("recv", 0, 1))
    assert _open_p2p(_dump(done, alone, waiting, active_only=True)) == [3]
    assert _open_p2p(_dump(done, alone, active_only=True)) == []


def test_sends_outside_batches_stay_unfinished_in_a_dump_of_active_calls() -> None:
    assert _open_p2p(_dump([p2p("send", 0, 1)], [p2p("send", 0, 1)], active_only=True)) == [1, 2]


def test_parts_of_finished_coalesced_collectives_are_not_unfinished_in_a_dump_of_active_calls() -> None:
    parts = [call("_all_gather_base", 10, size, done=False) for size in (512, 8)]
    closing = call("ALLGATHER_coalesced", 10, [], done=False)
    view = dump([parts[1], *parts, *parts, closing, NORM], GROUPS)
    for entry, seq in zip(view["entries"], (1, 2, 2, 3, 3, 3, 4), strict=True):
        entry["collective_seq_id"] = seq
    (track,) = summarise(view)["tracks"]
    assert track["n"] == 4
    assert track["index"] == ["+", 3]


def test_of_too_many_unfinished_sends_the_newest_are_kept() -> None:
    rows = _open_p2p(dump([p2p("send", 0, 1)] * (MAX_P2P_ROWS + 5), GROUPS))
    assert (len(rows), rows[-1]) == (MAX_P2P_ROWS, MAX_P2P_ROWS + 5)


def test_a_receive_left_out_of_a_batch_is_told_with_both_ranks() -> None:
    sender = _dump(_batch(p2p("send", 0, 1), p2p("recv", 0, 1)), [NORM])
    receiver = _dump([NORM])
    found = analyze([rank_dump(0, sender), rank_dump(1, receiver)])
    assert [(d.kind, d.ranks, d.found) for d in found.divergences] == [("p2p_mismatch", [0, 1], "no recv of rank 1")]


def test_a_receive_that_may_still_come_is_not_called_left_out() -> None:
    found = analyze(job(_batch(p2p("send", 0, 1)), [call("all_reduce", 1)], groups=GROUPS))
    assert found.divergences == []
