"""Take a snapshot of a running process, where Python itself lets another process ask it to (3.14 and later).

Nothing is injected in any other way: on older versions, and where it is switched off, the reason is said instead.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.bundle.processes import NoJobError
from torchtriage.errors import BadCallError

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 20.0
_LOOK_EVERY_S = 0.05
HOW_ELSE = (
    "let the job write one itself: torch.cuda.memory._record_memory_history() at its start, and "
    "torch.cuda.memory._dump_snapshot(path) where it fails or after some steps"
)
# Runs inside the job, between two of its instructions; it must not raise there, whatever happens.
_SCRIPT = """\
def _torchtriage_dump(path):
    import os, sys
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            raise RuntimeError("no CUDA in this process")
        torch.cuda.memory._dump_snapshot(path + ".part")
        os.replace(path + ".part", path)
    except BaseException as error:
        try:
            with open(path + ".error", "w") as file:
                file.write(f"{{type(error).__name__}}: {{error}}"[:400])
        except BaseException:
            pass
_torchtriage_dump({path!r})
del _torchtriage_dump
"""


def take_snapshot(pid: int, folder: Path, *, wait_s: float = WAIT_S) -> Path:
    """Ask a running process to write a snapshot of its GPU memory.

    Args:
        pid: the process.
        folder: a folder that both may write to; kept private by its maker.
        wait_s: how long to wait. A process that is blocked in a call answers when that returns, or never.

    Raises:
        NoJobError: there is no such process.
        BadCallError: it cannot be asked, with the reason and what else to do.
    """
    if not Path(f"/proc/{pid}").is_dir():
        raise NoJobError(f"no process has pid {pid}: it may have ended; `torchtriage collect` lists the job's ranks")
    execute: Callable[[int, str], None] | None = getattr(sys, "remote_exec", None)
    if execute is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise BadCallError(
            f"a running process can be asked for a snapshot from Python 3.14 on, in it and in this program, which runs "
            f"on {version}; {HOW_ELSE}"
        )
    target = folder / f"snapshot-pid{pid}.pickle"
    script = folder / "take_snapshot.py"
    script.write_text(_SCRIPT.format(path=str(target)), encoding="utf-8")
    script.chmod(0o644)  # the process may be another user's
    try:
        execute(pid, str(script))
    except (OSError, RuntimeError, ValueError) as error:
        raise BadCallError(f"process {pid} could not be asked for a snapshot ({error}); {HOW_ELSE}") from error
    return _awaited(pid, target, wait_s)


def _awaited(pid: int, target: Path, wait_s: float) -> Path:
    failed = target.with_name(target.name + ".error")
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if target.exists():
            return target
        if failed.exists():
            said = failed.read_text(encoding="utf-8", errors="replace")[:400]
            raise BadCallError(f"process {pid} could not write a snapshot: {said}; {HOW_ELSE}")
        time.sleep(_LOOK_EVERY_S)
    raise BadCallError(
        f"process {pid} did not answer within {wait_s:.0f} s: it is blocked in a call outside of Python; look at it "
        f"with `torchtriage dump-stacks --pid {pid}`. It writes {target} if that call returns"
    )
