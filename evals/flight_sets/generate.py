"""Plays jobs that never ran, with a known fault or none; `dumps.py` writes what torch would have recorded of them.

A job is one program per rank: the calls it makes in order. A fault is an edit of one rank's program. The programs are
then played against each other (a host that enqueues, a stream per communicator, a compute stream that waits where the
program waits), and each rank's dump holds what torch would have recorded by the moment of the dump: so who waits for
whom, what is finished and what was only enqueued follow from the fault and are not written by hand. Nothing here knows
how dumps are judged.

It does not model NCCL's protocols: a call that does not fit its peers' never finishes, or, where a set asks for it,
finishes on the ranks that brought less data, as was seen of rings on real hardware.
"""

import copy
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

EPOCH_NS = 1_780_000_000_000_000_000
WATCHDOG_POLL_S = 0.1
SITE = "/opt/venv/lib/python3.12/site-packages/"

# where a call is made from, innermost frame first: (function, file, line)
FRAMES: dict[str, list[tuple[str, str, int]]] = {
    "ddp": [],
    "fsdp_gather": [
        ("all_gather_into_tensor", SITE + "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 233),
        ("unshard", SITE + "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 357),
        ("forward", "/workspace/train/model.py", 212),
        ("train_step", "/workspace/train/train.py", 148),
        ("<module>", "/workspace/train/train.py", 260),
    ],
    "fsdp_reduce": [
        ("foreach_reduce", SITE + "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 478),
        ("post_backward", SITE + "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 560),
    ],
    "tp": [
        ("_reduce", SITE + "megatron/core/tensor_parallel/mappings.py", 31),
        ("forward", SITE + "megatron/core/tensor_parallel/layers.py", 1240),
        ("forward_step", "/workspace/pretrain_gpt.py", 190),
        ("<module>", "/workspace/pretrain_gpt.py", 301),
    ],
    "pp": [
        ("_p2p_ops", SITE + "megatron/core/pipeline_parallel/p2p_communication.py", 214),
        ("_communicate", SITE + "megatron/core/pipeline_parallel/p2p_communication.py", 355),
        (
            "forward_backward_pipelining_without_interleaving",
            SITE + "megatron/core/pipeline_parallel/schedules.py",
            1981,
        ),
        ("train_step", SITE + "megatron/training/training.py", 1304),
        ("<module>", "/workspace/pretrain_gpt.py", 301),
    ],
    "moe": [
        ("all_to_all", SITE + "megatron/core/tensor_parallel/mappings.py", 412),
        ("token_dispatch", SITE + "megatron/core/transformer/moe/token_dispatcher.py", 588),
        ("forward", SITE + "megatron/core/transformer/moe/moe_layer.py", 166),
        ("<module>", "/workspace/pretrain_gpt.py", 301),
    ],
    "grads": [
        ("start_grad_sync", SITE + "megatron/core/distributed/param_and_grad_buffer.py", 390),
        ("train_step", SITE + "megatron/training/training.py", 1330),
        ("<module>", "/workspace/pretrain_gpt.py", 301),
    ],
    "user": [("train_step", "/workspace/train/train.py", 171), ("<module>", "/workspace/train/train.py", 260)],
    "eval": [("evaluate", "/workspace/train/evaluate.py", 44), ("<module>", "/workspace/train/train.py", 274)],
    "save": [("save_checkpoint", "/workspace/train/checkpoint.py", 88), ("<module>", "/workspace/train/train.py", 281)],
    "setup": [("main", "/workspace/train/train.py", 91), ("<module>", "/workspace/train/train.py", 290)],
}


@dataclass
class Op:
    """One step of a rank's program: a call, a batch of calls, or something the host or the GPU does between calls."""

    kind: str  # collective, send, recv, batch, coalesced, sync, compute, host_stuck, gpu_stuck
    group: str = ""
    name: str = ""
    ins: list[list[int]] = field(default_factory=list)
    outs: list[list[int]] = field(default_factory=list)
    dtype: str = "Float"
    peer: int = -1
    parts: list["Op"] = field(default_factory=list)
    label: str = ""
    step: int = -1
    wait: bool = True  # the compute stream waits for it
    ms: float = 0.0
    site: str = "user"

    @property
    def fits(self) -> tuple[object, ...]:
        """What has to be equal on every member for the call to finish."""
        if self.kind == "coalesced":
            return ("coalesced", *(part.fits for part in self.parts))
        if self.name == "all_to_all":
            return (self.name, self.dtype)
        size = self.outs if self.name == "scatter" else self.ins
        return (self.name, sum(_numel(one) for one in size), self.dtype)


def _numel(sizes: list[int]) -> int:
    total = 1
    for one in sizes:
        total *= one
    return total


@dataclass
class Job:
    """Groups and programs of a job."""

    world: int
    groups: dict[str, tuple[str, str, list[int]]] = field(default_factory=dict)  # key: (name, desc, ranks)
    programs: list[list[Op]] = field(default_factory=list)
    hung: set[tuple[str, str, int]] = field(default_factory=set)  # (group, label, step): joined by all, never finishes
    lost: set[tuple[int, str, int]] = field(default_factory=set)  # (rank, label, step): finishes everywhere but there

    def __post_init__(self) -> None:
        self.programs = [[] for _ in range(self.world)]
        self.group("world", range(self.world), desc="default_pg")

    def group(self, key: str, ranks: Iterable[int], desc: str = "undefined", name: str | None = None) -> str:
        self.groups[key] = (str(len(self.groups)) if name is None else name, desc, list(ranks))
        return key

    def call(
        self,
        group: str,
        name: str,
        size: Callable[[int], list[int]] | list[int],
        label: str,
        step: int,
        *,
        dtype: str = "Float",
        wait: bool = True,
        site: str = "user",
        ranks: Iterable[int] | None = None,
    ) -> None:
        """The same call on every member (sizes may differ where `size` is a function of the rank)."""
        members = self.groups[group][2]
        for rank in members if ranks is None else ranks:
            self.programs[rank].append(
                collective(group, name, size(rank) if callable(size) else size, label, step, len(members),
                           root=rank == members[0], dtype=dtype, wait=wait, site=site)
            )  # fmt: skip

    def each(self, op: Op, ranks: Iterable[int] | None = None) -> None:
        for rank in range(self.world) if ranks is None else ranks:
            self.programs[rank].append(copy.deepcopy(op))


def collective(
    group: str, name: str, size: list[int], label: str, step: int, members: int, *, root: bool = True,
    dtype: str = "Float", wait: bool = True, site: str = "user",
) -> Op:  # fmt: skip
    """A collective with the input and output sizes that torch records for it. `size` is what one rank brings."""
    wide = [size[0] * members, *size[1:]]
    ins, outs = [size], [size]
    if name == "_all_gather_base":
        outs = [wide]
    elif name == "_reduce_scatter_base":
        ins = [wide]
    elif name == "all_gather":
        outs = [size] * members
    elif name == "reduce_scatter":
        ins = [size] * members
    elif name == "gather":
        outs = [size] * members if root else []
    elif name == "scatter":
        ins = [size] * members if root else []
    return Op("collective", group, name, ins, outs, dtype, label=label, step=step, wait=wait, site=site)


def p2p(kind: str, group: str, peer: int, size: list[int], label: str, step: int, wait: bool = True) -> Op:
    return Op(kind, group, kind, [size], [size], "BFloat16", peer, label=label, step=step, wait=wait, site="pp")


# ---- what happens when the programs run ----


@dataclass
class Issued:
    """A call that a rank's host has made."""

    op: Op
    rank: int
    at: float
    after: list["Issued"]
    done: float | None = None
    never: bool = False

    @property
    def start(self) -> float | None:
        times = [one.done for one in self.after]
        return None if self.never or None in times else max([self.at, *(t for t in times if t is not None)])


@dataclass
class Run:
    """What was issued per rank and when it finished; `until` is the last thing that happened."""

    issued: list[list[Issued]]
    until: float


def play(job: Job, seed: str, finish_smaller: bool = False) -> Run:
    """Run the programs until nothing moves any more."""
    hosts = [_Host(rank, program, random.Random(f"{seed}/{rank}")) for rank, program in enumerate(job.programs)]
    queues: dict[str, list[list[Issued]]] = {key: [[] for _ in ranks] for key, (_, _, ranks) in job.groups.items()}
    place = {key: {rank: i for i, rank in enumerate(ranks)} for key, (_, _, ranks) in job.groups.items()}
    heads = dict.fromkeys(queues, 0)
    sends: dict[tuple[object, ...], list[Issued]] = defaultdict(list)
    recvs: dict[tuple[object, ...], list[Issued]] = defaultdict(list)
    waiting: list[tuple[Issued, list[tuple[str, tuple[object, ...], int]]]] = []
    moved = True
    while moved:
        moved = False
        for host in hosts:
            for call in host.advance():
                moved = True
                op = call.op
                if op.kind in ("collective", "coalesced"):
                    queues[op.group][place[op.group][call.rank]].append(call)
                elif op.kind in ("send", "recv", "batch"):
                    needs: list[tuple[str, tuple[object, ...], int]] = []
                    for part in op.parts or [op]:
                        a, b = (call.rank, part.peer) if part.kind == "send" else (part.peer, call.rank)
                        key = (
                            part.group,
                            op.kind == "batch",
                            a,
                            b,
                        )
                        mine = sends if part.kind == "send" else recvs
                        needs.append((part.kind, key, len(mine[key])))
                        mine[key].append(call)
                    waiting.append((call, needs))
        for key, queue in queues.items():
            while all(len(one) > heads[key] for one in queue):
                calls = [one[heads[key]] for one in queue]
                starts = [call.start for call in calls]
                if None in starts:
                    break
                op = calls[0].op
                end = max(s for s in starts if s is not None) + 0.0002
                if (key, op.label, op.step) in job.hung:
                    break
                if len({call.op.fits for call in calls}) > 1:
                    sizes = [sum(_numel(s) for s in call.op.ins) for call in calls]
                    if not finish_smaller or min(sizes) == max(sizes):
                        break
                    for call, size in zip(calls, sizes, strict=True):
                        if size < max(sizes):
                            call.done = end
                else:
                    for call in calls:
                        if (call.rank, op.label, op.step) not in job.lost:
                            call.done = end
                heads[key] += 1
                moved = True
        still = []
        for call, needs in waiting:
            others = [(recvs if kind == "send" else sends)[key] for kind, key, _ in needs]
            found = [o[n] if len(o) > n else None for o, (_, _, n) in zip(others, needs, strict=True)]
            times = [call.start, *(None if one is None else one.start for one in found)]
            mine = call.op.parts or [call.op]
            if any(
                o is not None and not _same_size(m, o, key)
                for m, o, (_, key, _) in zip(mine, found, needs, strict=True)
            ):
                times.append(None)
            if None in times or call.never:
                still.append((call, needs))
                continue
            call.done = max(t for t in times if t is not None) + 0.0001
            moved = True
        waiting = still
    every = [host.calls for host in hosts]
    times = [t for calls in every for call in calls for t in (call.at, call.done) if t is not None]
    return Run(every, max(times, default=0.0))


def _same_size(part: Op, other: Issued, key: tuple[object, ...]) -> bool:
    """Whether the other side of a send or receive has as many elements."""
    kind = "recv" if part.kind == "send" else "send"
    sides = [o for o in other.op.parts or [other.op] if o.kind == kind and o.group == part.group]
    here = other.rank
    fitting = [o for o in sides if (here, o.peer) == (key[2:] if kind == "send" else (key[3], key[2]))]
    return all(_numel(o.ins[0]) == _numel(part.ins[0]) for o in fitting[:1])


class _Host:
    """A rank's host thread: makes its calls in order and stops where it has to wait for the GPU."""

    def __init__(self, rank: int, program: list[Op], rng: random.Random) -> None:
        self.rank, self.program, self.rng = rank, program, rng
        self.at, self.now, self.calls = 0, rng.uniform(0.0, 0.02), []  # type: ignore[var-annotated]
        self.tail: Issued | None = None  # of the compute stream
        self.last: dict[object, Issued] = {}  # of each communicator's stream
        self.open: list[Issued] = []

    def advance(self) -> Iterator[Issued]:
        while self.at < len(self.program):
            op = self.program[self.at]
            if op.kind == "host_stuck":
                return
            if op.kind == "sync":
                if any(one.done is None for one in self.open) or (self.tail is not None and self.tail.done is None):
                    return
                self.now = max([self.now, *(one.done or 0.0 for one in self.open)])
                self.open = []
            self.at += 1
            if op.kind == "sync":
                continue
            self.now += self.rng.uniform(15e-6, 60e-6)
            after = [] if self.tail is None else [self.tail]
            if op.kind in ("compute", "gpu_stuck"):
                spent = Issued(op, self.rank, self.now, after, never=op.kind == "gpu_stuck")
                self.tail = _Compute(spent, op.ms / 1000 * self.rng.uniform(0.9, 1.1))
                continue
            stream: object = op.group
            if op.kind in ("send", "recv"):
                stream = (op.group, op.peer)
            if stream in self.last:
                after = [*after, self.last[stream]]
            call = Issued(op, self.rank, self.now, after)
            self.last[stream] = call
            self.calls.append(call)
            self.open.append(call)
            if op.wait:
                self.tail = call
            yield call


class _Compute(Issued):
    """A kernel on the compute stream, which ends by itself."""

    def __init__(self, of: Issued, seconds: float) -> None:
        self.of, self.seconds = of, seconds

    @property
    def done(self) -> float | None:  # type: ignore[override]
        start = self.of.start
        return None if start is None else start + self.seconds
