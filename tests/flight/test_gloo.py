"""Dumps of real two-rank gloo jobs (torch 2.13 on CPU, asked for with ``_dump_fr_trace`` and ``_dump_fr_trace_json``).

gloo's events are null: an operation stays "scheduled" for ever and ``retired`` is what tells that it finished.
"""

from pathlib import Path

import pytest

from torchtriage.artefacts.evidence import check_evidence
from torchtriage.flight.tool import analyze_flight_recorder

DATA = Path(__file__).parents[1] / "data" / "flight" / "gloo"


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize(
    ("case", "status", "kinds", "culprits"),
    [
        ("skip", "fault", ["collective_missing"], [1]),
        ("late", "fault", ["behind_on_enqueue"], [1]),
        ("ok", "in_step", [], []),
    ],
)
def test_a_real_gloo_job_is_judged(case: str, form: str, status: str, kinds: list[str], culprits: list[int]) -> None:
    report = analyze_flight_recorder([str(DATA / case / form)])
    assert report.status == status
    assert [d.kind for d in report.divergences][: len(kinds)] == kinds
    assert report.culprits.ranks == culprits
    assert all(check_evidence(e, [str(DATA / case / form)]) for e in report.evidence)
