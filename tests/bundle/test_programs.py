"""Programs of the system under limits of time and size."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from torchtriage.bundle.programs import run_program

if TYPE_CHECKING:
    from pathlib import Path

HANG = "import signal\nwhile True: signal.pause()"


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def test_output_error_and_exit_code_are_told() -> None:
    ran = run_program(
        python("import sys; print('out'); print('err\\x1b[31m', file=sys.stderr); sys.exit(9)"), timeout_s=60
    )
    assert (ran.output, ran.error, ran.code, ran.timed_out) == (b"out\n", "err", 9, False)


def test_a_program_that_is_not_there_is_told_apart() -> None:
    ran = run_program(["no-such-program-of-ours"], timeout_s=5)
    assert ran.missing
    assert ran.code is None


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    code = f"import os, sys\nheld = os.open(sys.argv[1], os.O_WRONLY)\nos.fork()\n{HANG}"
    ran = run_program(python(code, str(fifo)), timeout_s=1)
    os.set_blocking(reader, True)
    try:
        assert os.read(reader, 1) == b""  # returns when no process holds the other end
    finally:
        os.close(reader)
    assert ran.timed_out
    assert not ran.unkillable
    assert ran.code is None


def test_output_without_end_is_cut_at_its_beginning_or_end() -> None:
    endless = "import sys\nwhile True: sys.stdout.write('0123456789' * 1000)"
    ran = run_program(python(endless), timeout_s=60, limit_bytes=1000)
    assert ran.output == b"0123456789" * 100
    assert ran.cut
    assert not ran.timed_out
    ran = run_program(python("print('x' * 5000 + 'end')"), timeout_s=60, limit_bytes=10, keep_end=True)
    assert (ran.output, ran.code, ran.cut) == (b"xxxxxxend\n", 0, True)


def test_a_child_that_keeps_the_pipe_open_does_not_hold_us() -> None:
    ran = run_program(python(f"import os\nif os.fork(): print('done', flush=True); os._exit(0)\n{HANG}"), timeout_s=60)
    assert (ran.output, ran.code, ran.timed_out) == (b"done\n", 0, False)


def test_a_program_may_close_its_output_and_end_later() -> None:
    ran = run_program(python("import os; os.close(1); os.close(2); os._exit(3)"), timeout_s=60)
    assert (ran.output, ran.code) == (b"", 3)


def test_a_program_may_be_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGINT, lambda *_: (pathlib.Path(sys.argv[1]).touch(), sys.exit(0)))\n"
        "while True: signal.pause()"
    )
    ran = run_program(python(code, str(tmp_path / "in-order")), timeout_s=1.5, end_with=signal.SIGINT)
    assert (tmp_path / "in-order").exists()
    assert (ran.code, ran.timed_out, ran.unkillable) == (None, True, False)


def test_another_thread_may_end_a_program_before_its_time() -> None:
    cancelled = threading.Event()
    timer = threading.Timer(0.2, cancelled.set)
    timer.start()
    ran = run_program(python(HANG), timeout_s=60, cancelled=cancelled)
    timer.join()
    assert (ran.cancelled, ran.timed_out, ran.code) == (True, False, None)


def test_what_is_said_is_kept_as_it_stands_and_shown_in_one_clean_line() -> None:
    ran = run_program(python("import sys; sys.stderr.write('a\\nb\\x1b[31m\\n')"), timeout_s=60)
    assert (ran.said, ran.error) == ("a\nb\x1b[31m", "a b")


def test_a_program_gets_the_environment_and_descriptors_that_are_given_to_it() -> None:
    read, write = os.pipe()
    try:
        ran = run_program(
            python("import os, sys; print(os.environ['X']); os.fstat(int(sys.argv[1]))", str(read)),
            timeout_s=60, environment={"X": "1"}, pass_fds=[read],
        )  # fmt: skip
    finally:
        os.close(read)
        os.close(write)
    assert (ran.output, ran.code) == (b"1\n", 0)
