"""Generated sets of dumps with a known fault, or none: a sample always, all of them with the slow tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from flight_sets.cases import CASES, shuffled
from flight_sets.score import wrong_parts

from torchtriage.flight.tool import analyze_flight_recorder

if TYPE_CHECKING:
    from pathlib import Path

    from flight_sets.cases import Case

SAMPLE = [case for case in shuffled(7, 60) if len(case.job().programs) <= 16][:30]


def _judge(case: Case, folder: Path) -> None:
    case.build(folder)
    report = analyze_flight_recorder([str(folder)]).model_dump(mode="json")
    assert wrong_parts(case, report) == [], report["summary"]


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.id)
def test_a_sample_of_the_sets_is_judged_rightly(case: Case, tmp_path: Path) -> None:
    _judge(case, tmp_path / "dumps")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_set_is_judged_rightly(case: Case, tmp_path: Path) -> None:
    _judge(case, tmp_path / "dumps")
