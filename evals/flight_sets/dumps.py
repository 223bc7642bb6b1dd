"""What torch's flight recorder writes about a run: the versions, backends and settings of dumps, one file per rank."""

import hashlib
import json
import os
import pickle
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flight_sets.generate import EPOCH_NS, FRAMES, SITE, WATCHDOG_POLL_S, Issued, Job, Op, Run


@dataclass(frozen=True)
class Form:
    """How the dumps of a set are written."""

    version: str = "2.10"
    fmt: str = "pickle"
    backend: str = "nccl"
    frames: bool = True
    active_only: bool = False
    timing: bool = False
    buffer: int = 2000
    entries: bool = True  # False: includeCollectives=False
    name: str = "nccl_trace_rank_{rank}"
    hashed: bool = False
    nvrx: bool = False
    skew_s: float = 0.02
    timeout_s: float = 600.0
    at_s: float | None = None  # the moment of the dump; None: after the timeout
    spread_s: float = 0.0  # how far apart the ranks' dumps are
    host_size: int = 8


def write(job: Job, run: Run, form: Form, folder: Path, seed: str, skip: Iterable[int] = ()) -> list[Path]:
    """One file per rank, except those in `skip`. The file's time is that of the dump."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"{seed}/write")
    skews = [rng.uniform(-form.skew_s, form.skew_s) for _ in range(job.world // form.host_size + 1)]
    written = []
    for rank in range(job.world):
        moment = run.until + form.timeout_s + rng.uniform(0.5, 3.0) if form.at_s is None else form.at_s
        moment += rng.uniform(0.0, form.spread_s)
        if rank in set(skip):
            continue
        clock = EPOCH_NS + int(skews[rank // form.host_size] * 1e9)
        data = dump(job, run, form, rank, moment, clock)
        path = folder / form.name.format(rank=rank, host=f"node{rank // form.host_size:02d}")
        path.write_bytes(json.dumps(data).encode() if form.fmt == "json" else pickle.dumps(data, protocol=2))
        at_ns = clock + int(moment * 1e9)
        os.utime(path, ns=(at_ns, at_ns))
        written.append(path)
    return written


def dump(job: Job, run: Run, form: Form, rank: int, moment: float, clock: int) -> Any:
    """The dump of one rank, as the plain objects that a reader gets."""
    writer = _Writer(job, form, rank, moment, clock)
    for call in run.issued[rank]:
        if call.at <= moment:
            writer.record(call)
    return writer.dump()


class _Writer:
    def __init__(self, job: Job, form: Form, rank: int, moment: float, clock: int) -> None:
        self.form, self.rank, self.moment, self.clock = form, rank, moment, clock
        self.mine = {key: one for key, one in job.groups.items() if rank in one[2]}
        self.uid = {key: i for i, key in enumerate(self.mine)}
        self.colls: dict[str, int] = dict.fromkeys(self.mine, 0)
        self.p2ps: dict[str, int] = dict.fromkeys(self.mine, 0)
        self.ops: dict[str, int] = dict.fromkeys(self.mine, 0)
        self.status: dict[str, list[int]] = {key: [-1, -1, -1] for key in self.mine}
        self.entries: list[dict[str, Any]] = []
        self.phase_s = random.Random(f"{rank}/watchdog").uniform(0.0, WATCHDOG_POLL_S)

    def record(self, call: Issued) -> None:
        op = call.op
        if op.kind in ("send", "recv", "batch"):
            self.p2ps[op.group] += 1
            if self.form.backend == "gloo":  # takes the numbers and records nothing
                self.ops[op.group] += 1
                return
        else:
            self.colls[op.group] += 1
        for part in op.parts:
            self._entry(call, part, part.name, eventless=True)
        name = "coalesced" if op.kind == "batch" else op.name
        self._entry(call, op if not op.parts else replace(op, ins=[], outs=[]), name, eventless=False)
        seq = self.p2ps[op.group] if op.kind in ("send", "recv", "batch") else self.colls[op.group]
        status = self.status[op.group]
        status[0] = seq
        if self.form.timing and call.start is not None and call.start + WATCHDOG_POLL_S / 4 <= self.moment:
            status[1] = seq
        if self._retired(call):
            status[2] = seq

    def _retired(self, call: Issued) -> bool:
        # the watchdog looks every 100 ms, so the newest finished calls are not retired yet
        return call.done is not None and self._polled(call.done) <= self.moment

    def _polled(self, at_s: float) -> float:
        return (int((at_s - self.phase_s) / WATCHDOG_POLL_S + 1)) * WATCHDOG_POLL_S + self.phase_s

    def _entry(self, call: Issued, op: Op, name: str, eventless: bool) -> None:
        form, ranks = self.form, self.mine[op.group][2]
        if not (op.kind == "batch" or (op.kind == "coalesced" and not eventless)):
            self.ops[op.group] += 1
        title = name
        if op.kind in ("send", "recv"):
            here, there = ranks.index(self.rank), ranks.index(op.peer)
            title = f"{name} {here}{'->' if op.kind == 'send' else '<-'}{there}"
        hooked = form.backend == "gloo"
        done = call.done is not None and call.done <= self.moment and not eventless
        begun = call.start is not None and call.start <= self.moment and form.timing and not eventless
        state = "completed" if done else "started" if begun else "scheduled"
        found = None
        if done:
            assert call.done is not None
            found = int(min(self._polled(call.done), self.moment) * 1e9) + self.clock
        auto = op.site == "ddp" or op.site == "fsdp_reduce"
        entry: dict[str, Any] = {
            "frames": [
                {"name": fn, "filename": file, "line": line}
                for fn, file, line in ([(op.name, SITE + "torch/distributed/distributed_c10d.py", 3068),
                                        ("wrapper", SITE + "torch/distributed/c10d_logger.py", 83)]
                                       if FRAMES[op.site] else []) + FRAMES[op.site]
            ],
            "record_id": len(self.entries),
            "pg_id": self.uid[op.group],
            "process_group": self._pg(op.group, for_entry=True),
            "thread_name": "pt_autograd_0" if auto else "python3",
            "thread_id": str(140_000_000_000_000 + self.rank * 4096 + (64 if auto else 0)),
            "collective_seq_id": self.colls[op.group],
            "p2p_seq_id": self.p2ps[op.group],
            "op_id": self.ops[op.group],
            "profiling_name": f"{form.backend}:{title}",
            "time_created_ns": int(call.at * 1e9) + self.clock,
            "input_sizes": op.ins,
            "input_dtypes": [op.dtype] * len(op.ins),
            "output_sizes": op.outs,
            "output_dtypes": [op.dtype] * len(op.outs),
            "state": "scheduled" if hooked else state,
            "time_discovered_started_ns": found if begun else None,
            "time_discovered_completed_ns": None if hooked else found,
            "retired": self._retired(call) and not eventless,
            "timeout_ms": int(form.timeout_s * 1000),
            "is_p2p": op.kind in ("send", "recv", "batch"),
        }  # fmt: skip
        if form.timing and done and entry["retired"]:
            entry["duration_ms"] = 0.21
        self.entries.append(entry)

    def _pg(self, key: str, for_entry: bool = False) -> tuple[str, str]:
        name, desc, ranks = self.mine[key]
        if self.form.backend == "gloo" and key == "world":
            return ("0", "default_pg") if for_entry else ("", "")
        if self.form.hashed and key != "world":
            name = hashlib.sha1(f"{ranks}".encode()).hexdigest()
        return name, desc

    def dump(self) -> Any:
        form = self.form
        entries = self.entries[-form.buffer :]
        if form.active_only:
            entries = [one for one in entries if one["time_discovered_completed_ns"] is None]
        entries = [self._aged(one) for one in entries]
        major, minor = (int(part) for part in form.version.split("."))
        config: Any = {}
        for key, (_, _, ranks) in self.mine.items():
            name, desc = self._pg(key)
            config[name] = {"name": name, "desc": desc, "ranks": "[" + ", ".join(map(str, ranks)) + "]"}
        if major == 1 and minor == 0:
            return entries
        if major == 1:
            return {"version": form.version, "pg_config": config, "entries": entries}
        number: Callable[[int], Any] = str if form.fmt == "json" else int
        status = {
            str(self.uid[key]): {
                "last_enqueued_collective": number(a),
                "last_started_collective": number(b),
                "last_completed_collective": number(c),
            }
            for key, (a, b, c) in self.status.items()
        }
        library = "comm_lib_version" if (major, minor) >= (2, 10) else "nccl_version"
        number_of_library = "" if form.backend == "gloo" else "2.27.3"
        data: dict[str, Any] = {"version": form.version, "pg_config": config, library: number_of_library}
        data["pg_status"] = status
        if form.fmt == "json" and (major, minor) >= (2, 10):
            data["nccl_comm_state"] = {}
        if form.nvrx:
            data["health_check_results"] = {"gpu": {"status": True, "output": ""}, "nic": {}}
        if form.entries and (entries or form.fmt == "pickle"):
            data["entries"] = entries
        return data

    def _aged(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The entry in the words of the version and the format."""
        form = self.form
        major, minor = (int(part) for part in form.version.split("."))
        if not form.frames or form.fmt == "json":
            entry.pop("frames")
        if form.fmt == "json":
            entry["process_group"] = list(entry["process_group"])
            for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                entry[key] = entry[key] or 0
        if (major, minor) < (2, 8):
            entry.pop("thread_name")
            entry.pop("thread_id")
        if major == 1:
            entry["seq_id"] = entry.pop("collective_seq_id") + entry.pop("p2p_seq_id")
            for key in ("op_id", "is_p2p", "input_dtypes", "output_dtypes", "timeout_ms"):
                entry.pop(key)
            if minor == 0:
                entry.pop("process_group")
        return entry
