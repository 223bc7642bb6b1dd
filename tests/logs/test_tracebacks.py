"""Exceptions: put together from interleaved lines, chained, grouped, quoted alone, or caught."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.exceptions import memory_facts
from torchtriage.logs.read import LogSource, PatternSet, scan, text_source

if TYPE_CHECKING:
    from torchtriage.report import Signal

NO_PATTERNS = PatternSet([])


def exceptions(text: str, name: str = "log.python_exception") -> list[Signal]:
    return [signal for signal in analyze(scan([text_source(text)], NO_PATTERNS)).signals if signal.name == name]


def traceback(last: str, prefix: str = "", file: str = "/workspace/train.py") -> str:
    lines = ["Traceback (most recent call last):", f'  File "{file}", line 7, in step', "    run()", last]
    return "\n".join(prefix + line for line in lines)


def test_interleaved_tracebacks_belong_to_their_ranks():
    first = traceback("ValueError: a", "[rank0]: ").split("\n")
    second = traceback("KeyError: 'b'", "[rank1]: ").split("\n")
    mixed = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    found = [(s.scope.ranks, s.facts["type"], s.facts["message"]) for s in exceptions(mixed)]
    assert found == [([0], "ValueError", "a"), ([1], "KeyError", "'b'")]


def test_a_line_of_another_rank_does_not_end_a_traceback():
    lines = traceback("ValueError: a", "[rank0]: ").split("\n")
    lines.insert(2, "[rank1] step 3 loss 7.0")
    (found,) = exceptions("\n".join(lines))
    assert found.facts["where"] == "step (/workspace/train.py:7)"


def test_a_chain_is_read_to_its_first_cause():
    chained = (
        traceback("FileNotFoundError: shard 3")
        + "\n\nThe above exception was the direct cause of the following exception:\n\n"
        + traceback("RuntimeError: loader failed")
    )
    (found,) = exceptions(chained)
    assert (found.facts["type"], found.facts["first_cause_type"]) == ("RuntimeError", "FileNotFoundError")
    assert [e.where for e in found.evidence] == ["11", "4", "2"]


def test_cleaning_up_after_an_error_is_not_the_first_cause():
    chained = (
        traceback("ValueError: bad sample", "[rank1]: ")
        + "\n[rank1]: During handling of the above exception, another exception occurred:\n"
        + traceback("torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1", "[rank1]: ")
    )
    (found,) = exceptions(chained)
    assert (found.facts["first_cause_type"], found.facts["cascade"]) == ("ValueError", False)


def test_an_exception_group_shows_its_first_member_as_first_cause():
    text = """  + Exception Group Traceback (most recent call last):
  |   File "/workspace/train.py", line 3, in main
  |     run()
  | ExceptionGroup: unhandled errors (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/workspace/data.py", line 9, in load
    |     read()
    | OSError: stale file handle
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/workspace/data.py", line 9, in load
    |     read()
    | OSError: stale file handle
    +------------------------------------
"""
    (found,) = exceptions(text)
    assert (found.facts["type"], found.facts["first_cause_type"]) == ("ExceptionGroup", "OSError")


@pytest.mark.parametrize(
    "last",
    [
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:4711",
        "RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
        "KeyboardInterrupt",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_what_follows_from_another_ranks_end_is_a_cascade(last):
    (found,) = exceptions(traceback(last, "[rank0]: "))
    assert found.facts["cascade"] is True


def test_an_exception_of_the_launcher_is_nobodys():
    text = traceback(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        file="/opt/venv/lib/python3.12/site-packages/torch/distributed/run.py",
    )
    assert exceptions(text) == []
    agent = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 626 got signal: 15"
    assert exceptions(traceback(agent)) == []


def test_a_logged_exception_after_which_the_rank_goes_on_is_handled():
    text = "\n".join(
        [
            "[rank0] step 1 loss 7.0",
            traceback("OSError: stale file handle", "[rank0] "),
            "[rank0] step 2 loss 6.9",
            "[rank0] step 3 loss 6.8",
        ]
    )
    assert exceptions(text) == []
    (handled,) = exceptions(text, "log.exception_handled")
    assert (handled.scope.ranks, handled.facts["type"], handled.facts["handled"]) == ([0], "OSError", True)


def test_steps_that_a_buffer_gave_out_late_do_not_make_an_exception_handled():
    text = "\n".join(
        [
            traceback("OSError: stale file handle", "[rank0]: "),
            "[rank0] step 2 loss 6.9",
            "E1130 06:11:17.571000 948 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 1) "
            "local_rank: 0 (pid: 953) of binary: python",
            "Root Cause (first observed failure):",
            "  rank      : 0 (local_rank: 0)",
            "  exitcode  : 1 (pid: 953)",
        ]
    )
    assert [s.scope.ranks for s in exceptions(text)] == [[0]]


def test_an_exception_line_that_is_quoted_alone_is_read():
    (found,) = exceptions("It fails at start with\n\nRuntimeError: NCCL error in: x.cpp:1, invalid usage\n\nAny idea?")
    assert (found.facts["type"], found.evidence[0].where) == ("RuntimeError", "3")


def test_all_ranks_with_one_exception_are_told_so():
    text = "\n".join(traceback("ValueError: a", f"[rank{rank}]: ") for rank in range(3))
    assert [s.facts["all_ranks"] for s in exceptions(text)] == [True, True, True]


def test_a_long_message_is_kept_and_cut():
    (found,) = exceptions(traceback("ValueError: " + "x" * 5000))
    assert len(found.facts["message"]) == 300


def test_an_out_of_memory_error_inside_a_compiler_is_one():
    text = traceback("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:", "[rank2]: ")
    text += "\n[rank2]: OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity"
    (oom,) = exceptions(text, "log.cuda_out_of_memory")
    assert (oom.scope.ranks, oom.facts["requested_bytes"]) == ([2], 3 << 29)


def test_an_out_of_memory_warning_ends_nobody():
    text = "[rank0] WARNING: CUDA out of memory. Tried to allocate 1.00 GiB. skipping batch"
    assert exceptions(text, "log.cuda_out_of_memory") == []


def test_the_old_text_of_an_out_of_memory_error_is_read():
    facts = memory_facts(
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 3; 39.59 GiB total capacity; "
        "37.00 GiB already allocated; 12.00 MiB free; 38.50 GiB reserved in total by PyTorch) "
        "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
    )
    assert facts["requested_bytes"] == 20 << 20
    assert facts["total_bytes"] == round(39.59 * 2**30)
    assert facts["free_bytes"] == 12 << 20
    assert facts["allocated_bytes"] == 37 << 30
    assert facts["reserved_unallocated_bytes"] == 3 << 29
    assert facts["gpu"] == 3


def test_a_ranks_file_gives_its_rank_to_a_traceback_without_prefix():
    source = LogSource("rank_3/stderr.log", traceback("ValueError: a").split("\n"), rank=3)
    (found,) = [s for s in analyze(scan([source], NO_PATTERNS)).signals if s.name == "log.python_exception"]
    assert found.scope.ranks == [3]


def test_the_traceback_that_spawn_passes_on_belongs_to_the_process_that_it_names():
    text = "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 2 terminated with the following error:\n"
    ranks = [s.scope.ranks for s in exceptions(text + traceback("ValueError: a")) if s.facts["type"] == "ValueError"]
    assert ranks == [[2]]
