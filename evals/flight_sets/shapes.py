"""Programs of ordinary training jobs, and the edits that turn one rank's program into a faulty one."""

import copy
import random
from collections.abc import Iterable
from dataclasses import replace

from flight_sets.generate import Job, Op, collective, p2p

END = 1_000_000  # the step number of what comes after the training loop


def _setup(job: Job) -> None:
    job.call("world", "all_gather", [3], "verify", -1, dtype="Long", site="setup")
    job.call("world", "broadcast", [25_000_000], "init", -1, site="setup")


def _finish(job: Job) -> None:
    job.call("world", "all_reduce_barrier", [1], "end", END, site="save")
    job.each(Op("sync", step=END))


def ddp(
    world: int, steps: int = 6, buckets: int = 3, *, loss: bool = False, ms: float = 30.0, setup: bool = True
) -> Job:
    """Gradient buckets of different sizes, reduced while backward runs; the host waits once per step."""
    job = Job(world)
    if setup:
        _setup(job)
    for step in range(steps):
        job.each(Op("compute", ms=ms, step=step))
        for bucket in range(buckets):
            job.each(Op("compute", ms=ms / 4, step=step))
            size = [6_553_600 - 1_310_720 * bucket]
            job.call("world", "all_reduce", size, f"grad{bucket}", step, wait=bucket == buckets - 1, site="ddp")
        if loss:
            job.call("world", "all_reduce", [1], "loss", step)
        job.each(Op("sync", step=step))
    _finish(job)
    return job


def fsdp(world: int, steps: int = 4, layers: int = 4, *, coalesced: bool = False, ms: float = 8.0) -> Job:
    """All layers alike: gather before forward and backward, reduce-scatter after backward, one norm per step."""
    job = Job(world)
    mesh = job.group("mesh", range(world), desc="mesh_fsdp")
    for step in range(steps):
        for layer in range(layers):
            _gather(job, mesh, f"fwd{layer}.gather", step, coalesced)
            job.each(Op("compute", ms=ms, step=step))
        for layer in reversed(range(layers)):
            _gather(job, mesh, f"bwd{layer}.gather", step, coalesced)
            job.each(Op("compute", ms=2 * ms, step=step))
            job.call(mesh, "_reduce_scatter_base", [1_050_624], f"bwd{layer}.reduce", step, site="fsdp_reduce")
        job.call(mesh, "all_reduce", [1], "norm", step, site="grads")
        job.each(Op("sync", step=step))
    _finish(job)
    return job


def _gather(job: Job, group: str, label: str, step: int, coalesced: bool) -> None:
    if not coalesced:
        job.call(group, "_all_gather_base", [1_050_624], label, step, dtype="BFloat16", site="fsdp_gather")
        return
    members = len(job.groups[group][2])
    parts = [
        collective(group, "_all_gather_base", [n], label, step, members, dtype="BFloat16", site="fsdp_gather")
        for n in (1_048_576, 2048)
    ]
    job.each(Op("coalesced", group, "ALLGATHER_coalesced", parts=parts, label=label, step=step, site="fsdp_gather"))


def tp_dp(tp: int, dp: int, steps: int = 4, layers: int = 3, *, ms: float = 4.0, norm: bool = True) -> Job:
    """Megatron's order: tensor-parallel ranks next to each other."""
    return pipeline(1, dp, tp, micro=1, steps=steps, layers=layers, ms=ms, norm=norm)


def pipeline(
    pp: int, dp: int = 1, tp: int = 1, *, micro: int = 4, steps: int = 3, layers: int = 1, batched: bool = True,
    ms: float = 6.0, norm: bool = True,
) -> Job:  # fmt: skip
    """1F1B over `pp` stages; stages run different numbers of calls, and the ends share an embedding group."""
    world = pp * dp * tp
    job = Job(world)
    _setup(job)

    def rank(stage: int, replica: int, shard: int) -> int:
        return (stage * dp + replica) * tp + shard

    for stage in range(pp):
        for shard in range(tp):
            job.group(f"dp{stage}.{shard}", [rank(stage, d, shard) for d in range(dp)], "DATA_PARALLEL_GROUP_WITH_CP")
    for stage in range(pp):
        for replica in range(dp):
            ranks = [rank(stage, replica, t) for t in range(tp)]
            job.group(f"tp{stage}.{replica}", ranks, "TENSOR_MODEL_PARALLEL_GROUP")
    for replica in range(dp):
        for shard in range(tp):
            ranks = [rank(s, replica, shard) for s in range(pp)]
            job.group(f"pp{replica}.{shard}", ranks, "PIPELINE_MODEL_PARALLEL_GROUP")
            if pp > 1:
                job.group(f"emb{replica}.{shard}", [ranks[0], ranks[-1]], "EMBEDDING_GROUP")
    for stage in range(pp):
        for replica in range(dp):
            for shard in range(tp):
                program = job.programs[rank(stage, replica, shard)]
                prev = rank(stage - 1, replica, shard) if stage else -1
                following = rank(stage + 1, replica, shard) if stage < pp - 1 else -1
                part = _Stage(stage, pp, prev, following, f"pp{replica}.{shard}", f"tp{stage}.{replica}", tp,
                              layers, ms, batched)  # fmt: skip
                for step in range(steps):
                    program += part.step(step, micro)
                    for bucket in range(2 if dp > 1 else 0):
                        size = [4_194_304 - 1_048_576 * bucket + 4096 * stage]
                        program.append(
                            collective(
                                f"dp{stage}.{shard}", "all_reduce", size, f"grad{bucket}", step, dp, site="grads"
                            )
                        )
                    if pp > 1 and stage in (0, pp - 1):
                        group = f"emb{replica}.{shard}"
                        program.append(collective(group, "all_reduce", [32_000], "embedding", step, 2, site="grads"))
                    if norm:
                        program.append(collective("world", "all_reduce", [1], "norm", step, world, site="grads"))
                    program.append(Op("sync", step=step))
    _finish(job)
    return job


class _Stage:
    """The calls of one rank of a pipeline in one step."""

    def __init__(
        self, stage: int, pp: int, prev: int, following: int, group: str, tp_group: str, tp: int, layers: int,
        ms: float, batched: bool,
    ) -> None:  # fmt: skip
        self.stage, self.pp, self.prev, self.next, self.group = stage, pp, prev, following, group
        self.tp_group, self.tp, self.layers, self.ms, self.batched = tp_group, tp, layers, ms, batched
        self.now = 0

    def step(self, step: int, micro: int) -> list[Op]:
        self.now = step
        warmup = min(self.pp - 1 - self.stage, micro)
        ops: list[Op] = []
        for m in range(warmup):
            ops += [*self._move(recv_fwd=m), *self._layers(f"fwd{m}"), *self._move(send_fwd=m)]
        if warmup < micro:
            ops += self._move(recv_fwd=warmup)
        for m in range(warmup, micro):
            back = m - warmup
            ops += [*self._layers(f"fwd{m}"), *self._move(send_fwd=m, recv_bwd=back), *self._layers(f"bwd{back}")]
            ops += self._move(send_bwd=back, recv_fwd=m + 1 if m + 1 < micro else None)
        for m in range(micro - warmup, micro):
            ops += [*self._move(recv_bwd=m), *self._layers(f"bwd{m}"), *self._move(send_bwd=m)]
        return ops

    def _layers(self, label: str) -> list[Op]:
        ops: list[Op] = []
        for layer in range(self.layers):
            for half in ("attn", "mlp"):
                ops.append(Op("compute", ms=self.ms, step=self.now))
                if self.tp > 1:
                    name = f"{label}.l{layer}.{half}"
                    ops.append(
                        collective(self.tp_group, "all_reduce", [2048, 1, 4096], name, self.now, self.tp,
                                   dtype="BFloat16", site="tp")
                    )  # fmt: skip
        return ops

    def _move(
        self, send_fwd: int | None = None, recv_fwd: int | None = None, send_bwd: int | None = None,
        recv_bwd: int | None = None,
    ) -> list[Op]:  # fmt: skip
        found: list[Op] = []
        for kind, peer, m, label in (
            ("send", self.next, send_fwd, "fwd"), ("recv", self.next, recv_bwd, "bwd"),
            ("send", self.prev, send_bwd, "bwd"), ("recv", self.prev, recv_fwd, "fwd"),
        ):  # fmt: skip
            if peer >= 0 and m is not None:
                found.append(p2p(kind, self.group, peer, [2048, 1, 4096], f"{label}{m}.{kind}", self.now))
        if self.batched and found:
            label = "+".join(one.label for one in found)
            return [Op("batch", self.group, "coalesced", parts=found, label=label, step=self.now, site="pp")]
        # unbatched, the even stages send first and the odd ones receive first
        return sorted(found, key=lambda one: (one.kind == "recv") == (self.stage % 2 == 0))


def experts(world: int, ep: int, steps: int = 3, layers: int = 2, *, seed: str = "", ms: float = 5.0) -> Job:
    """Tokens go to experts by uneven all_to_alls; every rank's sizes differ from its peers' at every call."""
    rng = random.Random(f"experts/{seed}")
    job = Job(world)
    _setup(job)
    for first in range(0, world, ep):
        job.group(f"ep{first // ep}", range(first, first + ep), "EXPERT_MODEL_PARALLEL_GROUP")
    for index in range(ep):
        job.group(f"edp{index}", range(index, world, ep), "EXPERT_DATA_PARALLEL_GROUP")
    for step in range(steps):
        for phase in ("fwd", "bwd"):
            for layer in range(layers):
                tokens = [rng.randint(3900, 4300) for _ in range(world)]
                for first in range(0, world, ep):
                    group, label = f"ep{first // ep}", f"{phase}{layer}"
                    if phase == "fwd":
                        job.call(group, "all_to_all", [ep], f"{label}.counts", step, dtype="Long", site="moe")
                    for half in ("dispatch", "combine"):
                        job.call(group, "all_to_all", lambda r, t=tokens: [t[r], 5120], f"{label}.{half}", step,
                                 dtype="BFloat16", site="moe")  # fmt: skip
                        job.each(Op("compute", ms=ms, step=step), range(first, first + ep))
        for index in range(ep):
            job.call(f"edp{index}", "all_reduce", [7_000_000], "expert_grad", step, site="grads")
        job.call("world", "all_reduce", [9_000_000], "grad", step, site="grads")
        job.each(Op("sync", step=step))
    _finish(job)
    return job


KINDS = ("broadcast", "all_gather", "reduce", "reduce_scatter", "gather", "scatter", "all_to_all",
         "_all_gather_base", "_reduce_scatter_base", "all_reduce")  # fmt: skip


def mixed(world: int, steps: int = 4, *, ms: float = 5.0) -> Job:
    """One call of every kind per step, in plain collectives."""
    job = Job(world)
    for step in range(steps):
        for index, name in enumerate(KINDS):
            job.each(Op("compute", ms=ms, step=step))
            job.call("world", name, [4096 + 512 * index], name, step)
        job.each(Op("sync", step=step))
    _finish(job)
    return job


def two_groups(world: int, steps: int = 4) -> Job:
    """Two groups over the same ranks, used one after the other: a metric group and a gradient group."""
    job = Job(world)
    job.group("metrics", range(world), "metrics")
    job.group("grads", range(world), "grads")
    for step in range(steps):
        job.each(Op("compute", ms=10, step=step))
        job.call("metrics", "all_reduce", [16], "metric", step)
        job.call("grads", "all_reduce", [1_000_000], "grad", step, site="grads")
        job.each(Op("sync", step=step))
    _finish(job)
    return job


def ring_of_groups(world: int, steps: int = 4) -> Job:
    """Each rank shares one group with the rank before it and one with the rank after it; the lower is used first."""
    job = Job(world)
    for left in range(world):
        job.group(f"pair{left}", sorted({left, (left + 1) % world}), f"halo_{left}")
    for step in range(steps):
        job.each(Op("compute", ms=10, step=step))
        for left in range(world):
            job.call(f"pair{left}", "all_reduce", [8192], f"halo{left}", step)
        job.each(Op("sync", step=step))
    _finish(job)
    return job


def hybrid_shard(nodes: int, per_node: int, steps: int = 3, layers: int = 3, *, same_names: bool = True) -> Job:
    """Shard inside a node, replicate across: the groups come from split_group, so equal names have unlike ranks."""
    world = nodes * per_node
    job = Job(world)
    for node in range(nodes):
        ranks = range(node * per_node, (node + 1) * per_node)
        job.group(f"shard{node}", ranks, "mesh_shard", "world:split:shard" if same_names else None)
    for local in range(per_node):
        ranks = range(local, world, per_node)
        job.group(f"replicate{local}", ranks, "mesh_replicate", "world:split:replicate" if same_names else None)
    for step in range(steps):
        for phase in ("fwd", "bwd"):
            for layer in range(layers):
                for node in range(nodes):
                    job.call(f"shard{node}", "_all_gather_base", [500_000], f"{phase}{layer}.gather", step,
                             dtype="BFloat16", site="fsdp_gather")  # fmt: skip
                job.each(Op("compute", ms=6, step=step))
                if phase == "bwd":
                    for node in range(nodes):
                        job.call(f"shard{node}", "_reduce_scatter_base", [500_000], f"{phase}{layer}.reduce", step,
                                 site="fsdp_reduce")  # fmt: skip
                    for local in range(per_node):
                        job.call(f"replicate{local}", "all_reduce", [500_000], f"{phase}{layer}.replicate", step,
                                 site="fsdp_reduce")  # fmt: skip
        job.each(Op("sync", step=step))
    _finish(job)
    return job


# ---- edits: what goes wrong ----


def _at(job: Job, rank: int, label: str, step: int, group: str = "") -> int:
    for index, op in enumerate(job.programs[rank]):
        if op.step == step and (op.label == label or label in op.label.split("+")) and group in ("", op.group):
            return index
    raise LookupError(f"rank {rank} makes no call {label} in step {step}")


def skip(job: Job, ranks: Iterable[int], label: str, step: int, count: int = 1) -> None:
    for rank in ranks:
        at = _at(job, rank, label, step)
        del job.programs[rank][at : at + count]


def extra(job: Job, ranks: Iterable[int], label: str, step: int, new: Op | None = None) -> None:
    """One more call before the named one: the same again, or another."""
    for rank in ranks:
        at = _at(job, rank, label, step)
        job.programs[rank].insert(at, copy.deepcopy(new or job.programs[rank][at]))


def change(job: Job, ranks: Iterable[int], label: str, step: int, *, name: str = "", size: list[int] | None = None,
           dtype: str = "") -> None:  # fmt: skip
    for rank in ranks:
        at = _at(job, rank, label, step)
        op = job.programs[rank][at]
        if op.parts:
            parts = [replace(op.parts[0], dtype=dtype or op.dtype, ins=[size] if size else op.parts[0].ins)]
            job.programs[rank][at] = replace(op, parts=[*parts, *op.parts[1:]])
            continue
        members = job.groups[op.group][2]
        own = size or min((one for one in [*op.ins, *op.outs]), key=lambda one: one[0] if one else 0)
        job.programs[rank][at] = collective(
            op.group, name or op.name, own, op.label, op.step, len(members), root=rank == members[0],
            dtype=dtype or op.dtype, wait=op.wait, site=op.site,
        )  # fmt: skip


def swap(job: Job, ranks: Iterable[int], first: str, second: str, step: int) -> None:
    for rank in ranks:
        a, b = _at(job, rank, first, step), _at(job, rank, second, step)
        program = job.programs[rank]
        program[a], program[b] = program[b], program[a]


def stuck(job: Job, ranks: Iterable[int], label: str, step: int) -> None:
    """The host never gets to the named call (a data loader, a lock, a file, an end of the process)."""
    for rank in ranks:
        at = _at(job, rank, label, step)
        job.programs[rank][at:] = [Op("host_stuck")]


def gpu_stuck(job: Job, ranks: Iterable[int], label: str, step: int) -> None:
    """A kernel before the named call never ends."""
    for rank in ranks:
        job.programs[rank].insert(_at(job, rank, label, step), Op("gpu_stuck"))


def leave(job: Job, ranks: Iterable[int], step: int) -> None:
    """The rank runs out of batches before `step` and goes on to what follows the loop."""
    for rank in ranks:
        job.programs[rank] = [op for op in job.programs[rank] if op.step < step or op.step == END]


def drop_part(job: Job, rank: int, label: str, step: int) -> None:
    """Leave one member out of a batch."""
    at = _at(job, rank, label, step)
    op = job.programs[rank][at]
    if not op.parts or len(op.parts) == 1:
        del job.programs[rank][at]
        return
    parts = [one for one in op.parts if one.label != label]
    job.programs[rank][at] = replace(op, parts=parts)


def redirect(job: Job, rank: int, label: str, step: int, peer: int) -> None:
    """Send to, or receive from, another rank of the group than meant."""
    at = _at(job, rank, label, step)
    op = job.programs[rank][at]
    if op.parts:
        parts = [replace(one, peer=peer) if one.label == label else one for one in op.parts]
        job.programs[rank][at] = replace(op, parts=parts)
    else:
        job.programs[rank][at] = replace(op, peer=peer)
