"""Reading of stack dumps in all their forms."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtriage.errors import UnreadableError
from torchtriage.stacks.analyze import analyze
from torchtriage.stacks.read import read_task
from torchtriage.stacks.refusals import NOT_SUSPENDED

DATA = Path(__file__).parents[1] / "data" / "stacks"
RECORDED = sorted(p for p in DATA.glob("*/pyspy-*"))

PYSTACK = """Traceback for thread 31 (python) [Has the GIL] (most recent call last):
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
        self._bootstrap_inner()
    (Python) File "/workspace/train.py", line 8, in busy
        while True: pass
      Locals:
        api_key: "sk-verysecretvalue"

Traceback for thread 30 (python) [] (most recent call last):
    (C) File "???", line 0, in _start (/usr/bin/python3.11)
    (Python) File "/workspace/train.py", line 19, in <module>
        main()
    (Python) File "/workspace/train.py", line 18, in main
        time.sleep(3600)
    (C) File "./Modules/timemodule.c", line 2159, in pysleep (inlined) (/usr/lib/libpython3.11.so.1.0)
    (C) File "../sysdeps/clock_nanosleep.c", line 48, in clock_nanosleep@GLIBC_2.2.5 (/usr/lib/libc.so.6)
"""

FAULTHANDLER = """Timeout (0:05:00)!
Thread 0x00007f10aa7fe640 [pt_data] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line 355 in wait
  File "/usr/lib/python3.14/threading.py", line 1010 in _bootstrap
Thread 0x00007f11bb7fe740 (most recent call first):
  Garbage-collecting
  File "/workspace/train.py", line 12 in step
  File "/workspace/train.py", line 40 in <module>
"""

C_STACK = """Fatal Python error: Aborted

Current thread 0x00007f11bb7fe740 [python] (most recent call first):
  File "/workspace/train.py", line 12 in step
  File "/workspace/train.py", line 40 in <module>

Current thread's C stack trace (most recent call first):
  Binary file "/usr/lib/libcuda.so.1", at cuStreamSynchronize+0x21 [0x7f00aa]
  Binary file "/usr/lib/libtorch_cuda.so", at +0x33 [0x7f00bb]
  Binary file "/usr/bin/python3.14", at _PyEval_EvalFrameDefault+0x99 [0x55aa]
  Binary file "/usr/bin/python3.14", at main+0x9 [0x55ab]
"""

PYSPY_LOCALS = """Process 7: python /workspace/train.py --rank 3
Python v3.12.3 (/usr/bin/python3.12)

Thread 7 (active+gil): "MainThread"
    step (train.py:12)
        Arguments:
            token: "hf_abcdefghijklmnop"
        Locals:
            fake (train.py:99)
    <module> (train.py:40)
Thread 9 (idle)
"""


def read(tmp_path: Path, text: str | bytes, file_format: str = "text") -> dict[str, Any]:
    path = tmp_path / "dump"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_task(str(path), None, {"format": file_format})


def main_of(process: dict[str, Any]) -> dict[str, Any]:
    (main,) = [thread for thread in process["threads"] if thread["main"]]
    return main


def short(frames: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(f["function"], f["file"], f["line"], f["native"]) for f in frames]


def test_pyspy_text_gives_process_threads_and_frames_without_variables(tmp_path: Path) -> None:
    result = read(tmp_path, PYSPY_LOCALS)
    (process,) = result["processes"]
    assert (process["pid"], process["tool"], process["command"]) == (7, "py-spy", "python /workspace/train.py --rank 3")
    main = main_of(process)
    assert (main["name"], main["active"], main["owns_gil"]) == ("MainThread", True, True)
    assert short(main["frames"]) == [("step", "train.py", 12, False), ("<module>", "train.py", 40, False)]
    assert [f["where"] for f in main["frames"]] == ["5", "10"]
    assert "hf_" not in json.dumps(result)
    assert process["threads"][1]["frames"] == []


def test_native_frames_of_pyspy_are_told_from_python_frames(tmp_path: Path) -> None:
    text = (
        'Process 7: python\nPython v3.12\n\nThread 7 (active): "MainThread"\n'
        "    0x7f833d4cc5c4 (libcuda.so.580.159.04)\n"
        "    at::native::item(at::Tensor const&)::{lambda()#1}::operator() const (libtorch_cuda.so)\n"
        "    work (module.cpp:33)\n"
        "    step (/home/a (b)/train.py:3)\n"
        "    call (<string>:1)\n"
    )
    frames = main_of(read(tmp_path, text)["processes"][0])["frames"]
    assert short(frames) == [
        ("0x7f833d4cc5c4", "libcuda.so.580.159.04", None, True),
        ("at::native::item(at::Tensor const&)::{lambda()#1}::operator() const", "libtorch_cuda.so", None, True),
        ("work", "module.cpp", 33, True),
        ("step", "/home/a (b)/train.py", 3, False),
        ("call", "<string>", 1, False),
    ]


def test_pystack_frames_come_innermost_first_and_name_the_library(tmp_path: Path) -> None:
    result = read(tmp_path, PYSTACK)
    (process,) = result["processes"]
    assert (process["pid"], process["tool"]) == (30, "pystack")
    main = main_of(process)
    assert short(main["frames"]) == [
        ("clock_nanosleep@GLIBC_2.2.5", "/usr/lib/libc.so.6", None, True),
        ("pysleep", "/usr/lib/libpython3.11.so.1.0", None, True),
        ("main", "/workspace/train.py", 18, False),
        ("<module>", "/workspace/train.py", 19, False),
        ("_start", "/usr/bin/python3.11", None, True),
    ]
    assert process["threads"][0]["owns_gil"] is True
    assert "sk-" not in json.dumps(result)


def test_faulthandler_names_threads_and_marks_a_collection(tmp_path: Path) -> None:
    (process,) = read(tmp_path, FAULTHANDLER)["processes"]
    assert (process["tool"], process["pid"], process["threads"][0]["name"]) == ("faulthandler", None, "pt_data")
    assert [f["function"] for f in main_of(process)["frames"]] == ["Garbage-collecting", "step", "<module>"]


def test_the_c_stack_of_faulthandler_stands_inside_the_current_threads_python_frames(tmp_path: Path) -> None:
    (process,) = read(tmp_path, C_STACK)["processes"]
    assert short(main_of(process)["frames"]) == [
        ("cuStreamSynchronize", "/usr/lib/libcuda.so.1", None, True),
        ("0x7f00bb", "/usr/lib/libtorch_cuda.so", None, True),
        ("step", "/workspace/train.py", 12, False),
        ("<module>", "/workspace/train.py", 40, False),
    ]


def test_of_several_dumps_of_one_process_the_last_is_taken_and_the_count_is_said(tmp_path: Path) -> None:
    later = FAULTHANDLER.replace("line 12", "line 13")
    result = read(tmp_path, FAULTHANDLER + later)
    (process,) = result["processes"]
    assert main_of(process)["frames"][1]["line"] == 13
    assert result["choices"] == ["holds 2 dumps of process thread 0x00007f11bb7fe740; the last one was taken"]


def test_a_file_with_several_processes_gives_each_and_its_parent(tmp_path: Path) -> None:
    child = (
        'Process 8: python\nPython v3.12\nParent Process 7: python\n\nThread 8 (idle): "MainThread"\n    f (a.py:1)\n'
    )
    result = read(tmp_path, PYSPY_LOCALS + child)
    assert [(p["pid"], p["parent"]) for p in result["processes"]] == [(7, None), (8, 7)]


def test_pyspy_json_gives_pointers_to_scalars(tmp_path: Path) -> None:
    frame = {"name": "f", "filename": "/x/a.py", "short_filename": "a.py", "module": None, "line": 3, "locals": None}
    native = {**frame, "name": "poll", "filename": "/lib/libc.so.6", "short_filename": "libc.so.6", "line": 0}
    native["module"] = "/lib/libc.so.6"
    thread = {"pid": 5, "thread_name": None, "os_thread_id": 6, "active": False, "owns_gil": False, "frames": []}
    main = {**thread, "thread_name": "MainThread", "os_thread_id": 5, "frames": [native, frame]}
    (process,) = read(tmp_path, json.dumps([thread, main]), "json")["processes"]
    assert short(main_of(process)["frames"]) == [("poll", "libc.so.6", None, True), ("f", "a.py", 3, False)]
    assert (main_of(process)["frames"][1]["where"], main_of(process)["frames"][1]["text"]) == (
        "/1/frames/1/name",
        '"f"',
    )


def test_json_of_odd_types_is_left_out_and_said(tmp_path: Path) -> None:
    view = [
        5,
        {"frames": "no"},
        {
            "pid": True,
            "os_thread_id": 10**30,
            "thread_name": 7,
            "active": "x",
            "frames": [{"name": 3}, 4, {"name": "f"}],
        },
    ]
    result = read(tmp_path, json.dumps(view), "json")
    (process,) = result["processes"]
    assert process["pid"] is None
    assert short(main_of(process)["frames"]) == [("f", "", None, True)]
    assert result["notes"] == [
        "2 entries are not threads as py-spy writes them; they were left out",
        "larger than what is read: 2 frames, threads or processes were left out",
    ]


def test_a_file_cut_inside_a_frame_yields_what_is_whole_and_says_so(tmp_path: Path) -> None:
    text = 'Process 7: python\n\nThread 7 (idle): "MainThread"\n    f (a.py:1)\n    g (a.p'
    result = read(tmp_path, text)
    assert [f["function"] for f in main_of(result["processes"][0])["frames"]] == ["f"]
    assert result["notes"] == ["ends in the middle of a dump; what was whole before that was read"]


def test_a_deep_stack_is_cut_and_a_pystack_one_keeps_its_innermost_frames(tmp_path: Path) -> None:
    deep = "".join(f'    (Python) File "/w/a.py", line {n}, in f\n' for n in range(1, 3001))
    result = read(tmp_path, "Traceback for thread 3 [] (most recent call last):\n" + deep)
    lines = [f["line"] for f in main_of(result["processes"][0])["frames"]]
    assert (len(lines), lines[0]) == (400, 3000)
    assert "larger than what is read" in result["notes"][0]


def test_text_without_a_dump_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no stack dump"):
        read(tmp_path, "step 1 loss 2.0\n    f (a.py:1)\n")


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_recorded_dumps_are_read_whole(path: Path) -> None:
    result = read_task(str(path), None, {"format": "json" if path.suffix == ".json" else "text"})
    (process,) = result["processes"]
    assert process["pid"] == int(path.name.removeprefix("pyspy-pid").split(".")[0])
    assert main_of(process)["frames"][-1]["function"] == "<module>" or ".native." in path.name
    assert result["notes"] == []


def test_public_samples_are_read(samples: Path) -> None:
    folder = samples / "public" / "stacks"
    recorded = [*folder.glob("*.out"), *folder.glob("*.json")]
    assert recorded
    for path in recorded:
        file_format = "json" if path.read_bytes()[:1] == b"[" else "text"
        (process,) = read_task(str(path), None, {"format": file_format})["processes"]
        main = main_of(process)
        assert [f["function"] for f in main["frames"] if not f["native"]][-1] == "<module>", path.name
        assert "sk-abc" not in json.dumps(process), path.name


SEEDS = [PYSTACK, FAULTHANDLER, C_STACK, PYSPY_LOCALS, *(p.read_text() for p in RECORDED[:3])]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SEEDS), st.integers(0, 4000), st.binary(max_size=40), st.integers(0, 40), st.booleans())
def test_damaged_dumps_end_in_a_result_or_a_plain_refusal(
    tmp_path_factory: pytest.TempPathFactory, seed: str, at: int, junk: bytes, removed: int, as_json: bool
) -> None:
    data = seed.encode()
    at = min(at, len(data))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(data[:at] + junk + data[at + removed :])
    try:
        result = read_task(str(path), None, {"format": "json" if as_json else "text"})
    except UnreadableError:
        return
    json.dumps(result)
    analyze([("a.txt", result), ("b.txt", result)], {7: 0})
    assert all(sum(thread["main"] for thread in process["threads"]) == 1 for process in result["processes"])


def test_a_compressed_dump_that_is_cut_says_so(tmp_path: Path) -> None:
    text = "".join(f'Thread {n} (idle): "t{n}"\n    wait_{n} (train.py:{n})\n' for n in range(400))
    whole = gzip.compress(f"Process 7: python train.py\nPython v3.12.3\n\n{text}".encode())
    path = tmp_path / "stack.txt.gz"
    path.write_bytes(whole[: len(whole) // 2])
    assert any("cut" in note or "damaged" in note or "ends" in note for note in read_task(str(path), "gz", {})["notes"])


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (f"{NOT_SUSPENDED}process 7\nState:\tT (stopped)\n", 0),
        ("Permission Denied: Try running again with elevated permissions\n", 1),
    ],
)
def test_that_a_process_was_stopped_is_read_off_and_nothing_is_lost(tmp_path: Path, text: str, lost: int) -> None:
    path = tmp_path / "rank02-pid7.stopped.txt"
    path.write_text(text, encoding="utf-8")
    result = read_task(str(path), None, {"format": "text"})
    assert len(result["notes"]) == lost
    assert result["processes"][0]["refused"]["state"] == ("unreadable" if lost else "stopped")
