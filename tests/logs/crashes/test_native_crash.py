"""Crashes of native code: what processes print about them, put together, and told from aborts that only pass on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchtriage.logs.analyze import analyze
from torchtriage.logs.scan.read import PatternSet, scan, text_source

if TYPE_CHECKING:
    from torchtriage.report import Signal

WATCHDOG = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600001 milliseconds before timing out."
)


def crashes(text: str) -> list[Signal]:
    return [s for s in analyze(scan([text_source(text)], PatternSet([]))).signals if s.name == "log.native_crash"]


def facts(signal: Signal, *names: str) -> tuple[object, ...]:
    return tuple(signal.facts[name] for name in names)


def test_the_stack_of_the_current_thread_tells_where_it_crashed():
    lines = [
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x00007f11 (most recent call first):",
        '  File "/workspace/other.py", line 355 in wait',
        "",
        "Current thread 0x00007f22 (most recent call first):",
        '  File "/usr/lib/python3.12/threading.py", line 1010 in run',
        '  File "/workspace/data.py", line 9 in load',
        "",
        "Extension modules: numpy",
    ]
    (found,) = crashes("\n".join(f"[rank2]: {line}" for line in lines))
    assert found.scope.ranks == [2]
    assert facts(found, "signal", "frame") == ("SIGSEGV", "load (/workspace/data.py:9)")
    assert [e.where for e in found.evidence] == ["1", "8"]


def test_stacks_of_ranks_that_crash_at_once_are_kept_apart():
    lines = [
        "terminate called after throwing an instance of 'std::runtime_error'",
        "  what():  bad layout",
        "frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7f11 in /opt/lib/libc10.so)",
        "frame #1: ext{}::apply() + 0x1a (0x7f12 in /opt/ext/libext.so)",
    ]
    both = [f"[rank{rank}]: {line.format(rank)}" for line in lines for rank in range(2)]
    found = crashes("\n".join(both))
    assert [(s.scope.ranks, s.facts["frame"]) for s in found] == [([0], "ext0::apply()"), ([1], "ext1::apply()")]
    assert facts(found[0], "signal", "what", "exception", "library", "heap") == (
        "SIGABRT",
        "bad layout",
        "std::runtime_error",
        "libext.so",
        False,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "corrupted size vs. prev_size\n[n1:99] *** Process received signal ***\n[n1:99] Signal: Aborted (6)\n"
            "[n1:99] [ 0] /lib/x86_64-linux-gnu/libc.so.6(gsignal+0x16)[0x7f1]\n"
            "[n1:99] [ 1] /opt/ext/op.so(_Z3foov+0x12)[0x7f2]",
            ("SIGABRT", "_Z3foov", "op.so", True),
        ),
        (
            "[n1:99] Signal: Segmentation fault (11)\n[n1:99] [ 0] /opt/ext/op.so(_Z3foov+0x12)[0x7f2]",
            ("SIGSEGV", "_Z3foov", "op.so", False),
        ),
        ("double free or corruption (out)", ("SIGABRT", None, None, True)),
        ("free(): invalid pointer", ("SIGABRT", None, None, True)),
        (
            "*** SIGSEGV (@0x0) received by PID 99 (TID 0x7f11) from PID 0; stack trace: ***\n"
            "    @     0x7f11 (unknown)\n    @     0x7f12 ns::Foo::run()",
            ("SIGSEGV", "ns::Foo::run()", None, False),
        ),
        (
            "[n1:99:0:99] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x18)\n"
            "==== backtrace (tid:     99) ====\n 0  /usr/lib/libucs.so.0(ucs_handle_error+0x2e4) [0x7f11]\n"
            " 1  /usr/lib/libfoo.so(foo_send+0x2e4) [0x7f11]",
            ("SIGSEGV", "foo_send", "libfoo.so", False),
        ),
        (
            "Nov 30 12:00:00 n1 kernel: [123.456789] python[99]: segfault at 18 ip 00007f11 sp 00007ffd error 4 in "
            "libfoo.so.1[7f11+1000]",
            ("SIGSEGV", None, "libfoo.so.1", False),
        ),
        (
            "[123.456789] traps: python[99] general protection fault ip:7f11 sp:7ffd error:0 in libfoo.so[7f11+1000]",
            ("SIGSEGV", None, "libfoo.so", False),
        ),
        ("ERROR: Unexpected bus error encountered in worker. This might be", ("SIGBUS", None, None, False)),
        (
            'Thread 1 "python" received signal SIGSEGV, Segmentation fault.\n#0  0x7f11 in foo () from /opt/libfoo.so',
            ("SIGSEGV", "foo", "libfoo.so", False),
        ),
        (
            "Fatal Python error: Segmentation fault\n\nCurrent thread's C stack trace (most recent call first):\n"
            '  Binary file "/usr/lib/libc.so.6", at +0x42520 [0x7f1]\n  Binary file "/libfoo.so", at foo+0x12 [0x7f2]',
            ("SIGSEGV", "foo", "libfoo.so", False),
        ),
    ],
)
def test_the_words_of_each_crash_handler_are_read(text, expected):
    (found,) = crashes(text)
    assert facts(found, "signal", "frame", "library", "heap") == expected


@pytest.mark.parametrize(
    "text",
    [
        f"[rank0]: {WATCHDOG}\nterminate called after throwing an instance of 'c10::DistBackendError'\n what():  x",
        f"[rank0]: {WATCHDOG}\n[rank0]: terminate called without an active exception",
        "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: unknown",
        "terminate called after throwing an instance of 'std::system_error'\n  what():  Connection reset by peer",
        'Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n  File "/a.py", line 1 in f',
        "[n1:99] Signal: Terminated (15)",
        'Timeout (0:00:30)!\nThread 0x7f (most recent call first):\n  File "/a.py", line 1 in f',
        "the malloc(): call is traced",
        "*** Aborted at 1796019626 (unix time) ***",
    ],
)
def test_an_abort_that_only_passes_on_other_trouble_is_no_native_crash(text):
    assert crashes(text) == []


def test_the_process_id_of_the_kernels_line_tells_the_rank():
    text = (
        "[1.000000] python[957]: segfault at 0 ip 0 sp 0 error 4 in a.so[7f+1]\n"
        "node:957:957 [1] NCCL INFO ncclCommInitRank comm 0x1 rank 5 nranks 8 cudaDev 1 busId 70 - Init COMPLETE"
    )
    assert [s.scope.ranks for s in crashes(text)] == [[5]]


def test_a_crash_behind_another_failure_says_so():
    error = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a.py", line 1, in f\n[rank1]: ValueError: a\n'
    )
    crash = "[rank0]: Fatal Python error: Segmentation fault\n"
    assert [s.facts["after_failure"] for s in crashes(error + crash)] == [True]
    assert [s.facts["after_failure"] for s in crashes(crash + error)] == [False]
