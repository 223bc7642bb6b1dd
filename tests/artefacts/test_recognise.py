import pickle

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
