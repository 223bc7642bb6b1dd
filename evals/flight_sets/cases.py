"""The table of sets: a job, what goes wrong in it, how its dumps are written, and the truth.

`kinds`, `culprits` and `statuses` list every answer that is right: where two ranks are all there is to compare and nothing else
tells them apart, both have to be named. A set without a fault has no kinds and no culprits.
"""

# ruff: noqa: E501, A002 (one set is one line of a table)
import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from flight_sets import shapes
from flight_sets.dumps import Form, write
from flight_sets.edits import (
    After,
    Edit,
    change,
    earlier,
    extra,
    gpu,
    hang,
    leave,
    lose,
    same_again,
    second_replica,
    skip,
    stray,
    stuck,
    swap,
    truncate,
)
from flight_sets.generate import Job, Op, play
from flight_sets.shapes import END


@dataclass(frozen=True)
class Case:
    """One set of dumps and the truth about it."""

    id: str
    fault: str
    job: Callable[[], Job]
    edit: Edit | None = None
    kinds: tuple[str, ...] = ()
    culprits: tuple[tuple[int, ...], ...] = ((),)
    statuses: tuple[str, ...] = ("fault",)
    form: Form = field(default_factory=Form)
    at: float | None = None  # of the way through the run; None: after the timeout, or at the end of a whole run
    missing: tuple[int, ...] = ()
    finish_smaller: bool = False
    after: After | None = None
    finished: bool = False  # every call finishes, whatever was edited

    def build(self, folder: Path) -> None:
        """Write the dumps into `folder`."""
        job = self.job()
        if self.edit is not None:
            self.edit(job)
        run = play(job, self.id, self.finish_smaller)
        whole = all(call.done is not None for calls in run.issued for call in calls) and not any(
            op.kind == "host_stuck" for program in job.programs for op in program
        )
        healthy = self.statuses[0] == "in_step" or self.finished
        assert whole == healthy, f"{self.id}: the run is {'whole' if whole else 'stuck'}"
        form = self.form
        if self.at is not None:
            form = replace(form, at_s=run.until * self.at)
        elif healthy:
            form = replace(form, at_s=run.until + 0.5)
        write(job, run, form, folder, self.id, self.missing)
        if self.after is not None:
            self.after(folder, job)


CASES: list[Case] = []
STATE = ("fault", "inconclusive")
RUNNING = ("in_step", "inconclusive")  # looked at in the middle of a step: accusing nobody is what counts


def add(
    id: str, fault: str, job: Callable[[], Job], edit: Edit | None = None, kinds: str = "",
    culprits: Iterable[Iterable[int]] | Iterable[int] = ((),), **more: object,
) -> None:  # fmt: skip
    """`culprits` is one answer (ranks) or several (lists of ranks)."""
    listed = list(culprits)
    answers = [listed] if listed and isinstance(listed[0], int) else listed
    if not kinds and "statuses" not in more:
        more["statuses"] = ("in_step",)
    statuses = more.pop("statuses", ("fault",))
    if statuses == RUNNING and not kinds:
        kinds = "all_joined_none_finished"  # true of the moment, and no word against anybody
    case = Case(id, fault, job, edit, tuple(kinds.split()), tuple(tuple(sorted(a)) for a in answers), statuses, **more)  # type: ignore[arg-type]
    assert all(case.id != one.id for one in CASES), case.id
    CASES.append(case)


S = shapes
_rng = random.Random("flight sets")  # which ranks are at fault, once for all


def pick(world: int, n: int = 1) -> list[int]:
    return sorted(_rng.sample(range(world), n))


# ---- a call left out ----
for world, label, step in (
    (4, "grad0", 0),
    (4, "grad1", 3),
    (8, "grad2", 5),
    (8, "grad0", 2),
    (16, "grad1", 0),
    (64, "grad2", 3),
):
    who = pick(world)
    kinds = "collective_missing" if (label, step) != ("grad2", 5) else "collective_missing type_mismatch"
    add(f"skip-ddp-{world}-{label}-{step}", "skip", lambda w=world: S.ddp(w), skip(who, label, step), kinds, who)
for world, label, step in (
    (4, "fwd0.gather", 0),
    (4, "fwd2.gather", 2),
    (8, "bwd0.reduce", 3),
    (8, "norm", 1),
    (16, "bwd3.gather", 2),
    (32, "bwd1.reduce", 1),
):
    who = pick(world)
    add(
        f"skip-fsdp-{world}-{label}-{step}",
        "skip",
        lambda w=world: S.fsdp(w),
        skip(who, label, step),
        "collective_missing",
        who,
    )
for index, name in enumerate(S.KINDS):
    who = pick(4)
    add(f"skip-kind-{name}", "skip", lambda: S.mixed(4), skip(who, name, index % 4), "collective_missing", who)
who = pick(8, 2)
add("skip-ddp-two-of-8", "skip", lambda: S.ddp(8), skip(who, "grad1", 3), "collective_missing", who)
add("skip-ddp-micro-batch", "skip", lambda: S.ddp(4), skip([2], "grad0", 3, 9), "collective_missing", [2])
add(
    "skip-ddp-loss-of-equal-calls",
    "skip",
    lambda: S.ddp(4, buckets=1),
    skip([3], "grad0", 2),
    "collective_missing type_mismatch",
    [3],
)
add(
    "skip-fsdp-coalesced",
    "skip",
    lambda: S.fsdp(4, coalesced=True),
    skip([1], "fwd2.gather", 2),
    "collective_missing",
    [1],
)
add(
    "skip-tp4",
    "skip",
    lambda: S.tp_dp(4, 2),
    skip([5], "fwd0.l1.attn", 2),
    "collective_missing order_deadlock behind_on_enqueue",
    [5],
)
add("skip-tp4-dp-bucket", "skip", lambda: S.tp_dp(4, 4), skip([6], "grad0", 2), "collective_missing", [6])
add(
    "skip-3d-norm",
    "skip",
    lambda: S.pipeline(2, 2, 2),
    skip([3], "norm", 1),
    "collective_missing order_deadlock behind_on_enqueue",
    [3],
)
add(
    "skip-ep-dispatch",
    "skip",
    lambda: S.experts(8, 4),
    skip([6], "fwd1.dispatch", 1),
    "collective_missing order_deadlock behind_on_enqueue",
    [6],
)
add(
    "skip-ep-grad",
    "skip",
    lambda: S.experts(8, 4),
    skip([1], "expert_grad", 2),
    "collective_missing order_deadlock behind_on_enqueue",
    [[1], [1, 5]],
)
add("skip-split-group", "skip", lambda: S.hybrid_shard(2, 4), skip([6], "fwd1.gather", 1), "collective_missing", [6])
add(
    "skip-hashed-group",
    "skip",
    lambda: S.fsdp(8),
    skip([4], "bwd2.reduce", 2),
    "collective_missing",
    [4],
    form=Form(hashed=True),
)
add("skip-2-history", "skip", lambda: S.ddp(2, loss=True), skip([1], "loss", 4), "collective_missing", [[1], [0, 1]])
add("skip-2-history-rank0", "skip", lambda: S.ddp(2), skip([0], "grad1", 4), "collective_missing", [[0], [0, 1]])
add(
    "skip-2-first-step",
    "skip",
    lambda: S.ddp(2),
    skip([1], "grad1", 0),
    "collective_missing collective_extra size_mismatch",
    [[0, 1], [1]],
)
add(
    "skip-2-smaller-finishes",
    "skip",
    lambda: S.ddp(2),
    skip([1], "grad0", 3),
    "collective_missing",
    [[1], [0, 1]],
    finish_smaller=True,
)

# ---- a call too many ----
ONE = Op("collective", "world", "all_reduce", [[2]], [[2]], label="score", step=3, site="eval")
for world, who in ((4, [0]), (8, [0]), (8, [5]), (32, [17])):
    add(
        f"extra-eval-{world}-{who[0]}",
        "extra",
        lambda w=world: S.ddp(w, loss=True),
        extra(who, "grad0", 3, ONE),
        "collective_extra",
        who,
    )
add(
    "extra-barrier-rank0",
    "extra",
    lambda: S.ddp(4),
    extra([0], "grad0", 4, replace(ONE, name="all_reduce_barrier", ins=[[1]], outs=[[1]])),
    "collective_extra",
    [0],
)
add(
    "extra-barrier-at-end",
    "extra",
    lambda: S.ddp(4),
    lambda j: j.programs[0].append(replace(ONE, name="all_reduce_barrier", ins=[[1]], outs=[[1]], step=END)),
    "collective_extra behind_on_enqueue",
    [[0], [1, 2, 3]],
)
add("extra-fsdp-gather", "extra", lambda: S.fsdp(8), extra([3], "fwd1.gather", 2), "collective_extra", [3])
add("extra-mixed-broadcast", "extra", lambda: S.mixed(4), extra([2], "broadcast", 2), "collective_extra", [2])
add("extra-tp", "extra", lambda: S.tp_dp(4, 2), extra([2], "bwd0.l0.mlp", 1), "collective_extra order_deadlock", [2])
add("extra-2-history", "extra", lambda: S.ddp(2), extra([0], "grad0", 4, ONE), "collective_extra", [[0], [0, 1]])
add(
    "extra-first-call",
    "extra",
    lambda: S.ddp(4, setup=False),
    extra([1], "grad0", 0, replace(ONE, step=0)),
    "collective_extra",
    [1],
)

# ---- another operation, size or type ----
add(
    "type-mixed-first", "type", lambda: S.mixed(4), change([2], "broadcast", 0, name="all_reduce"), "type_mismatch", [2]
)
add("type-mixed-mid", "type", lambda: S.mixed(8), change([7], "all_reduce", 2, name="reduce"), "type_mismatch", [7])
add("type-fsdp", "type", lambda: S.fsdp(4), change([0], "norm", 2, name="broadcast"), "type_mismatch", [0])
add("type-ddp-many", "type", lambda: S.ddp(16), change([3, 9], "grad1", 3, name="broadcast"), "type_mismatch", [3, 9])
add("type-2-history", "type", lambda: S.ddp(2), change([0], "grad1", 3, name="reduce"), "type_mismatch", [[0], [0, 1]])
add("type-2-first-step", "type", lambda: S.ddp(2), change([1], "grad1", 0, name="reduce"), "type_mismatch", [[0, 1]])
add("size-ddp", "size", lambda: S.ddp(4), change([1], "grad1", 3, size=[2_621_440]), "size_mismatch", [1])
add("size-ddp-first", "size", lambda: S.ddp(8), change([0], "grad0", 0, size=[13_107_200]), "size_mismatch", [0])
add(
    "size-ddp-smaller-finishes",
    "size",
    lambda: S.ddp(4),
    change([2], "grad1", 3, size=[2_621_440]),
    "size_mismatch",
    [2],
    finish_smaller=True,
)
add(
    "size-ddp-larger-waits",
    "size",
    lambda: S.ddp(4),
    change([2], "grad1", 3, size=[26_214_400]),
    "size_mismatch",
    [2],
    finish_smaller=True,
)
add("size-gather", "size", lambda: S.mixed(4), change([3], "all_gather", 2, size=[9000]), "size_mismatch", [3])
add(
    "size-reduce-scatter",
    "size",
    lambda: S.fsdp(8),
    change([5], "bwd2.reduce", 2, size=[1_050_112]),
    "size_mismatch",
    [5],
)
add("size-gather-base", "size", lambda: S.fsdp(4), change([1], "bwd3.gather", 3, size=[4096]), "size_mismatch", [1])
add(
    "size-all-reduce-2d",
    "size",
    lambda: S.tp_dp(4, 2),
    change([7], "fwd0.l2.mlp", 2, size=[1024, 1, 4096]),
    "size_mismatch",
    [7],
)
add(
    "size-coalesced",
    "size",
    lambda: S.fsdp(4, coalesced=True),
    change([3], "fwd1.gather", 2, size=[99]),
    "size_mismatch",
    [3],
)
add(
    "size-2-history",
    "size",
    lambda: S.ddp(2),
    change([1], "grad1", 4, size=[2_621_440]),
    "size_mismatch",
    [[1], [0, 1]],
)
add("size-2-first-step", "size", lambda: S.ddp(2), change([1], "grad1", 0, size=[2_621_440]), "size_mismatch", [[0, 1]])
add("size-two-of-8", "size", lambda: S.ddp(8), change([2, 6], "grad2", 2, size=[12]), "size_mismatch", [2, 6])
add("dtype-ddp", "dtype", lambda: S.ddp(4), change([1], "grad0", 3, dtype="BFloat16"), "dtype_mismatch", [1])
add(
    "dtype-fsdp-gather", "dtype", lambda: S.fsdp(8), change([6], "fwd0.gather", 1, dtype="Float"), "dtype_mismatch", [6]
)
add("dtype-ep", "dtype", lambda: S.experts(8, 4), change([2], "fwd1.dispatch", 1, dtype="Half"), "dtype_mismatch", [2])
add("dtype-broadcast", "dtype", lambda: S.mixed(4), change([0], "broadcast", 1, dtype="Double"), "dtype_mismatch", [0])
add(
    "dtype-2-history",
    "dtype",
    lambda: S.ddp(2),
    change([0], "grad2", 4, dtype="BFloat16"),
    "dtype_mismatch",
    [[0], [0, 1]],
)

# ---- order ----
for world, who in ((2, [1]), (4, [2]), (8, [0])):
    everyone = list(range(world))
    add(
        f"order-two-groups-{world}",
        "order",
        lambda w=world: S.two_groups(w),
        swap(who, "metric", "grad", 2),
        "order_deadlock",
        [who, everyone] if world == 2 else [who],
    )
add(
    "order-two-groups-first-step",
    "order",
    lambda: S.two_groups(2),
    swap([0], "metric", "grad", 0),
    "order_deadlock",
    [[0, 1]],
)
add(
    "order-half-and-half",
    "order",
    lambda: S.two_groups(4),
    swap([1, 3], "metric", "grad", 2),
    "order_deadlock",
    [[1, 3], [0, 1, 2, 3]],
)
for world in (3, 4, 6):
    add(
        f"order-ring-{world}-one",
        "order",
        lambda w=world: S.ring_of_groups(w),
        swap([0], "halo0", f"halo{world - 1}", 2),
        "order_deadlock",
        [[0], list(range(world))],
    )
add(
    "order-ring-3-first-step",
    "order",
    lambda: S.ring_of_groups(3),
    swap([0], "halo0", "halo2", 0),
    "order_deadlock",
    [[0], [0, 1, 2]],
)
add(
    "order-tp-dp",
    "order",
    lambda: S.tp_dp(2, 2),
    swap([1, 2], "bwd0.l0.mlp", "grad0", 2),
    "order_deadlock",
    [[1, 2], [0, 1, 2, 3]],
)
add("order-harmless", "healthy", lambda: S.tp_dp(2, 2), swap([1], "bwd0.l0.mlp", "grad0", 2))
add(
    "order-within-group",
    "order",
    lambda: S.ddp(4),
    swap([2], "grad0", "grad1", 3),
    "size_mismatch collective_missing collective_extra",
    [2],
)
add(
    "order-within-group-ops",
    "order",
    lambda: S.mixed(4),
    swap([1], "reduce", "broadcast", 1),
    "type_mismatch collective_missing collective_extra",
    [1],
)

# ---- send and receive ----
add(
    "p2p-recv-missing",
    "p2p",
    lambda: S.pipeline(4, batched=False),
    skip([2], "fwd1.recv", 1),
    "p2p_mismatch order_deadlock behind_on_enqueue",
    [[2], [1, 2]],
)
add(
    "p2p-recv-missing-batched",
    "p2p",
    lambda: S.pipeline(4),
    lambda j: S.drop_part(j, 2, "fwd2.recv", 1),
    "p2p_mismatch order_deadlock behind_on_enqueue",
    [[2], [1, 2]],
)
add(
    "p2p-send-missing",
    "p2p",
    lambda: S.pipeline(4, batched=False),
    skip([1], "fwd3.send", 2),
    "p2p_mismatch order_deadlock behind_on_enqueue",
    [[1], [1, 2]],
)
add(
    "p2p-send-missing-batched",
    "p2p",
    lambda: S.pipeline(4, 2),
    lambda j: S.drop_part(j, 3, "bwd2.send", 2),
    "p2p_mismatch order_deadlock behind_on_enqueue",
    [[3], [1, 3]],
)
add(
    "p2p-wrong-peer",
    "p2p",
    lambda: S.pipeline(4, batched=False),
    lambda j: S.redirect(j, 1, "fwd2.send", 1, 3),
    "p2p_mismatch order_deadlock behind_on_enqueue",
    [[1], [1, 2], [1, 3], [1, 2, 3]],
)
add(
    "p2p-wrong-peer-batched",
    "p2p",
    lambda: S.pipeline(4),
    lambda j: S.redirect(j, 1, "fwd1.send", 1, 3),
    "p2p_mismatch order_deadlock behind_on_enqueue",
    [[1], [1, 2], [1, 3], [1, 2, 3]],
)


def _both_receive(job: Job) -> None:
    for rank in (0, 1):
        job.programs[rank] = [S.p2p(kind, "world", 1 - rank, [512, 512], f"x.{kind}", 0) for kind in ("recv", "send")]


add("p2p-both-receive-first", "p2p", lambda: S.Job(2), _both_receive, "p2p_mismatch order_deadlock", [[0, 1]])
add(
    "p2p-size",
    "p2p",
    lambda: S.pipeline(2, batched=False),
    lambda j: _resize(j, 1, "fwd1.recv", 1),
    "p2p_mismatch size_mismatch",
    [[1], [0, 1], []],
)


def _resize(job: Job, rank: int, label: str, step: int) -> None:
    for op in job.programs[rank]:
        if op.label == label and op.step == step:
            op.ins = op.outs = [[2048, 1, 8192]]


# ---- fewer batches ----
for world, who, step in ((4, [1], 4), (8, [3], 2), (8, [2, 5], 4), (2, [0], 4)):
    add(
        f"early-ddp-{world}-{step}-{len(who)}",
        "early",
        lambda w=world: S.ddp(w),
        leave(who, step),
        "collective_missing type_mismatch",
        [who] if world > 2 else [who, [0, 1]],
    )
add("early-ddp-all-but-one", "early", lambda: S.ddp(4), leave([0, 1, 2], 4), "collective_extra type_mismatch", [3])
add(
    "early-ddp-smaller-finishes",
    "early",
    lambda: S.ddp(4),
    leave([2], 4),
    "collective_missing type_mismatch",
    [2],
    finish_smaller=True,
)
add(
    "early-fsdp-other-group",
    "early",
    lambda: S.fsdp(4),
    leave([1], 2),
    "collective_missing behind_on_enqueue order_deadlock",
    [1],
)
add(
    "early-fsdp-16",
    "early",
    lambda: S.fsdp(16),
    leave([11], 3),
    "collective_missing behind_on_enqueue order_deadlock",
    [11],
)
add(
    "early-3d",
    "early",
    lambda: S.pipeline(2, 2, 2),
    leave([2, 3, 6, 7], 2),
    "collective_missing type_mismatch behind_on_enqueue",
    [2, 3, 6, 7],
)

# ---- the host does not get to the call ----
for name, make, world, label, step in (
    ("ddp-2", lambda: S.ddp(2), 2, "grad0", 3), ("ddp-8", lambda: S.ddp(8), 8, "grad0", 5), ("ddp-8-mid", lambda: S.ddp(8), 8, "grad1", 2),
    ("ddp-first", lambda: S.ddp(4), 4, "grad0", 0), ("ddp-end", lambda: S.ddp(4), 4, "end", END), ("ddp-256", lambda: S.ddp(256, steps=3), 256, "grad0", 2),
    ("fsdp-8", lambda: S.fsdp(8), 8, "fwd0.gather", 3), ("fsdp-16-bwd", lambda: S.fsdp(16), 16, "bwd2.reduce", 1), ("tp4-dp2", lambda: S.tp_dp(4, 2), 8, "fwd0.l0.attn", 2),
    ("tp2-dp4-grad", lambda: S.tp_dp(2, 4), 8, "grad0", 2), ("tp8-dp8", lambda: S.tp_dp(8, 8, steps=2, layers=2), 64, "bwd0.l1.attn", 1),
    ("3d-8", lambda: S.pipeline(2, 2, 2), 8, "fwd1.l0.attn", 1), ("3d-32", lambda: S.pipeline(4, 2, 4), 32, "bwd0.l0.mlp", 2),
    ("3d-128", lambda: S.pipeline(4, 4, 8, steps=2), 128, "fwd2.l0.attn", 1), ("ep", lambda: S.experts(8, 4), 8, "fwd0.counts", 1),
    ("ep-16-combine", lambda: S.experts(16, 8), 16, "bwd1.combine", 2), ("split", lambda: S.hybrid_shard(4, 4), 16, "bwd1.gather", 2),
    ("split-replicate", lambda: S.hybrid_shard(4, 4), 16, "bwd2.replicate", 1), ("two-groups", lambda: S.two_groups(4), 4, "grad", 2),
):  # fmt: skip
    who = pick(world)
    add(f"host-{name}", "host stuck", make, stuck(who, label, step), "behind_on_enqueue", who)
add("host-two-of-16", "host stuck", lambda: S.ddp(16), stuck([4, 13], "grad0", 3), "behind_on_enqueue", [4, 13])
add(
    "host-one-node-of-4",
    "host stuck",
    lambda: S.ddp(32),
    stuck(list(range(8, 16)), "grad0", 3),
    "behind_on_enqueue",
    list(range(8, 16)),
)
add("host-all-but-one", "host stuck", lambda: S.ddp(4), stuck([0, 1, 3], "grad0", 3), "behind_on_enqueue", [0, 1, 3])
add(
    "host-pp-first-stage",
    "host stuck",
    lambda: S.pipeline(4),
    stuck([0], "fwd0.send", 2),
    "behind_on_enqueue p2p_mismatch",
    [0],
)
add(
    "host-pp-middle-stage",
    "host stuck",
    lambda: S.pipeline(4, 2),
    stuck([5], "fwd2.send", 1),
    "behind_on_enqueue p2p_mismatch",
    [5],
)
add(
    "host-pp-unbatched",
    "host stuck",
    lambda: S.pipeline(4, batched=False),
    stuck([2], "fwd1.recv", 1),
    "behind_on_enqueue p2p_mismatch",
    [2],
)
add(
    "host-pp-last-stage",
    "host stuck",
    lambda: S.pipeline(4, 2, 2),
    stuck([13], "bwd1.l0.mlp", 1),
    "behind_on_enqueue",
    [13],
)
add("host-pp8-embedding", "host stuck", lambda: S.pipeline(8), stuck([7], "embedding", 1), "behind_on_enqueue", [7])
add(
    "host-3d-256",
    "host stuck",
    lambda: S.pipeline(8, 4, 8, steps=1, micro=2),
    stuck([137], "bwd0.l0.attn", 0),
    "behind_on_enqueue",
    [137],
)

# ---- the GPU does not get to it, or does not finish it ----
T = Form(timing=True)
add("gpu-ddp-timing", "gpu stuck", lambda: S.ddp(4), gpu([2], "grad0", 3), "behind_on_complete", [2], form=T)
add("gpu-fsdp-timing", "gpu stuck", lambda: S.fsdp(8), gpu([5], "bwd1.gather", 2), "behind_on_complete", [5], form=T)
add(
    "gpu-ddp-no-timing",
    "gpu stuck",
    lambda: S.ddp(4),
    gpu([2], "grad0", 3),
    "all_joined_none_finished behind_on_complete",
    [[2], [], [0, 1, 2, 3]],
    statuses=STATE,
)
add(
    "gpu-tp-dp",
    "gpu stuck",
    lambda: S.tp_dp(2, 4),
    gpu([3], "bwd0.l1.attn", 2),
    "all_joined_none_finished behind_on_complete",
    [[3], [2, 3], []],
    statuses=STATE,
)
add(
    "gpu-tp4-3d",
    "gpu stuck",
    lambda: S.pipeline(2, 2, 4),
    gpu([9], "fwd2.l0.attn", 1),
    "all_joined_none_finished behind_on_complete",
    [[9], [8, 9, 10, 11], []],
    statuses=STATE,
)
add(
    "gpu-tp4-3d-timing",
    "gpu stuck",
    lambda: S.pipeline(2, 2, 4),
    gpu([9], "fwd2.l0.attn", 1),
    "behind_on_complete",
    [9],
    form=T,
)
add("gpu-lost-ddp", "gpu stuck", lambda: S.ddp(8), lose([6], "grad1", 3), "behind_on_complete", [6])
add("gpu-lost-fsdp", "gpu stuck", lambda: S.fsdp(4), lose([0], "bwd2.reduce", 2), "behind_on_complete", [0])
add("gpu-lost-two", "gpu stuck", lambda: S.tp_dp(4, 4), lose([3, 7], "fwd0.l1.mlp", 2), "behind_on_complete", [3, 7])
add("gpu-lost-2", "gpu stuck", lambda: S.ddp(2), lose([1], "grad2", 3), "behind_on_complete", [1])
add(
    "gpu-lost-3d-64",
    "gpu stuck",
    lambda: S.pipeline(4, 4, 4, steps=2),
    lose([22], "bwd1.l0.attn", 1),
    "behind_on_complete",
    [22],
)

# ---- all are in it and nobody gets out ----
NONE = "all_joined_none_finished"
add("joined-ddp", "all joined", lambda: S.ddp(4), hang("world", "grad0", 3), NONE, [[], [0, 1, 2, 3]], statuses=STATE)
add(
    "joined-fsdp-32",
    "all joined",
    lambda: S.fsdp(32),
    hang("mesh", "fwd2.gather", 2),
    NONE,
    [[], list(range(32))],
    statuses=STATE,
)
add(
    "joined-tp",
    "all joined",
    lambda: S.tp_dp(4, 2),
    hang("tp0.1", "fwd0.l1.attn", 2),
    NONE,
    [[], [4, 5, 6, 7]],
    statuses=STATE,
)
add(
    "joined-3d",
    "all joined",
    lambda: S.pipeline(2, 4, 2),
    hang("dp1.0", "grad0", 1),
    NONE,
    [[], [8, 10, 12, 14]],
    statuses=STATE,
)
add(
    "joined-ep",
    "all joined",
    lambda: S.experts(8, 4),
    hang("ep1", "fwd1.dispatch", 1),
    NONE,
    [[], [4, 5, 6, 7]],
    statuses=STATE,
)
add(
    "joined-first-call",
    "all joined",
    lambda: S.ddp(8),
    hang("world", "verify", -1),
    NONE,
    [[], list(range(8))],
    statuses=STATE,
)
add(
    "joined-timing",
    "all joined",
    lambda: S.ddp(8),
    hang("world", "grad2", 4),
    NONE,
    [[], list(range(8))],
    form=T,
    statuses=STATE,
)

# ---- dumps that are not there ----
MISSING = "dump_missing behind_on_enqueue"
add(
    "missing-culprit-ddp",
    "dump missing",
    lambda: S.ddp(4),
    stuck([2], "grad0", 3),
    MISSING,
    [2],
    missing=(2,),
    statuses=STATE,
)
add(
    "missing-culprit-rank0",
    "dump missing",
    lambda: S.fsdp(8),
    stuck([0], "fwd0.gather", 2),
    MISSING,
    [0],
    missing=(0,),
    statuses=STATE,
)
add(
    "missing-culprit-last-rank",
    "dump missing",
    lambda: S.ddp(8),
    stuck([7], "grad0", 3),
    MISSING,
    [7],
    missing=(7,),
    statuses=STATE,
)
add(
    "missing-culprit-3d",
    "dump missing",
    lambda: S.pipeline(2, 2, 4),
    stuck([11], "fwd1.l0.attn", 1),
    MISSING,
    [11],
    missing=(11,),
    statuses=STATE,
)
add(
    "missing-node",
    "dump missing",
    lambda: S.ddp(32),
    stuck(list(range(16, 24)), "grad0", 3),
    MISSING,
    list(range(16, 24)),
    missing=tuple(range(16, 24)),
    statuses=STATE,
)
add(
    "missing-innocent-ddp",
    "dump missing",
    lambda: S.ddp(8),
    stuck([2], "grad0", 3),
    "behind_on_enqueue",
    [2],
    missing=(5,),
)
add(
    "missing-innocent-skip",
    "dump missing",
    lambda: S.ddp(8),
    skip([2], "grad1", 3),
    "collective_missing",
    [2],
    missing=(0,),
)
add(
    "missing-innocent-3d",
    "dump missing",
    lambda: S.pipeline(2, 2, 4),
    stuck([11], "fwd1.l0.attn", 1),
    "behind_on_enqueue",
    [11],
    missing=(3,),
)
add(
    "missing-innocent-tp",
    "dump missing",
    lambda: S.tp_dp(4, 4),
    stuck([6], "bwd0.l1.attn", 2),
    "behind_on_enqueue",
    [6],
    missing=(5, 12),
)
add(
    "missing-half",
    "dump missing",
    lambda: S.ddp(8),
    stuck([6], "grad0", 3),
    "behind_on_enqueue",
    [6],
    missing=(0, 1, 2, 3),
)
add(
    "missing-one-of-2",
    "dump missing",
    lambda: S.ddp(2),
    stuck([1], "grad0", 3),
    MISSING,
    [1],
    missing=(1,),
    statuses=STATE,
)
add(
    "missing-crash-pp",
    "dump missing",
    lambda: S.pipeline(4, 2),
    stuck([4], "fwd2.send", 1),
    MISSING,
    [4],
    missing=(4,),
    statuses=STATE,
)
add(
    "missing-crash-ep",
    "dump missing",
    lambda: S.experts(8, 4),
    stuck([5], "bwd1.combine", 1),
    MISSING,
    [5],
    missing=(5,),
    statuses=STATE,
)
add(
    "missing-but-healthy",
    "healthy",
    lambda: S.ddp(8),
    kinds="dump_missing",
    missing=(3,),
    statuses=("in_step", "inconclusive"),
)

# ---- damaged and doubled files ----
add(
    "damaged-innocent-cut",
    "damaged",
    lambda: S.ddp(8),
    stuck([2], "grad0", 3),
    "behind_on_enqueue",
    [2],
    after=truncate([5], 0.6),
)
add(
    "damaged-innocent-empty",
    "damaged",
    lambda: S.ddp(8),
    stuck([2], "grad0", 3),
    "behind_on_enqueue",
    [2],
    after=truncate([0], 0.0),
)
add(
    "damaged-culprit-cut",
    "damaged",
    lambda: S.ddp(8),
    stuck([2], "grad0", 3),
    MISSING,
    [[2], []],
    after=truncate([2], 0.7),
    statuses=STATE,
)
add(
    "damaged-two-skip",
    "damaged",
    lambda: S.fsdp(8),
    skip([4], "norm", 2),
    "collective_missing",
    [4],
    after=truncate([1, 6], 0.5),
)
add("damaged-healthy-cut", "healthy", lambda: S.ddp(8), after=truncate([5], 0.6), statuses=("in_step", "inconclusive"))
add("files-stray", "files", lambda: S.ddp(4), stuck([2], "grad0", 3), "behind_on_enqueue", [2], after=stray)
add(
    "files-twice", "files", lambda: S.ddp(4), stuck([2], "grad0", 3), "behind_on_enqueue", [2], after=same_again([0, 2])
)
add(
    "files-earlier-set",
    "files",
    lambda: S.ddp(4),
    stuck([2], "grad0", 5),
    "behind_on_enqueue",
    [2],
    after=earlier(lambda: S.ddp(4), 0.4),
    form=Form(skew_s=0.0),
)
add(
    "files-host-names",
    "files",
    lambda: S.ddp(16),
    stuck([9], "grad0", 3),
    "behind_on_enqueue",
    [9],
    form=Form(name="nccl_trace_rank_{host}_{rank}"),
)
add(
    "files-host-first",
    "files",
    lambda: S.fsdp(16),
    skip([9], "norm", 2),
    "collective_missing",
    [9],
    form=Form(name="{host}.cluster_rank{rank}.pkl"),
)
add(
    "files-rank-only",
    "files",
    lambda: S.ddp(4),
    stuck([1], "grad0", 3),
    "behind_on_enqueue",
    [1],
    form=Form(name="{rank}.json", fmt="json"),
)
add(
    "files-padded",
    "files",
    lambda: S.ddp(16),
    stuck([11], "grad0", 3),
    "behind_on_enqueue",
    [11],
    form=Form(name="trace_{rank:04d}"),
)

# ---- versions, backends and settings ----
FORMS = {
    "json": Form(fmt="json"), "v29": Form(version="2.9"), "v27": Form(version="2.7"), "v24": Form(version="2.4"), "v11": Form(version="1.1"),
    "v10": Form(version="1.0"), "gloo": Form(backend="gloo"), "gloo-json": Form(backend="gloo", fmt="json"), "nccl2": Form(backend="nccl2"),
    "xccl": Form(backend="xccl"), "hccl": Form(backend="hccl"), "ucc": Form(backend="ucc"), "active": Form(active_only=True),
    "active-json": Form(active_only=True, fmt="json"), "frameless": Form(frames=False), "status-only": Form(entries=False),
    "nvrx": Form(version="2.9", active_only=True, frames=False, nvrx=True, name="_dump_{rank}"), "timing": T, "wrap": Form(buffer=7),
    "skew": Form(skew_s=45.0, host_size=2), "hashed": Form(hashed=True),
}  # fmt: skip
for name, form in FORMS.items():
    loose = name in ("v10", "v11", "status-only")
    states = STATE if loose else ("fault",)
    answers = [[3], []] if loose else [[3]]
    add(
        f"form-{name}-host",
        "form",
        lambda: S.ddp(4),
        stuck([3], "grad0", 4),
        "behind_on_enqueue",
        answers,
        form=form,
        statuses=states,
    )
    if name not in ("active", "active-json", "status-only", "nvrx", "v10", "v11"):
        add(
            f"form-{name}-skip",
            "form",
            lambda: S.ddp(4, loss=True),
            skip([1], "grad1", 4),
            "collective_missing",
            [1],
            form=form,
        )
    add(
        f"form-{name}-healthy",
        "healthy",
        lambda: S.ddp(4),
        form=form,
        statuses=("in_step", "inconclusive") if loose else ("in_step",),
    )
add(
    "form-active-tp",
    "form",
    lambda: S.tp_dp(4, 2),
    stuck([5], "fwd0.l1.attn", 2),
    "behind_on_enqueue",
    [5],
    form=FORMS["nvrx"],
)
add(
    "form-active-3d",
    "form",
    lambda: S.pipeline(2, 2, 4),
    stuck([6], "fwd1.l0.mlp", 1),
    "behind_on_enqueue",
    [6],
    form=FORMS["nvrx"],
)
add(
    "form-active-skip",
    "form",
    lambda: S.ddp(4),
    skip([1], "grad1", 4),
    "collective_missing size_mismatch",
    [1],
    form=FORMS["active"],
)
add(
    "form-wrap-pp-host",
    "form",
    lambda: S.pipeline(4, 2),
    stuck([3], "fwd1.send", 2),
    "behind_on_enqueue p2p_mismatch",
    [3],
    form=Form(buffer=15),
)
add(
    "form-wrap-shift-long-ago",
    "form",
    lambda: S.ddp(4, steps=40, buckets=1),
    skip([2], "grad0", 5),
    "collective_missing type_mismatch",
    [2],
    form=Form(buffer=12),
)
add(
    "form-json-3d",
    "form",
    lambda: S.pipeline(2, 2, 2),
    stuck([6], "fwd1.l0.mlp", 1),
    "behind_on_enqueue",
    [6],
    form=FORMS["json"],
)
add(
    "form-json-p2p",
    "form",
    lambda: S.pipeline(4, batched=False),
    skip([2], "fwd1.recv", 1),
    "p2p_mismatch order_deadlock behind_on_enqueue",
    [[2], [1, 2]],
    form=FORMS["json"],
)

# ---- nothing is wrong ----
SHAPES: dict[str, Callable[[], Job]] = {
    "ddp": lambda: S.ddp(8, loss=True), "fsdp": lambda: S.fsdp(8), "fsdp-coalesced": lambda: S.fsdp(4, coalesced=True), "tp-dp": lambda: S.tp_dp(4, 4),
    "pp": lambda: S.pipeline(4), "pp-unbatched": lambda: S.pipeline(4, batched=False), "pp-dp": lambda: S.pipeline(4, 2), "3d": lambda: S.pipeline(4, 2, 4, steps=2),
    "ep": lambda: S.experts(16, 4), "mixed": lambda: S.mixed(4), "split": lambda: S.hybrid_shard(4, 4), "two-groups": lambda: S.two_groups(2), "ring": lambda: S.ring_of_groups(5),
}  # fmt: skip
for name, make in SHAPES.items():
    add(f"healthy-{name}-end", "healthy", make)
    for at in (0.31, 0.63, 0.9):
        add(f"healthy-{name}-{at}", "healthy", make, at=at, form=Form(spread_s=0.03), statuses=RUNNING)
for name in ("ddp", "pp-dp", "3d", "ep", "split", "fsdp"):
    add(
        f"healthy-{name}-active",
        "healthy",
        SHAPES[name],
        at=0.5,
        form=Form(active_only=True, frames=False, spread_s=0.03),
        statuses=RUNNING,
    )
    add(
        f"healthy-{name}-wrapped", "healthy", SHAPES[name], at=0.7, form=Form(buffer=9, spread_s=0.03), statuses=RUNNING
    )
    add(f"healthy-{name}-json", "healthy", SHAPES[name], at=0.6, form=Form(fmt="json"), statuses=RUNNING)
add("healthy-256", "healthy", lambda: S.pipeline(4, 8, 8, steps=1, micro=2), at=0.5, statuses=RUNNING)
add("healthy-late-second", "healthy", lambda: S.ddp(4, steps=20), at=0.5, form=Form(spread_s=0.4), statuses=RUNNING)
add("healthy-skewed", "healthy", lambda: S.fsdp(8), at=0.5, form=Form(skew_s=30.0, host_size=2), statuses=RUNNING)
add("healthy-duplicates", "healthy", lambda: S.ddp(4), after=same_again([0, 1, 2, 3]))
add("healthy-stray", "healthy", lambda: S.ddp(4), after=stray)
add("replicas-healthy", "healthy", lambda: S.ddp(4), after=second_replica(None), statuses=("in_step", "inconclusive"))
add(
    "replicas-host",
    "files",
    lambda: S.ddp(4),
    None,
    "behind_on_enqueue",
    [[6], [2]],
    after=second_replica(stuck([2], "grad0", 3)),
    statuses=("fault", "inconclusive"),
    finished=True,
)

BY_ID = {case.id: case for case in CASES}


def shuffled(seed: int, n: int) -> list[Case]:
    """A sample in which every kind of fault has its share."""
    rng = random.Random(seed)
    kinds: dict[str, list[Case]] = {}
    for case in CASES:
        kinds.setdefault(case.fault, []).append(case)
    for cases in kinds.values():
        rng.shuffle(cases)
    order = copy.copy(list(kinds.values()))
    return [cases[i] for i in range(max(map(len, order))) for cases in order if i < len(cases)][:n]
