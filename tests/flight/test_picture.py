"""The table and the lines that show the first divergence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flight.flight_dumps import call, dump, job, loop
from torchtriage.flight.analyze import analyze
from torchtriage.flight.tool import analyze_flight_recorder, render

if TYPE_CHECKING:
    from pathlib import Path

REDUCE, GATHER, CAST = call("all_reduce", 10), call("all_gather", 11), call("broadcast", 12)
STEP = (REDUCE, GATHER, CAST)


def _open(one: dict[str, Any]) -> dict[str, Any]:
    return dict(one, done=False)


def test_a_skipped_call_is_seen_beside_those_of_the_peers() -> None:
    peers = [*loop(4, *STEP), REDUCE, _open(GATHER), _open(CAST)]
    skipped = [*loop(4, *STEP), REDUCE, _open(CAST)]
    assert analyze(job(peers, skipped, peers)).picture == [
        "group 0 (group_0), seq  11  12  13    14   15",
        "ranks 0, 2              AG  BC  AR   AG*  BC*",
        "rank 1                  AG  BC  AR  BC!*    .",
        "(* unfinished, ! differs from most, . not made)",
    ]


def test_a_rank_that_stopped_calling_has_dots_where_its_peers_wait() -> None:
    peers = [*loop(3, *STEP), _open(REDUCE)]
    assert analyze(job(peers, loop(3, *STEP))).picture == [
        "group 0 (group_0), seq   7   8   9   10",
        "rank 0                  AR  AG  BC  AR*",
        "rank 1                  AR  AG  BC    .",
        "(* unfinished, . not made)",
    ]


def test_of_many_ranks_those_that_did_the_same_share_a_row() -> None:
    peers = [*loop(3, *STEP), _open(REDUCE)]
    rows = analyze(job(*[loop(3, *STEP) if rank == 9 else peers for rank in range(64)])).picture
    assert [row.split("  ")[0] for row in rows[1:3]] == ["ranks 0-8, 10-63", "rank 9"]


def test_a_circle_of_waits_shows_who_waits_where() -> None:
    groups = {"dp": [0, 1, 2], "tp": [0, 1, 2]}
    dp, tp = call("all_reduce", 4, group="dp"), call("all_gather", 5, group="tp")
    past = loop(3, dp, tp)
    found = analyze(job([*past, _open(dp)], [*past, _open(tp)], [*past, _open(dp)], groups=groups))
    assert found.picture == [
        "ranks 0, 2  waits first in all_reduce [[64]] Float at train (train.py:4) in dp (group_dp)",
        "rank 1      waits first in all_gather [[64]] Float at train (train.py:5) in tp (group_tp)",
    ]


def test_a_job_in_step_has_no_picture() -> None:
    assert analyze(job(loop(3, *STEP), loop(3, *STEP))).picture == []


def test_the_text_puts_both_call_sites_under_each_other_and_says_since_when(tmp_path: Path) -> None:
    import pickle

    groups = {"0": [0, 1], "1": [0, 1]}
    other = _open(call("all_reduce", 50, group="1"))
    calls = [[*loop(4, *STEP), _open(REDUCE), other], [*loop(4, *STEP), _open(CAST)]]
    for rank, made in enumerate(calls):
        content = pickle.dumps(dump(made, groups, start_ns=rank), protocol=2)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(content)
    report = analyze_flight_recorder([str(tmp_path)])
    lines = render(report).splitlines()
    at = lines.index("  rank 1     broadcast [[64]] Float at train (train.py:12)")
    assert lines[at + 1] == "  its peers  all_reduce [[64]] Float at train (train.py:10)"
    assert lines[at + 2] == "  since 2026-09-21T14:13:20Z"
    assert report.divergences[0].since == "2026-09-21T14:13:20Z"
    assert report.stuck_groups == ["1 (group_1)"]
    assert "  also unfinished: calls in 1 (group_1)" in lines
