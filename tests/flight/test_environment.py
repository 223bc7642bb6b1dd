"""Whether the flight recorder would record under given variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from torchtriage.flight import environment
from torchtriage.flight.torch_version import installed_torch_version, release_of

if TYPE_CHECKING:
    from pathlib import Path


def check_environment(*arguments: Any, **options: Any) -> list[str]:
    return environment.check_environment(*arguments, **options).sentences


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
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/nowhere/at/all/rank_", "process group cannot be made"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "does not end a job"),
        ("NCCL_ASYNC_ERROR_HANDLING", "0", "does not end a job"),
        ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "900000", "ended while its dump is written; set"),
        ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME", "1", "Remark: TORCH_FR_DUMP_DYNAMIC_FILE_NAME is on"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "120", "Remark: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC is 120 s"),
        ("TORCH_NCCL_ENABLE_TIMING", "0", "Remark: TORCH_NCCL_ENABLE_TIMING is off"),
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


SET = {"TORCH_NCCL_ENABLE_TIMING": "1"}
FINE = "Nothing in the environment stops the flight recorder; it records 2000 calls by default."


@pytest.mark.parametrize(
    ("version", "variables", "sentences"),
    [
        ("2.13.0+cu130", {"TORCH_FR_BUFFER_SIZE": "2000"}, [FINE]),
        (
            "2.13.0",
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
            ["TORCH_NCCL_TRACE_BUFFER_SIZE is the older name; use TORCH_FR_BUFFER_SIZE with newer torch."],
        ),
        (
            "2.6.0+cu124",
            {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
            ["torch 2.6 does not know TORCH_FR_BUFFER_SIZE: set TORCH_NCCL_TRACE_BUFFER_SIZE to the same value too."],
        ),
        ("2.6.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, [FINE]),
        (
            "2.6.0",
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
            ["torch 2.6 may write no dump when a collective times out: set TORCH_NCCL_DUMP_ON_TIMEOUT=1."],
        ),
        ("2.10.0", {}, ["torch 2.10 may write no dump by default: set TORCH_NCCL_TRACE_BUFFER_SIZE=2000."]),
        ("2.12.1", {}, [FINE]),
        ("a nightly", {}, [FINE]),
    ],
)
def test_what_the_jobs_torch_knows_and_does_by_default_counts(
    version: str, variables: dict[str, str], sentences: list[str]
) -> None:
    assert check_environment({**SET, **variables}, version) == sentences


def test_a_new_name_that_a_release_may_not_know_is_told_with_may(tmp_path: Path) -> None:
    variables = {**SET, "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_")}
    (sentence,) = check_environment(variables, "2.9.1")
    assert sentence == (
        "torch 2.9 may not know TORCH_FR_DUMP_TEMP_FILE: set TORCH_NCCL_DEBUG_INFO_TEMP_FILE to the same value too."
    )
    assert check_environment(variables, "2.11.0") == [FINE]


def test_both_names_of_a_setting_are_fine_when_they_agree(tmp_path: Path) -> None:
    new, old = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    prefix = str(tmp_path / "rank_")
    assert check_environment({**SET, new: prefix, old: prefix}) == [FINE]
    assert "to another value" in check_environment({**SET, new: prefix, old: prefix + "x"})[0]


def test_a_prefix_in_a_folder_of_another_user_is_told_for_the_jobs_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    variables = {**SET, "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_")}
    other = tmp_path.stat().st_uid + 1000
    (sentence,) = check_environment(variables, uid=other)
    assert f"and the job runs as uid {other}: no dump can be written there" in sentence
    assert check_environment(variables, uid=tmp_path.stat().st_uid) == [FINE]
    tmp_path.chmod(0o1777)
    assert check_environment(variables, uid=other) == [FINE]
    tmp_path.chmod(0o770)
    assert check_environment(variables, uid=other) == [FINE]  # its groups may let it write


def test_a_prefix_is_looked_up_below_the_jobs_root(tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    variables = {**SET, "TORCH_FR_DUMP_TEMP_FILE": "/dumps/rank_"}
    assert check_environment(variables, root=tmp_path) == [FINE]
    assert "does not exist" in check_environment({**SET, "TORCH_FR_DUMP_TEMP_FILE": "/none/rank_"}, root=tmp_path)[0]


def test_a_gloo_job_is_told_that_no_watchdog_writes_dumps() -> None:
    assert "gloo" in check_environment({}, backend="gloo")[0]


def test_the_installed_torch_is_named_without_importing_it() -> None:
    version = installed_torch_version()
    assert version is None or release_of(version) is not None
    assert release_of("2.13.0+cu130") == (2, 13)
    assert release_of("nightly") is None
    assert release_of(None) is None


@pytest.mark.parametrize("word", ["on", "off", "", " 1", "enabled"])
def test_a_switch_that_torch_does_not_read_is_told(word: str) -> None:
    for name in ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_INCLUDE_ONLY_ACTIVE"):
        assert any(f"{name} is neither on nor off" in sentence for sentence in check_environment({name: word}))


@pytest.mark.parametrize("word", ["Y", "yes", "1", "T", "True"])
def test_a_switch_may_be_any_of_the_words_that_torch_reads(word: str) -> None:
    assert "Nothing" in check_environment({"TORCH_NCCL_DUMP_ON_TIMEOUT": word})[0]


@pytest.mark.parametrize(
    ("variables", "version", "dumps"),
    [
        ({}, "2.13.0", True),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, "2.13.0", True),
        ({"TORCH_INCLUDE_ONLY_ACTIVE": "1"}, "2.13.0", True),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, "2.13.0", False),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, "2.13.0", False),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/nowhere/at/all/rank_"}, "2.13.0", False),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "5"}, "2.13.0", None),
        ({}, "2.10.0", None),
        ({"TORCH_NCCL_ENABLE_MONITORING": "0"}, "2.10.0", False),
    ],
)
def test_whether_dumps_can_be_expected_is_told(variables: dict[str, str], version: str, dumps: bool | None) -> None:
    assert environment.check_environment(variables, version).dumps is dumps


def test_of_a_gloo_job_no_dump_is_expected() -> None:
    assert environment.check_environment({}, backend="gloo").dumps is False
