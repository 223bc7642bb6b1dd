"""Run the memory faults of faults.yaml on one GPU and keep what each leaves: snapshots, logs, and what was measured.

    python evals/faults/memory/record.py OUT [FAULT ...] [--pack FILE.tar.gz] [--at-once 8] [--device cpu]

Every fault is one process, or one for each rank, with a cap on its memory. Those whose log should show no other process
have the GPU to themselves while they use it; the others share it. With ``--device cpu`` all is small and nothing is
recorded: then a plain mistake in a program shows without a GPU. Needs torch and PyYAML.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).resolve().parent
CANNOT = 77
"""Exit status of a program that cannot be shown on this machine or with this torch."""
TIMEOUT_S = 75.0
MOST_BYTES = 1_500_000
OUT_OF_MEMORY = b"CUDA out of memory"


@dataclass(frozen=True)
class Fault:
    """One entry of faults.yaml, where the keys are explained."""

    name: str
    what: str
    program: str
    truth: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    ends: str = "finishes"
    ranks: int = 1
    out_of_memory: tuple[int, ...] = ()
    cap_gib: float = 6.0
    shares_gpu: bool = True
    neighbour: bool = False
    long: bool = False
    settings: Mapping[str, str | int] = field(default_factory=dict)


def load_faults(path: Path = HERE / "faults.yaml") -> list[Fault]:
    """All faults, in the file's order."""
    import yaml

    faults: list[Fault] = []
    for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        failing = entry.pop("out_of_memory", [0] if entry.get("ends") == "out_of_memory" else [])
        faults.append(Fault(name=name, out_of_memory=tuple(failing), **entry))
    return faults


@dataclass
class Recorder:
    """Where programs lie and what they leave goes."""

    target: Path
    workspace: Path
    scratch: Path
    device: str
    gpu: threading.Lock = field(default_factory=threading.Lock)

    def record(self, fault: Fault) -> dict[str, Any]:
        """Run one fault; what came of it."""
        folder = self.target / fault.name
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [self._start(fault, rank, folder) for rank in range(fault.ranks)]
        try:
            # Importing torch takes most of the time and no GPU: it is done before the wait for the GPU.
            with self.gpu if not fault.shares_gpu else contextlib.nullcontext(), self._neighbour(fault):
                began = time.monotonic()
                for job in jobs:
                    _send(job, b"go\n")
                codes = [_wait(job, began + TIMEOUT_S) for job in jobs]
                took_s = time.monotonic() - began
        finally:
            for job in jobs:
                _end(job)
        return self._told(fault, folder, codes, took_s)

    def _start(self, fault: Fault, rank: int, folder: Path) -> subprocess.Popen[bytes]:
        environment = {
            **{key: value for key, value in os.environ.items() if key != "PYTORCH_CUDA_ALLOC_CONF"},
            "PROGRAM": fault.program,
            "OPTIONS": json.dumps(dict(fault.options)),
            "RANK": str(rank),
            "WORLD_SIZE": str(fault.ranks),
            "DEVICE": self.device,
            "MEMORY_CAP_GIB": str(fault.cap_gib),
            "RUN_DIR": str(folder),
            "MEASURED": str(self._measured(fault, rank)),
            "OMP_NUM_THREADS": "2",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **{key: str(value) for key, value in fault.settings.items()},
        }
        log = folder / ("train.log" if fault.ranks == 1 else f"train-rank{rank:02d}.log")
        with log.open("wb") as sink:
            return subprocess.Popen(
                [sys.executable, str(self.workspace / "train.py")],
                stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.STDOUT, env=environment, cwd=self.workspace,
            )  # fmt: skip

    def _measured(self, fault: Fault, rank: int) -> Path:
        return self.scratch / f"{fault.name}-{rank}.json"

    @contextlib.contextmanager
    def _neighbour(self, fault: Fault) -> Iterator[None]:
        """A process that holds most of the GPU, when the fault has one."""
        if not fault.neighbour:
            yield
            return
        occupier = Fault("neighbour", "", "occupy", {})
        folder = self.scratch / "neighbour"
        folder.mkdir()
        job = self._start(occupier, 0, folder)
        try:
            _send(job, b"go\n")
            deadline = time.monotonic() + TIMEOUT_S
            while b"ready" not in (folder / "train.log").read_bytes():
                if job.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "train.log").read_text(errors="replace")[-500:])
                time.sleep(0.1)
            yield
        finally:
            _end(job)

    def _told(self, fault: Fault, folder: Path, codes: list[int | None], took_s: float) -> dict[str, Any]:
        snapshots = sorted(folder.glob("snapshot-*.pickle"))
        logs = [path.read_bytes() for path in sorted(folder.glob("train*.log"))]
        row: dict[str, Any] = {
            "fault": fault.name, "codes": codes, "seconds": round(took_s, 1),
            "snapshots": {path.name: path.stat().st_size for path in snapshots},
            "measured": {
                str(rank): json.loads(path.read_text(encoding="utf-8"))
                for rank in range(fault.ranks) if (path := self._measured(fault, rank)).exists()
            },
        }  # fmt: skip
        if CANNOT in codes:
            row["cannot"] = logs[0].decode(errors="replace").rpartition("not here: ")[2].strip()[:300]
            shutil.rmtree(folder)
            return row
        failing = () if self.device == "cpu" else fault.out_of_memory
        said = [OUT_OF_MEMORY in log for log in logs]
        problems = [
            f"rank {rank} ended with {code}, see {folder}"
            for rank, code in enumerate(codes)
            if (code == 1 and said[rank]) != (rank in failing) or (code != 0 and rank not in failing)
        ]
        if self.device != "cpu" and len(snapshots) < fault.ranks:
            problems.append("a snapshot is missing")
        problems += [f"{path.name} is large" for path in snapshots if path.stat().st_size > MOST_BYTES]
        if problems:
            row["problems"] = problems
        return row


def _send(job: subprocess.Popen[bytes], data: bytes) -> None:
    """To a process that may have ended already, which its exit status tells."""
    assert job.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        job.stdin.write(data)
        job.stdin.flush()


def _wait(job: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Its exit status; None when it took too long."""
    try:
        return job.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def _end(job: subprocess.Popen[bytes]) -> None:
    job.kill()
    # Closes the pipe and waits.
    with job:
        pass


def _line(row: dict[str, Any]) -> str:
    sizes = " ".join(f"{size / 1e6:.2f}MB" for size in row["snapshots"].values())
    peaks = " ".join(f"{m['peak_allocated_bytes'] / 2**30:.2f}GiB" for m in row["measured"].values())
    state = "NOT HERE" if "cannot" in row else "NOT AS EXPECTED" if "problems" in row or "error" in row else "ok"
    why = row.get("cannot") or row.get("error") or "; ".join(row.get("problems", []))
    name, took = f"{row['fault']:34}", f"{row['seconds']:5.1f} s"
    return f"{name} {state:16} {took}  snapshots {sizes or '-'}  peaks {peaks or '-'}  {why}"


def record_all(recorder: Recorder, faults: list[Fault], at_once: int) -> list[dict[str, Any]]:
    """Those that want the GPU to themselves, then those that share it, then the one that fills it."""

    def one(fault: Fault) -> dict[str, Any]:
        try:
            row = recorder.record(fault)
        except Exception as error:  # one fault that does not come off must not lose the others
            row = {"fault": fault.name, "seconds": 0.0, "snapshots": {}, "measured": {}, "error": str(error)[:300]}
        print(_line(row), flush=True)
        return row

    rows: list[dict[str, Any]] = []
    for chosen in (
        [f for f in faults if not f.shares_gpu and not f.neighbour],
        sorted((f for f in faults if f.shares_gpu and not f.neighbour), key=lambda f: not f.long),
        [f for f in faults if f.neighbour],
    ):
        with ThreadPoolExecutor(at_once) as pool:
            rows += pool.map(one, chosen)
    return rows


def main() -> int:
    """Record what was asked for; 0 when every fault went as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for what is recorded; new or empty")
    parser.add_argument("faults", nargs="*", help="names; all when none is given")
    parser.add_argument("--pack", type=Path, help="also write all of it as one .tar.gz")
    parser.add_argument("--at-once", type=int, default=8, help="how many faults at once")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    # What is recorded shows this path, not that of somebody's checkout.
    parser.add_argument("--workspace", type=Path, default=Path("/workspace/decoder"), help="where the programs are run")
    given = parser.parse_intermixed_args()
    faults = load_faults()
    if unknown := set(given.faults) - {fault.name for fault in faults}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    if given.out.exists() and any(given.out.iterdir()):
        parser.error(f"{given.out} is not empty")
    began = time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    shutil.copytree(HERE / "job", given.workspace, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(given.out.resolve(), given.workspace, Path(scratch), given.device)
        chosen = [fault for fault in faults if not given.faults or fault.name in given.faults]
        rows = record_all(recorder, chosen, given.at_once)
    (given.out / "results.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    shutil.copy(HERE / "faults.yaml", given.out)
    if given.pack is not None:
        with tarfile.open(given.pack, "w:gz") as archive:
            archive.add(given.out, "memory")
    wrong = [row["fault"] for row in rows if "problems" in row or "error" in row]
    print(f"{len(rows)} faults in {time.monotonic() - began:.0f} s; not as expected: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
