"""Whether the flight recorder would record under given variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchtriage.flight.environment import check_environment

if TYPE_CHECKING:
    from pathlib import Path


def test_an_empty_environment_is_fine() -> None:
    assert check_environment({}) == [
        "Nothing in the environment stops the flight recorder; it records 2000 calls by default."
    ]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TORCH_FR_BUFFER_SIZE", "0", "is off"),
        ("TORCH_FR_BUFFER_SIZE", "2097152", "counts entries, not bytes"),
        ("TORCH_FR_BUFFER_SIZE", "20", "may be overwritten"),
        ("TORCH_FR_BUFFER_SIZE", "lots", "not a number"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "older name"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", "no dump is written"),
        ("TORCH_NCCL_ENABLE_MONITORING", "false", "does not run"),
        ("TORCH_INCLUDE_STACK_TRACE", "0", "where in the code"),
        ("TORCH_INCLUDE_ONLY_ACTIVE", "1", "no finished calls"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "5", "ended before its dump"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "5s", "not a number"),
        ("TORCH_FR_DUMP_TEMP_FILE", "/nowhere/at/all/rank_", "does not exist"),
    ],
)
def test_a_setting_that_stops_or_spoils_dumps_is_told(name: str, value: str, words: str) -> None:
    assert any(words in sentence for sentence in check_environment({name: value}))


def test_a_prefix_that_is_a_folder_is_told(tmp_path: Path) -> None:
    assert "names a folder" in check_environment({"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path)})[0]
    assert "Nothing" in check_environment({"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_")})[0]


def test_values_are_cleaned_before_they_are_shown() -> None:
    sentence = check_environment({"TORCH_FR_BUFFER_SIZE": "x\x1b[31m\u202e" * 50})[0]
    assert sentence.isprintable()
