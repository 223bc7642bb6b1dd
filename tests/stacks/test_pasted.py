from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.stacks.pasted import MAX_BLOCKS, pasted_dumps, rank_in_heading
from torchtriage.verdict.tool import explain_symptom

PYSPY = """\
Process {pid}: python train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread {pid} (active): "MainThread"
    {frame}
    step (train.py:40)
    <module> (train.py:90)
Thread 99 (idle): "Thread-1"
    wait (threading.py:320)
"""
WAITS = "synchronize (torch/cuda/__init__.py:954)"
READS = "recv_into (socket.py:706)"
POLLS = '  File "/app/train.py", line 3 in poll'


def dump(pid: int, frame: str) -> str:
    return PYSPY.format(pid=pid, frame=frame)


def processes(text: str) -> list[dict[str, Any]]:
    return [process for each in pasted_dumps(text) for process in each["processes"]]


def seen(text: str) -> list[tuple[int | None, int | None, str]]:
    """Rank, pid and innermost frame of the main thread of each process."""
    found: list[tuple[int | None, int | None, str]] = []
    for process in processes(text):
        main = next(thread for thread in process["threads"] if thread["main"])
        found.append((process.get("rank"), process["pid"], main["frames"][0]["function"]))
    return found


TWO = f"""It hangs at step 40. What py-spy shows:

rank 0:
```
{dump(321, WAITS)}```
And **rank 1** is elsewhere:

{dump(322, READS)}
What is thread 5 doing? Process 7: no idea.
"""


def test_dumps_under_headings_are_read_with_their_ranks() -> None:
    assert seen(TWO) == [(0, 321, "synchronize"), (1, 322, "recv_into")]


def test_every_frame_is_quoted_from_its_line_of_the_whole_text() -> None:
    lines = TWO.split("\n")
    frames = [f for p in processes(TWO) for t in p["threads"] for f in t["frames"]]
    assert len(frames) == 8
    assert all(f["text"] in lines[int(f["where"]) - 1] for f in frames)


@pytest.mark.parametrize("before", ["> ", "    ", "> > "])
def test_quoted_and_indented_dumps_are_read(before: str) -> None:
    text = "\n".join(before + line for line in dump(321, WAITS).splitlines())
    assert seen(f"It hangs:\n\n{text}\n\nAny idea?") == [(None, 321, "synchronize")]


def test_lines_that_carry_a_rank_are_told_apart_although_they_are_mixed() -> None:
    text = "\n".join(
        f"[rank{rank}]: {line}"
        for line in ("Timeout (0:05:00)!", "Thread 0x00007f00 (most recent call first):", POLLS)
        for rank in (4, 5)
    )
    assert seen(text) == [(4, None, "poll"), (5, None, "poll")]


def test_pystack_and_gdb_are_read() -> None:
    pystack = (
        "Traceback for thread 700 (python) [] (most recent call last):\n"
        '    (Python) File "/app/train.py", line 90, in <module>\n        main()\n'
        '    (Python) File "/app/train.py", line 3, in main\n'
    )
    gdb = "#0  0x1 in cuStreamSynchronize () from /usr/lib64/libcuda.so.1\n#1  0x2 in main () from /usr/bin/python3\n"
    assert seen(f"rank 2\n{pystack}\nand gdb of rank 3:\n\n(gdb) bt\n{gdb}") == [
        (2, 700, "main"),
        (3, None, "cuStreamSynchronize"),
    ]


def test_a_line_that_was_wrapped_does_not_end_a_backtrace() -> None:
    text = "#0  0x1 in f () from /lib/a.so\n#1  0x2 in g (\nx=1) from /lib/b.so\n#2  0x3 in h () from /lib/c.so\n"
    (process,) = processes(text)
    assert [f["function"] for f in process["threads"][0]["frames"]][-1] == "h"


@pytest.mark.parametrize(
    "heading",
    [
        "all ranks but rank 3:",
        "ranks 1-7",
        "rank 1 and 2",
        "rank 0 / rank 1",
        "local rank 3",
        "every rank",
        "rank 1-3:",
    ],
)
def test_a_heading_that_may_speak_of_others_names_nobody(heading: str) -> None:
    assert rank_in_heading(heading) is None


@pytest.mark.parametrize("heading", ["rank 3:", "### Rank 3 (pid 17)", "py-spy dump of rank=3", "global rank #3"])
def test_a_heading_that_speaks_of_one_rank_names_it(heading: str) -> None:
    assert rank_in_heading(heading) == 3


def test_a_process_that_crashed_is_left_to_the_log_reader() -> None:
    stack = f"Current thread 0x00007f00 (most recent call first):\n{POLLS}\n"
    assert processes(f"Fatal Python error: Segmentation fault\n\n{stack}") == []
    assert len(processes(f"Fatal Python error: Aborted\n\n{stack}")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Process 12: it hangs and Thread 3 (active) is odd",
        "#0 the first point\n#1 the second point",
        'Traceback (most recent call last):\n  File "/app/train.py", line 3, in step\nValueError: no',
        "Thread 5 is stuck at 100 %",
    ],
)
def test_prose_and_tracebacks_are_no_dumps(text: str) -> None:
    assert pasted_dumps(text) == []


def test_pasted_dumps_are_judged_like_recorded_ones() -> None:
    text = "\n".join(f"rank {rank}:\n{dump(300 + rank, WAITS if rank else READS)}" for rank in range(4))
    verdict = explain_symptom(f"Our job hangs, 4 GPUs.\n{text}")
    signals = {evidence.signal for evidence in verdict.evidence}
    assert signals & {"stacks.network_io", "stacks.waiting_on_gpu"}
    lines = f"Our job hangs, 4 GPUs.\n{text}".split("\n")
    assert all(e.artefact == "text" and e.quote in lines[int(e.where) - 1] for e in verdict.evidence)


LINES = [
    "Process 1: a", "Python v3.11", 'Thread 1 (active): "MainThread"', "    f (a.py:1)", "rank 1:", "#0  0x1 in f ()",
    "#1  0x1 in g () from a", "Thread 0x1 (most recent call first):", '  File "a", line 1 in f', "", "so?", "> ",
    "[rank1]: Thread 0x1 (most recent call first):", '[rank1]:   File "a", line 1 in f', "```", "(gdb) bt",
    "Traceback for thread 1 (most recent call last):", '    (Python) File "a", line 1, in f', "Timeout (0:00:01)!",
    'Thread 1 (Thread 0x1 (LWP 1) "x"):', "Fatal Python error: Aborted", "\x00\x1b[31mThread 1 (idle)",
]  # fmt: skip


@given(st.lists(st.sampled_from(LINES), max_size=40))
def test_any_mixture_of_such_lines_is_judged_and_quoted_right(mixed: list[str]) -> None:
    text = "\n".join(mixed)
    lines = text.split("\n")
    for process in processes(text):
        for thread in process["threads"]:
            assert all(f["text"] in lines[int(f["where"]) - 1] for f in thread["frames"])
    if text.strip():
        explain_symptom(text)


@given(st.text(max_size=300))
def test_any_text_can_be_searched_for_dumps(text: str) -> None:
    assert len(pasted_dumps(text)) <= MAX_BLOCKS
