"""Jobs of four ranks on two hosts, as what every process printed and when; and ways to write the same lines down."""

from __future__ import annotations

import datetime
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

N_RANKS, PER_HOST = 4, 2
HOSTS = ("node01", "node02")
LAYOUTS = ("one", "rank", "folder", "node")
_START = datetime.datetime(2026, 11, 30, 6, 0, 0)
_ELASTIC = "torch/distributed/elastic/multiprocessing/api.py"
_C10D = "[E{glog}123 ProcessGroupNCCL.cpp"
_LOGGED = ("step ", "training ", "epoch ", "saving ", "saved ")


@dataclass(frozen=True)
class Said:
    """One line; ``{host}``, ``{glog}`` and ``{when}`` in it become the host and the time. ``raw``: has no rank mark."""

    time_s: float
    text: str
    raw: bool = False


@dataclass
class Process:
    """A rank, or (``rank`` is None) the launcher of a host."""

    rank: int | None
    host: int
    lines: list[Said] = field(default_factory=list[Said])

    def say(self, time_s: float, *texts: str, raw: bool = False) -> None:
        self.lines += [Said(time_s, text, raw) for text in texts]


@dataclass(frozen=True)
class Shown:
    """One line as it stands in a log."""

    time_s: float
    stamped: bool
    text: str


# What ranks do


def _ranks(
    last_step: int | Sequence[int], loss: Callable[[int, int], float] = lambda step, _: 2.5 - 0.01 * step
) -> list[Process]:
    ranks = [Process(rank, rank // PER_HOST) for rank in range(N_RANKS)]
    for rank, process in enumerate(ranks):
        last = last_step if isinstance(last_step, int) else last_step[rank]
        init = f"ncclCommInitRankConfig comm 0x55d{rank} rank {rank} nranks {N_RANKS} cudaDev {rank % PER_HOST} "
        where = f"{{host}}:{_pid(rank)}:{_pid(rank)} [{rank % PER_HOST}] NCCL INFO "
        process.say(
            0.1 * rank, f"{where}{init}nvmlDev 0 busId {rank}0 commId 0x2755a6753d2c32d8 - Init COMPLETE", raw=True
        )
        for step in range(last + 1):
            process.say(2 + 2 * step + 0.01 * rank, f"step {step} loss {loss(step, rank):.4f} grad_norm 0.31")
    return ranks


def _pid(rank: int) -> int:
    return 4100 + rank


def _raises(process: Process, time_s: float, kind: str, message: str, line: int = 210) -> None:
    process.say(
        time_s,
        "Traceback (most recent call last):",
        f'  File "/workspace/train.py", line {line}, in <module>',
        "    main()",
        f'  File "/workspace/train.py", line {line - 20}, in main',
        "    loss = run_step(batch)",
        f"{kind}: {message}",
    )


def _times_out(process: Process, time_s: float, seq: int, operation: str = "ALLREDUCE") -> None:
    rank = process.rank
    work = f"WorkNCCL(SeqNum={seq}, OpType={operation}, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000)"
    process.say(
        time_s,
        f"{_C10D}:689] [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600025 milliseconds "
        "before timing out.",
        f"{_C10D}:2303] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence "
        f"id: {seq} PG status: last enqueued work: {seq}, last completed work: {seq - 1}",
        f"{_C10D}:758] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.",
    )


def _launchers(first: int, time_s: float, codes: Sequence[int]) -> list[Process]:
    """Each host's launcher. It names a rank of its own host as the first that failed."""
    launchers: list[Process] = []
    for host in range(len(HOSTS)):
        launcher = Process(None, host)
        own = [rank for rank in range(N_RANKS) if rank // PER_HOST == host]
        root = first if first in own else own[0]
        for rank in own:
            if rank != first:
                text = f"W{{glog}} {900 + host} {_ELASTIC}:1012] Sending process {_pid(rank)} closing signal SIGTERM"
                launcher.say(time_s, text, raw=True)
        head = f"E{{glog}} {900 + host} {_ELASTIC}:986] failed (exitcode: {codes[root]})"
        launcher.say(
            time_s + 0.2,
            f"{head} local_rank: {root % PER_HOST} (pid: {_pid(root)}) of binary: /usr/bin/python3",
            raw=True,
        )
        rows = ["=" * 60, "/workspace/train.py FAILED", "-" * 60, "Failures:"]
        for number, rank in enumerate([rank for rank in own if rank != root], 1):
            rows += _row(number, rank, codes[rank])
        rows += ["-" * 60, "Root Cause (first observed failure):", *_row(0, root, codes[root]), "=" * 60]
        launcher.say(time_s + 0.3, *rows, raw=True)
        launchers.append(launcher)
    return launchers


def _row(number: int, rank: int, code: int) -> list[str]:
    received = f"Signal {-code} received by PID {_pid(rank)}"
    return [
        f"[{number}]:",
        "  time      : {when}",
        "  host      : {host}",
        f"  rank      : {rank} (local_rank: {rank % PER_HOST})",
        f"  exitcode  : {code} (pid: {_pid(rank)})",
        "  error_file: <N/A>",
        f"  traceback : {received if code < 0 else 'To enable traceback see: https://pytorch.org/docs/stable'}",
    ]


# The jobs


def one_rank_raises() -> list[Process]:
    ranks = _ranks(5)
    _raises(ranks[2], 15, "ValueError", "sample 4711: expected a list, got None")
    gone = "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5"
    for rank in (0, 1, 3):
        _raises(ranks[rank], 17 + 0.1 * rank, "torch.distributed.DistBackendError", gone, line=230)
    return ranks + _launchers(2, 18, (-15, -15, 1, 1))


def one_rank_leaves_the_loop_early() -> list[Process]:
    ranks = _ranks((7, 5, 7, 7))
    ranks[1].say(15, "epoch 0 done, saving checkpoint")
    for rank in (0, 2, 3):
        _times_out(ranks[rank], 640 + 0.1 * rank, 16)
    _times_out(ranks[1], 641, 16, "BROADCAST")
    return ranks


def one_rank_runs_out_of_memory() -> list[Process]:
    ranks = _ranks(4)
    message = (
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 6.20 GiB is "
        "free. Including non-PyTorch memory, this process has 72.80 GiB memory in use. Of the allocated memory "
        "71.00 GiB is allocated by PyTorch, and 600.00 MiB is reserved by PyTorch but unallocated."
    )
    _raises(ranks[1], 13, "torch.OutOfMemoryError", message)
    return ranks + _launchers(1, 14, (-15, 1, -15, -15))


def one_rank_prints_nan() -> list[Process]:
    return _ranks(11, lambda step, rank: math.nan if rank == 3 and step >= 8 else 2.5 - 0.01 * step)


def all_ranks_diverge() -> list[Process]:
    losses = (2.4, 2.3, 2.2, 2.4, 3.9, 9.5, 48.0, 900.0, math.nan, math.nan)
    return _ranks(len(losses) - 1, lambda step, _: losses[step])


def one_rank_is_killed() -> list[Process]:
    return _ranks((6, 6, 6, 5)) + _launchers(3, 18, (-15, -15, -15, -9))


def one_rank_crashes_in_native_code() -> list[Process]:
    ranks = _ranks(5)
    ranks[3].say(
        15,
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f12ab341740 (most recent call first):",
        '  File "/workspace/ops.py", line 33 in fused_norm',
        '  File "/workspace/train.py", line 190 in main',
    )
    return ranks + _launchers(3, 17, (-15, -15, -15, -11))


def gloo_ranks_wait_in_vain() -> list[Process]:
    ranks = _ranks((4, 4, 3, 4))
    for rank in (0, 1, 3):
        message = "[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
        _raises(ranks[rank], 1815 + 0.1 * rank, "RuntimeError", message)
    return ranks


def rank_zero_is_elsewhere() -> list[Process]:
    ranks = _ranks(5)
    ranks[0].say(15, "saving checkpoint to /checkpoints/step_5.pt")
    for rank in (1, 2, 3):
        _times_out(ranks[rank], 640 + 0.1 * rank, 16)
    ranks[0].say(655, "saved checkpoint to /checkpoints/step_5.pt")
    return ranks + _launchers(1, 660, (-15, -6, -6, -6))


def one_rank_waits_in_another_call() -> list[Process]:
    ranks = _ranks(7)
    for rank in (0, 2, 3):
        _times_out(ranks[rank], 640 + 0.1 * rank, 40)
    _times_out(ranks[1], 642, 40, "_ALLGATHER_BASE")
    return ranks


def all_is_well() -> list[Process]:
    ranks = _ranks(9)
    for process in ranks:
        process.say(24, "training finished")
    return ranks


def the_log_just_ends() -> list[Process]:
    return _ranks(3)


JOBS: dict[str, Callable[[], list[Process]]] = {
    job.__name__: job
    for job in (
        one_rank_raises, one_rank_leaves_the_loop_early, one_rank_runs_out_of_memory, one_rank_prints_nan,
        all_ranks_diverge, one_rank_is_killed, one_rank_crashes_in_native_code, gloo_ranks_wait_in_vain,
        rank_zero_is_elsewhere, one_rank_waits_in_another_call, all_is_well, the_log_just_ends,
    )
}  # fmt: skip


# How they are written down


def show(
    job: Sequence[Process],
    *,
    stamped: bool,
    hosts: Sequence[str] = HOSTS,
    shift_s: float = 0,
    skew_s: Sequence[float] = (0, 0),
) -> list[list[Shown]]:
    """Every process's lines. ``stamped``: what ranks print through a logger has its time; c10d's lines always do."""
    return [
        [_shown(said, process, stamped, hosts[process.host], shift_s + skew_s[process.host]) for said in process.lines]
        for process in job
    ]


def _shown(said: Said, process: Process, stamped: bool, host: str, ahead_s: float) -> Shown:
    when = _START + datetime.timedelta(seconds=said.time_s + ahead_s)
    text = said.text.replace("{host}", host).replace("{when}", when.strftime("%Y-%m-%d_%H:%M:%S"))
    text = text.replace("{glog}", when.strftime("%m%d %H:%M:%S.%f"))
    timed = "{glog}" in said.text or "{when}" in said.text
    if said.raw:
        return Shown(said.time_s, timed, text)
    if stamped and text.startswith(_LOGGED):
        return Shown(said.time_s, True, f"[rank{process.rank}]: {when:%Y-%m-%d %H:%M:%S},{when:%f} INFO {text}")
    return Shown(said.time_s, timed, f"[rank{process.rank}]:{'' if timed else ' '}{text}".rstrip())


def in_files(
    streams: Sequence[Sequence[Shown]], job: Sequence[Process], layout: str, rng: random.Random | None = None
) -> dict[str, bytes]:
    """Files by name. With ``rng`` the processes' lines of one file are mixed as :func:`mix` says, else by time."""
    groups: defaultdict[str, list[Sequence[Shown]]] = defaultdict(list)
    for stream, process in zip(streams, job, strict=True):
        host, rank = HOSTS[process.host], process.rank
        name = {
            "one": "train.log",
            "rank": f"launcher_{host}.log" if rank is None else f"rank_{rank}.log",
            "folder": f"{host}/torchrun.log" if rank is None else f"{host}/rank{rank}.log",
            "node": f"{host}.log",
        }[layout]
        groups[name].append(stream)
    return {name: as_bytes(mix(group, rng)) for name, group in groups.items()}


def as_bytes(lines: Sequence[Shown]) -> bytes:
    return "".join(f"{line.text}\n" for line in lines).encode()


_JITTER_S = 2.0


def mix(streams: Collection[Sequence[Shown]], rng: random.Random | None) -> list[Shown]:
    """All lines in an order that keeps each stream's own: stamped ones near their time, others anywhere."""
    placed: list[tuple[float, int, int, Shown]] = []
    for number, lines in enumerate(streams):
        places = [line.time_s for line in lines] if rng is None else _places(lines, rng)
        if rng is not None and not any(line.text.startswith("[rank") for line in lines):
            # Lines without a mark, as of a launcher's table, belong together: nothing else tells whose they are.
            late_s = rng.uniform(-_JITTER_S, _JITTER_S)
            places = [line.time_s + late_s for line in lines]
        placed += [(place, number, at, line) for at, (place, line) in enumerate(zip(places, lines, strict=True))]
    return [line for *_, line in sorted(placed, key=lambda one: one[:3])]


def _places(lines: Sequence[Shown], rng: random.Random) -> list[float]:
    places: list[float] = []
    free = 0
    for line in (*lines, None):
        if line is not None and not line.stamped:
            free += 1
            continue
        before = places[-1] if places else -100.0
        after = 2000.0 if line is None else max(before, line.time_s + rng.uniform(-_JITTER_S, _JITTER_S))
        drawn = [rng.uniform(before, after) for _ in range(free)]
        places += sorted(rng.choice([drawn, drawn, [before] * free, [after] * free]))
        if line is not None:
            places.append(after)
        free = 0
    return places


NOISE = (
    "", "   ",
    "Epoch 0:  40%|####      | 4/10 [00:08<00:12,  2.00s/it]\rEpoch 0:  50%|#####     | 5/10 [00:10<00:10,  2.00s/it]",
    "100%|##########| 10/10 [00:20<00:00,  2.00s/it]",
    "INFO:tokenizers.loading:loading file vocab.json",
    "[INFO|trainer.py:251] 2026-11-30 06:00:03,597 >>   Num examples = {n}",
    "/opt/venv/lib/python3.11/site-packages/lib/checkpoint.py:{n}: FutureWarning: this argument is deprecated",
    "/opt/venv/lib/python3.11/site-packages/lib/ops.py:{n}: UserWarning: the loss may be nan for short inputs",
    "  warnings.warn(",
    "{host}:{pid}:{pid} [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "{host}:{pid}:{pid} [0] NCCL INFO Connected all rings",
    "\x1b[32mINFO\x1b[0m reading shard {n}",
    "wandb: syncing run {n}",
    "the next step is to read chapter {n}", "see step {n} of the guide for errors", "this step takes {n} s",
    "step time budget {n} ms", "without loss of generality we keep {n} rows", "loss of {n} packets is tolerated",
    "loss function is cross entropy with {n} classes", "eval loss will be computed every {n} steps",
    "error bars drawn for {n} points", "no errors found in {n} files", "Error rate 0.{n}",
    "ValueError is raised for negative sizes", "will retry up to {n} times on ConnectionError",
    "no error so far, continuing with shard {n}", "skipping warmup, {n} errors expected", "nan checks every {n} steps",
    "killed {n} stale workers", "timeout set to {n} s", "rank {n} is not used here", "peak memory {n} MiB",
    "tokens seen so far {n}", "epoch counter reset to 0", "gc took {n} ms", "caught up with {n} shards",
)  # fmt: skip


def with_noise(streams: Sequence[Sequence[Shown]], job: Sequence[Process], rng: random.Random) -> list[list[Shown]]:
    """The same with harmless lines put before the last one of every rank, and some lines printed twice."""
    marked = rng.random() < 0.7
    noisy: list[list[Shown]] = []
    for stream, process in zip(streams, job, strict=True):
        lines = list(stream)
        noisy.append(lines)
        if process.rank is None:
            continue
        for _ in range(rng.randrange(1, 8)):
            text = rng.choice(NOISE).replace("{host}", HOSTS[process.host]).replace("{pid}", str(_pid(process.rank)))
            text = text.replace("{n}", str(rng.randrange(1, 500)))
            at = rng.randrange(len(lines))
            if marked and text.strip() and "NCCL INFO" not in text:
                text = f"[rank{process.rank}]: {text}"
            lines.insert(at, Shown(lines[at].time_s, False, text))
        again = rng.randrange(len(lines))
        lines.insert(again, lines[again])
    return noisy


def relabelled(job: Sequence[Process], new: Sequence[int]) -> list[Process]:
    """The same job with other numbers for its ranks; processes, hosts and local ranks stay."""

    def rank(match: re.Match[str]) -> str:
        return f"{match[1]}{new[int(match[2])]}"

    return [
        Process(
            None if process.rank is None else new[process.rank],
            process.host,
            [
                Said(said.time_s, re.sub(r"((?<!local_)\b[rR]ank(?: {6}:)? )(\d)\b", rank, said.text), said.raw)
                for said in process.lines
            ],
        )
        for process in job
    ]


# Recorded logs


_MARK = re.compile(r"\[rank(\d)\]|[\w.\-]+:(\d+):\d+ \[\d\] NCCL ")
_GLUED = re.compile(r"(?<=[^\s\[])(?=\[rank\d\] )")


def streams_of(log: Path) -> dict[str, list[Shown]]:
    """The lines of a recorded log by who printed them; what has no mark is kept together under ""."""
    streams: defaultdict[str, list[Shown]] = defaultdict(list)
    pieces = (piece for line in log.read_text(encoding="utf-8").splitlines() for piece in _GLUED.split(line))
    for number, piece in enumerate(pieces):
        match = _MARK.match(piece)
        key = "" if match is None else match[1] or f"pid{match[2]}"
        streams[key].append(Shown(float(number), True, piece))
    return dict(streams)
