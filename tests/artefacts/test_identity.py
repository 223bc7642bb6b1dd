import time

import pytest

from torchtriage.artefacts.identity import identities_of_dumps, identity_of


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_5", 5),
        ("nccl_trace_rank_05.pkl", 5),
        ("_dump_12", 12),
        ("comm_lib_trace_rank_3", 3),
        ("nccl_trace_rank_node01_5", 5),
        ("host7/nccl_trace_rank_0", 0),
        ("dumps/rank3/dump", 3),
        ("noise", None),
    ],
)
def test_the_rank_of_a_flight_recorder_dump_is_read_off_its_name(name: str, rank: int | None) -> None:
    assert identity_of(name, trailing_number_is_rank=True).rank == rank


@pytest.mark.parametrize(
    ("name", "rank", "pid"),
    [
        ("pyspy-pid654.native.txt", None, 654),
        ("rank-of-pid654", None, 654),
        ("rank_3/pid77.txt", 3, 77),
        ("rank07-pid12.json", 7, 12),
        ("worker_rank=2.log", 2, None),
        ("rank_1/stderr.log", 1, None),
        ("rank0.txt", 0, None),
        ("rank_0-pid3.txt", 0, 3),
        ("frank5.log", None, None),
        ("log-node-0-rank-3.txt", 3, None),
        ("nemo_log_globalrank-3_localrank-1.txt", 3, None),
        ("globalrank-9_local_rank-1.log", 9, None),
        ("stdout_local_rank_3.log", None, None),
        ("node_rank_1.log", None, None),
        ("tp-rank-1.log", None, None),
        ("lora_rank8.log", None, None),
        ("rank_2026-11-30.log", None, None),
        ("rank3_2026-11-30.log", 3, None),
        ("worker-" + "0a1b2c3d" * 7 + "-01000000-12345.err", None, 12345),
        ("torchrun.log", None, None),
    ],
)
def test_rank_and_pid_are_read_off_other_names(name: str, rank: int | None, pid: int | None) -> None:
    found = identity_of(name)
    assert (found.rank, found.pid) == (rank, pid)


def test_a_host_in_the_name_is_kept() -> None:
    assert identity_of("nccl_trace_rank_node01_5", trailing_number_is_rank=True).host == "node01"


@pytest.mark.parametrize(
    "name", [".txt" * 60_000 + "x", "rank_a" * 60_000, "rank_" * 60_000, "/" * 200_000, "_0" * 99_999]
)
def test_a_name_of_any_length_costs_no_time(name: str) -> None:
    started = time.monotonic()
    identity_of(name, trailing_number_is_rank=True)
    assert time.monotonic() - started < 1


def test_a_number_that_keeps_equal_names_apart_is_no_rank() -> None:
    assert identity_of("_dump_12 (2)", trailing_number_is_rank=True).rank == 12


@pytest.mark.parametrize(
    "form",
    [
        "rank_{}/dump_0", "rank_{}/fr_trace.attempt_1", "dump_{}_1", "{}/trace_2", "nccl_trace_rank_{}.old1",
        "nccl_trace_rank_{}_20261130", "host{}.dump", "rank_0/dump_{}", "_dump_{}",
    ],
)  # fmt: skip
def test_the_ranks_of_dumps_are_told_by_their_names_together(form: str) -> None:
    found = identities_of_dumps([form.format(rank) for rank in range(4)])
    assert [each.rank for each in found] == [0, 1, 2, 3]


def test_a_number_that_ends_the_names_in_all_folders_is_no_rank() -> None:
    assert [each.rank for each in identities_of_dumps([f"{host}/dump_0" for host in "abcd"])] == [None] * 4


def test_two_attempts_of_one_rank_keep_its_number() -> None:
    assert [each.rank for each in identities_of_dumps(["try_0/_dump_3", "try_1/_dump_3"])] == [3, 3]


@pytest.mark.parametrize("name", ["nccl_trace_rank_-1", "dump_20261130"])
def test_a_negative_number_and_a_date_are_no_ranks(name: str) -> None:
    assert identity_of(name, trailing_number_is_rank=True).rank is None
