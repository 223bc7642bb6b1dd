"""Start one fault of job.py as a torchrun job in a folder of its own, wait until it shows, and leave nothing behind.

``with started(fault_named("stopped"), folder) as drill: ...``, or by hand ``python launch.py stopped FOLDER``.
Linux only: what a job does is read from /proc. A process of its own ends every process of the job, also when this one
is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).resolve().parent
POLL_S = 0.1
QUIET_S = {"gloo": 1.0, "nccl": 5.0}
"""How long nothing must happen. Under NCCL a waiting rank burns CPU, so that there only the logs tell."""
MAX_TICKS = 3
MARK = "JOB_MARK"


class NotReachedError(Exception):
    """The job did not get into the state that its fault is to show, or not in time."""


@dataclass(frozen=True)
class Fault:
    """One fault of faults.yaml, where the keys are explained."""

    number: int
    name: str
    failure_mode: str
    culprit: str
    what: str
    shows: str | Mapping[str, str]
    acceptable: tuple[str, ...] = ()
    at: tuple[str, ...] = ()
    peers_at: tuple[str, ...] = ()
    send: str | None = None
    settings: Mapping[str, str | int] = field(default_factory=dict)
    until: str | None = None
    needs: str | None = None

    def state(self, backend: str) -> str:
        """How it shows over this backend: hangs, runs, fails or finishes."""
        return self.shows if isinstance(self.shows, str) else self.shows[backend]

    def culprits(self, rank: int, world_size: int) -> list[int]:
        """The ranks where the cause is, when ``rank`` was chosen."""
        return {"chosen": [rank], "first": [0], "all": list(range(world_size)), "none": []}[self.culprit]


@dataclass
class Drill:
    """A job that was started."""

    fault: Fault
    folder: Path
    process: subprocess.Popen[bytes]
    backend: str
    world_size: int
    chosen: int
    ranks: dict[int, int] = field(default_factory=dict)
    """The pid of each rank that was seen, also of those that have ended."""

    @property
    def culprits(self) -> list[int]:
        return self.fault.culprits(self.chosen, self.world_size)

    @property
    def console(self) -> Path:
        """What a person would have seen: torchrun's output, with all ranks'."""
        return self.folder / "torchrun.log"

    @property
    def logs(self) -> Path:
        """torchrun's ``--log-dir``: a file for each rank and stream."""
        return self.folder / "logs"

    def log_of(self, rank: int) -> bytes:
        """What a rank has written to its standard output."""
        return b"".join(path.read_bytes() for path in self.logs.glob(f"*/attempt_0/{rank}/stdout.log"))

    def flight_record(self, rank: int, timeout_s: float = 5) -> bytes:
        """The flight recorder of a rank as JSON, over gloo too, from torch's worker server of that rank.

        Raises:
            OSError, HTTPException: the rank does not answer.
        """
        folder = os.open(self.folder, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(timeout_s)
                # A socket's path may have 107 characters; that of a test's folder may be longer.
                link.connect(f"/proc/self/fd/{folder}/worker-{rank}.sock")
                connection = HTTPConnection("localhost")
                connection.sock = link
                connection.request("POST", "/handler/fr_trace_json")
                return connection.getresponse().read()
        finally:
            os.close(folder)

    def find_ranks(self) -> dict[int, int]:
        """The rank processes that live, and keep their pids."""
        living: dict[int, int] = {}
        for pid in _children(self.process.pid):
            rank = _environment(pid).get("RANK")
            if rank is not None:
                living[int(rank)] = pid
        self.ranks |= living
        return living


def load_faults(path: Path = HERE / "faults.yaml") -> list[Fault]:
    """All faults, by number."""
    import yaml

    faults: list[Fault] = []
    for number, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        lists = {key: tuple(entry.pop(key, ())) for key in ("acceptable", "at", "peers_at")}
        faults.append(Fault(number=number, **lists, **entry))
    return faults


def fault_named(name: str) -> Fault:
    """The fault of this name or number.

    Raises:
        KeyError: there is none.
    """
    for fault in load_faults():
        if name in (fault.name, str(fault.number)):
            return fault
    raise KeyError(name)


@contextlib.contextmanager
def started(
    fault: Fault,
    folder: Path,
    *,
    world_size: int = 4,
    rank: int | None = None,
    backend: str = "gloo",
    settings: Mapping[str, str | int] | None = None,
    wait: bool = True,
    timeout_s: float = 120,
) -> Iterator[Drill]:
    """Start a fault in ``folder``, wait until it shows, and end all of its processes on the way out.

    Args:
        rank: where it happens; rank 2, or the last one of a smaller job.
        settings: environment variables in addition to the fault's own.
        wait: whether to wait for the state; else ``wait_for_state`` does it later.

    Raises:
        NotReachedError: the state was not reached within ``timeout_s``.
    """
    chosen = min(2, world_size - 1) if rank is None else rank
    mark = uuid.uuid4().hex
    folder.mkdir(parents=True, exist_ok=True)
    # Stacks and tracebacks show this path, as they would that of somebody's program.
    shutil.copy(HERE / "job.py", folder / "train.py")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))},
        "FAULT": str(fault.number),
        "FAULT_RANK": str(chosen),
        "BACKEND": backend,
        "OMP_NUM_THREADS": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
        MARK: mark,
        **{key: str(value) for key, value in {**fault.settings, **(settings or {})}.items()},
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world_size)]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "run"]
    reporting = ["--local-addr", "127.0.0.1", "--log-dir", "logs", "--tee", "3"]
    with _reaper(mark), (folder / "torchrun.log").open("wb") as console:
        process = subprocess.Popen(
            [*launcher, *rendezvous, *reporting, "train.py"],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            cwd=folder,
        )
        try:
            drill = Drill(fault, folder, process, backend, world_size, chosen)
            if wait:
                wait_for_state(drill, timeout_s)
            yield drill
        finally:
            process.kill()
            process.wait()


def wait_for_state(drill: Drill, timeout_s: float = 120) -> None:
    """Wait until the fault shows, as its ``shows`` says.

    Raises:
        NotReachedError: it did not in time, or the job ended otherwise.
    """
    fault, deadline = drill.fault, time.monotonic() + timeout_s
    state = fault.state(drill.backend)
    ready, sent = fault.until or "step=4 ", False
    if fault.send is not None:
        ready = "step=10 "
    quiet_since, before = time.monotonic(), _Progress()
    while time.monotonic() < deadline:
        living = drill.find_ranks()
        if drill.process.poll() is not None:
            if (state == "fails" and drill.process.returncode) or (
                state == "finishes" and not drill.process.returncode
            ):
                return
            raise NotReachedError(f"{fault.name} ended with {drill.process.returncode}, see {drill.console}")
        if all(ready.encode() in drill.log_of(rank) for rank in range(drill.world_size)):
            if fault.send is not None and not sent:
                os.kill(living[drill.chosen], signal.Signals[fault.send])
                sent = True
            if state == "runs":
                return
            now = _progress(drill, living)
            if now.differs(before, drill.backend):
                quiet_since, before = time.monotonic(), now
            elif state == "hangs" and time.monotonic() - quiet_since >= QUIET_S[drill.backend]:
                return
        time.sleep(POLL_S)
    raise NotReachedError(f"{fault.name} did not get there in {timeout_s} s ({state}), see {drill.console}")


@dataclass(frozen=True)
class _Progress:
    """What changes while a job gets on."""

    log_bytes: int = -1
    ticks: int = 0
    running: bool = True

    def differs(self, before: _Progress, backend: str) -> bool:
        if self.log_bytes != before.log_bytes:
            return True
        return backend == "gloo" and (self.running or self.ticks - before.ticks > MAX_TICKS)


def _progress(drill: Drill, living: Mapping[int, int]) -> _Progress:
    ticks, running = 0, False
    for pid in living.values():
        state, spent = _stat(pid)
        ticks += spent
        running = running or state == "R"
    written = sum(path.stat().st_size for path in drill.logs.rglob("*.log"))
    return _Progress(written, ticks, running)


def _stat(pid: int) -> tuple[str, int]:
    """State and CPU time in clock ticks of a process; one that has gone does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[11]) + int(fields[12])


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in path.read_text(encoding="ascii").split()]
    return found


def _environment(pid: int) -> dict[str, str]:
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in data.split("\0") if "=" in pair)


@contextlib.contextmanager
def _reaper(mark: str) -> Iterator[None]:
    """A process that ends every process with the mark as soon as its input ends, however that comes about."""
    command = [sys.executable, "-S", str(Path(__file__).resolve()), "--reap", mark]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


def _reap(mark: str) -> None:
    sys.stdin.buffer.read()
    # torchrun puts each rank into a session of its own, and ranks start processes while they are ended.
    wanted, deadline = f"{MARK}={mark}".encode(), time.monotonic() + 20
    ending: set[int] = set()
    while time.monotonic() < deadline:
        found = {pid for pid in _pids() if wanted in _raw_environment(pid)}
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        # A process that ends has no environment any more, and takes a while to give back the rest.
        ending = {pid for pid in ending | found if not has_ended(pid)}
        if not ending:
            return
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    """Whether a process has gone, or nothing is left of it but its exit status."""
    return _stat(pid)[0] in "XZ"


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _raw_environment(pid: int) -> bytes:
    """Empty for what has ended and waits for its parent."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def main(arguments: list[str]) -> None:
    """Start a fault and keep it until Enter, so that one can look at it."""
    if arguments[:1] == ["--reap"]:
        _reap(arguments[1])
        return
    if len(arguments) != 2:
        names = "\n".join(f"{fault.number:3} {fault.name:28} {fault.what}" for fault in load_faults())
        raise SystemExit(f"usage: launch.py FAULT FOLDER\n{names}")
    with started(fault_named(arguments[0]), Path(arguments[1])) as drill:
        print(f"{drill.fault.name} shows: ranks {drill.ranks}, logs below {drill.folder}; Enter ends it", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1:])
