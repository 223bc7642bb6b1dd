from pathlib import Path
from typing import Any

import pytest

from torchtriage.artefacts.recognise import recognise
from torchtriage.stacks.classify import classify
from torchtriage.stacks.gdb_text import GdbFrame, gdb_frame, gdb_thread
from torchtriage.stacks.read import read_task

BACKTRACES = """\
[New LWP 712]
Thread 2 (Thread 0x7f1a2bfff700 (LWP 712) "pt_autograd_0"):
#0  0x00007f1b9b0c2a35 in pthread_cond_wait@@GLIBC_2.3.2 () from /lib64/libpthread.so.0
#1  0x00007f1b4c0f5e2c in torch::autograd::ReadyQueue::pop() () from /opt/torch/lib/libtorch_cpu.so

Thread 1 (Thread 0x7f1b9b8f2740 (LWP 700) "python"):
#0  0x00007ffd5f9c9a6e in ?? ()
#1  0x00007f1b9a8a1b2c in ?? () from /usr/lib64/libcuda.so.1
#2  0x00007f1b9c0f5e2c in cuStreamSynchronize () from /usr/lib64/libcuda.so.1
#3  0x00007f1b4c0f5e2c in at::native::_local_scalar_dense_cuda(at::Tensor const&)
    () from /opt/torch/lib/libtorch_cuda.so
#4  _PyEval_EvalFrameDefault (tstate=<optimized out>, f=0x55d0c0a8, throwflag=0) at Python/ceval.c:4181
"""


def read(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    path = tmp_path / "bt.txt"
    path.write_text(text, encoding="utf-8")
    return read_task(str(path), None, {"format": "text"})["processes"]


def test_backtraces_of_all_threads_are_one_process_whose_first_thread_is_the_main_one(tmp_path: Path) -> None:
    (process,) = read(tmp_path, BACKTRACES)
    assert (process["tool"], process["pid"]) == ("gdb", 700)
    assert [(t["name"], t["os_thread_id"], t["main"]) for t in process["threads"]] == [
        ("pt_autograd_0", 712, False),
        ("python", 700, True),
    ]
    main = process["threads"][1]["frames"]
    assert [f["function"] for f in main[:3]] == ["??", "??", "cuStreamSynchronize"]
    assert (main[2]["file"], main[2]["native"]) == ("/usr/lib64/libcuda.so.1", True)
    assert (main[-1]["function"], main[-1]["file"], main[-1]["line"]) == (
        "_PyEval_EvalFrameDefault",
        "Python/ceval.c",
        4181,
    )
    assert classify(process).state == "waiting_on_gpu"


def test_a_file_of_backtraces_is_known_as_a_stack_dump() -> None:
    assert recognise(BACKTRACES.encode(), "bt.txt").kind == "stack_dump"


def test_a_bare_backtrace_begins_at_frame_0(tmp_path: Path) -> None:
    processes = read(tmp_path, "#0  0x1 in read () from /lib64/libc.so.6\n#1  main () at a.c:3\n" * 2)
    assert [len(p["threads"][0]["frames"]) for p in processes] == [2]  # the last one of what may be one process


def test_python_frames_of_gdb_are_read(tmp_path: Path) -> None:
    text = 'Traceback (most recent call first):\n  File "/app/train.py", line 3, in step (self=1)\n    self.wait()\n'
    (process,) = read(tmp_path, text)
    (frame,) = process["threads"][0]["frames"]
    assert (frame["function"], frame["file"], frame["line"], frame["native"]) == ("step", "/app/train.py", 3, False)


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        (
            "#12 0x1 in f(int, (anonymous namespace)::T) (x=1) at a.cc:7",
            (12, "f(int, (anonymous namespace)::T)", "a.cc"),
        ),
        ("#0  <signal handler called>", (0, "<signal handler called>", "")),
        ("#3  0x1 in ?? ()", (3, "??", "")),
    ],
)
def test_a_frame_is_its_call_and_its_place(line: str, frame: tuple[int, str, str]) -> None:
    found = gdb_frame(line)
    assert isinstance(found, GdbFrame)
    assert (found.depth, found.function, found.file) == frame


@pytest.mark.parametrize("line", ["# 1 heading", "#1 heading", "#include <x>", "#5", "1. item"])
def test_a_heading_is_no_frame(line: str) -> None:
    assert gdb_frame(line) is None


@pytest.mark.parametrize(
    "line", ['Thread 3 (LWP 17 "x"):', "Thread 3 (Thread 0x7f00 (LWP 17)):", "Thread 3 (process 17):"]
)
def test_threads_are_told_by_their_kernel_ids(line: str) -> None:
    found = gdb_thread(line)
    assert found is not None
    assert (found.number, found.os_thread_id) == ("3", 17)
