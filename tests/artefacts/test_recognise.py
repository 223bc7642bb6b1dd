import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.artefacts.recognise import recognise

PYSPY = (
    b"Process 7: python train.py\nPython v3.12.3 (/usr/bin/python3.12)\n\n"
    b'Thread 7 (active): "MainThread"\n    f (a.py:1)\n'
)


@pytest.mark.parametrize(
    ("head", "kind", "file_format"),
    [
        (pickle.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}}, 2), "flight_recorder", "pickle"),
        (pickle.dumps({"segments": [], "device_traces": []}), "memory_snapshot", "pickle"),
        (pickle.dumps({"weights": 1}), "unknown", "pickle"),
        (b'{"version": "2.10", "pg_config": {"": {}}, "pg_status": {}}', "flight_recorder", "json"),
        (b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}', "trace", "json"),
        (b'[{"pid": 7, "os_thread_id": 7, "owns_gil": false, "frames": []}]', "stack_dump", "json"),
        (b'SERVER PROTOCOL 2\nOK\nOK\n{"nccl_version": "2.28.9", "communicators": []}', "ras", "json"),
        (b"NCCL version 2.28.9 compiled with CUDA 13.0\n\nJob summary\n====", "ras", "text"),
        (b'{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}', "config", "json"),
        (PYSPY, "stack_dump", "text"),
        (b'Current thread 0x00007f1 (most recent call first):\n  File "a.py", line 1 in f\n', "stack_dump", "text"),
        (
            b'Traceback for thread 7 (python) [] (most recent call last):\n    (Python) File "a.py", line 1\n',
            "stack_dump",
            "text",
        ),
        (b"[rank0] step 0 loss 7.1\n[rank1] step 0 loss 7.1\n", "log", "text"),
        (b"[W1130 06:10:09.267 Utils.hpp:137] Warning: data parallel\n", "log", "text"),
        (b"GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n", "nvidia_smi", "text"),
        (
            b'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>',
            "nvidia_smi",
            "xml",
        ),
        (b"[  123.456789] NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus.\n", "kernel_log", "text"),
        (b"import os\nimport torch\n\ndef main():\n    pass\n", "text", "text"),
        (b"\x7fELF\x02\x01\x01\x00" + bytes(64), "unknown", "binary"),
        (b"", "empty", "text"),
        (b" \n\n", "empty", "text"),
    ],
)
def test_a_file_is_recognised_by_its_content(head: bytes, kind: str, file_format: str) -> None:
    found = recognise(head, "any-name")
    assert (found.kind, found.format) == (kind, file_format)


def test_a_stack_dump_inside_a_log_leaves_it_a_log() -> None:
    log = b"".join(b"[rank0] step %d loss 7.1\n" % i for i in range(40))
    assert (
        recognise(log + b'Thread 0x00007f (most recent call first):\n  File "a.py", line 1 in f\n' + log, "x").kind
        == "log"
    )


def test_a_file_that_holds_one_number_is_a_rank_note_only_when_it_is_called_one() -> None:
    assert recognise(b"3\n", "rank-of-pid654").kind == "rank_note"
    assert recognise(b"3\n", "latest_checkpointed_iteration.txt").kind == "text"


@given(st.binary(max_size=4096), st.text(max_size=20))
def test_any_bytes_are_recognised_as_something(head: bytes, name: str) -> None:
    assert recognise(head, name).kind


CRASH = (
    b"[rank1]: Traceback (most recent call last):\n"
    b'[rank1]:   File "/workspace/train.py", line 7, in <module>\n[rank1]: ValueError: no\n'
)


@pytest.mark.parametrize(
    "before",
    [
        b"import os\nimport sys\nfrom x import y\ndef f(a):\n" * 400,
        b"| NVIDIA-SMI 580 |\n" * 300,
        b"NCCL version 2.28.9 compiled with CUDA 13.0\n",
        b"[  123.456789] NVRM: loading\n" * 300,
        b"tensor_parallel: 2\n" * 300,
        b'{"train_micro_batch_size_per_gpu": 1}\n',
        b"plain words\n" * 40,
        bytes(5000),
        b"step 1\n" + bytes(5000),
    ],
)
def test_a_log_is_recognised_whatever_stands_before_it(before: bytes) -> None:
    assert recognise(before + CRASH, "x").kind == "log"


def test_a_log_is_recognised_by_pieces_behind_the_head() -> None:
    assert recognise(b"q" * 65536, "x", lambda: [b"q" * 99, CRASH]).kind == "log"
    assert recognise(bytes(65536), "x", lambda: [bytes(99), b"step 1 loss 2\n"]).kind == "log"
    assert recognise(b"q" * 65536, "x", lambda: [b"words\n"]).kind == "text"


def test_pieces_behind_the_head_are_not_asked_for_when_the_head_is_clear() -> None:
    def more() -> list[bytes]:
        raise AssertionError

    assert recognise(CRASH, "x", more).kind == "log"
    assert recognise(pickle.dumps({"weights": 1}), "x", more).kind == "unknown"
    assert recognise(PYSPY, "x", more).kind == "stack_dump"


def test_a_byte_order_mark_changes_nothing() -> None:
    assert recognise(b'\xef\xbb\xbf{"pg_config": {}, "pg_status": {}}', "x").kind == "flight_recorder"
    assert recognise(b"\xef\xbb\xbf" + PYSPY, "x").kind == "stack_dump"
    assert recognise(CRASH.decode().encode("utf-16-le"), "x").kind == "log"


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b" \n", b"\t\n"])
def test_a_file_of_line_ends_costs_next_to_nothing(line_end: bytes) -> None:
    start = time.process_time()
    assert recognise(line_end * 40_000, "x.log").kind in ("empty", "text")
    assert time.process_time() - start < 2.0
