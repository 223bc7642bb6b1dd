"""Exceptions: put together from interleaved lines, chained, grouped, quoted alone, or caught."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtriage.logs.analyze import analyze
from torchtriage.logs.crashes.out_of_memory import memory_facts
from torchtriage.logs.scan.read import LogSource, PatternSet, scan, text_source

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


def test_the_traceback_of_a_loader_worker_is_read_to_its_own_frame():
    text = traceback("ValueError: Caught ValueError in DataLoader worker process 0.", "[rank2]: ")
    text += "\n[rank2]: Original Traceback (most recent call last):\n"
    text += '[rank2]:   File "/workspace/data.py", line 9, in load\n[rank2]:     read()\n'
    text += "[rank2]: ValueError: bad sample\n"
    (found,) = exceptions(text)
    assert (found.scope.ranks, found.facts["message"]) == ([2], "bad sample")
    assert found.facts["where"] == "load (/workspace/data.py:9)"
    assert [e.where for e in found.evidence] == ["4", "8", "6"]


def test_what_a_ray_driver_prints_of_a_task_is_the_tasks():
    text = traceback("ray.exceptions.RayTaskError(ValueError): ray::Worker.run() (pid=957, ip=10.0.0.2, repr=<w>)")
    text += """
  File "/workspace/worker.py", line 3, in run
    read()
FileNotFoundError: shard 3

During handling of the above exception, another exception occurred:

ray::Worker.run() (pid=957, ip=10.0.0.2)
  File "/workspace/worker.py", line 5, in run
    fail()
ValueError: no shard
n:957:957 [1] NCCL INFO ncclCommInitRank comm 0x1 rank 5 nranks 8 cudaDev 1 busId 70 - Init COMPLETE
"""
    (found,) = exceptions(text)
    assert found.scope.ranks == [5]
    assert (found.facts["first_cause_type"], found.facts["first_cause_message"]) == ("FileNotFoundError", "shard 3")
    assert found.facts["where"] == "run (/workspace/worker.py:3)"


@pytest.mark.parametrize(
    "pool", ["concurrent.futures.process._RemoteTraceback", "multiprocessing.pool.RemoteTraceback"]
)
def test_the_traceback_that_a_process_pool_passes_on_is_the_first_cause(pool):
    text = f'{pool}: \n"""\n' + traceback("KeyError: 'text'", file="/workspace/tokenize.py") + '\n"""\n\n'
    text += "The above exception was the direct cause of the following exception:\n\n" + traceback("KeyError: 'text'")
    (found,) = exceptions(text)
    assert (found.facts["where"], found.facts["first_cause_message"]) == ("step (/workspace/tokenize.py:7)", "'text'")


def test_the_traceback_in_the_failure_table_belongs_to_the_rank_of_its_entry():
    text = """Failures:
[1]:
  time      : 2026-11-30_06:20:26
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 99)
  error_file: /tmp/a/error.json
  traceback : Traceback (most recent call last):
    File "/workspace/train.py", line 3, in main
      run()
  ValueError: a

------------------------------------------------------------
"""
    (found,) = exceptions(text)
    assert (found.scope.ranks, found.facts["message"]) == ([3], "a")
    assert found.facts["where"] == "main (/workspace/train.py:3)"


@pytest.mark.parametrize(
    ("prefix", "ranks"),
    [
        ("2026-11-30 06:20:26,123 ERROR [rank3] ", [3]),
        ("2026-11-30 06:20:26,123 - trainer - ERROR - ", []),
        ("ERROR:trainer:", []),
        ("2026-11-30 06:20:26.123 | ERROR    | trainer:run:12 - ", []),
    ],
)
def test_a_logger_that_marks_only_the_first_line_hides_no_traceback(prefix, ranks):
    (found,) = exceptions(prefix + traceback("ValueError: a"))
    assert (found.scope.ranks, found.facts["where"]) == (ranks, "step (/workspace/train.py:7)")


def test_tracebacks_inside_json_lines_are_read():
    def line(rank: int, message: str) -> str:
        said = {"level": "error", "message": "step failed", "exc_info": traceback(message), "rank": rank}
        return json.dumps({"time": "2026-11-30T06:20:26Z"} | said)

    text = "\n".join(
        [line(0, "ValueError: a"), line(1, "KeyError: 'b'"), '{"level": "info", "rank": 1, "message": "x"}']
    )
    found = [(s.scope.ranks, s.facts["message"], s.facts["where"], s.evidence[0].where) for s in exceptions(text)]
    place = "step (/workspace/train.py:7)"
    assert found == [([0], "a", place, "1"), ([1], "'b'", place, "2")]


@pytest.mark.parametrize(
    "last",
    [
        "lightning.pytorch.utilities.exceptions.SIGTERMException",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
        "RuntimeError: Pin memory thread exited unexpectedly",
    ],
)
def test_what_an_order_to_end_leaves_behind_is_a_cascade(last):
    (found,) = exceptions(traceback(last, "[rank0]: "))
    assert (found.facts["cascade"], found.facts["first"]) == (True, False)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_however_ranks_interleave_their_tracebacks_are_the_same(turns):
    own = [
        [
            *traceback(f"KeyError: 'k{rank}'", f"[rank{rank}]: ").split("\n"),
            f"[rank{rank}]: ",
            f"[rank{rank}]: The above exception was the direct cause of the following exception:",
            f"[rank{rank}]: ",
            *traceback(f"ValueError: v{rank}", f"[rank{rank}]: ").split("\n"),
        ]
        for rank in range(3)
    ]
    lines = [own[rank].pop(0) for rank in [*turns, *[0, 1, 2] * 12] if own[rank]]
    signals = exceptions("\n".join(lines))
    found = sorted((s.scope.ranks, s.facts["first_cause_message"], s.facts["message"]) for s in signals)
    assert found == [([rank], f"'k{rank}'", f"v{rank}") for rank in range(3)]
