from pathlib import Path

import pytest

from torchtriage.flight.tool import analyze_flight_recorder, render


def test_the_environment_alone_can_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    report = analyze_flight_recorder([], check_env=True)
    assert report.status == "fault"
    assert report.summary == "This environment: the flight recorder will write no dump; 1 thing to change"
    assert "no dump was compared" in report.gaps[0]
    assert any("TORCH_FR_BUFFER_SIZE" in remark for remark in report.environment)
    assert "TORCH_FR_BUFFER_SIZE" in render(report)


def test_a_file_that_is_empty_or_foreign_is_named(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"")
    (tmp_path / "nccl_trace_rank_1").write_bytes(bytes(range(256)))
    gaps = analyze_flight_recorder([str(tmp_path)]).gaps
    assert any("nccl_trace_rank_0: empty" in gap for gap in gaps)
    assert any("nccl_trace_rank_1: not recognised" in gap for gap in gaps)
