"""Sets nobody has looked at: `python -m flight_sets.probe SEED [N] [copied]`, from `evals/`.

Half are healthy jobs dumped at any moment, half have a fault drawn from all classes, on 2 to 64 ranks. The truth is
coarser than that of the table: a healthy job must not be accused, and a fault must be told with a rank that has it.
`copied` gives all files the time of now, as a copy of the dumps would.
"""

# ruff: noqa: E501, B023, N812 (as in cases.py: one set is one line; the writer of a set is used in the round that made it)
import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flight_sets import shapes as S
from flight_sets.dumps import Form, write
from flight_sets.generate import Job, Op, Run, play
from torchtriage import analyze_flight_recorder

CLASSES = ("skip", "extra", "type", "size", "dtype", "order", "p2p", "early", "host", "gpu", "joined", "missing")
Probe = tuple[str, set[int], Callable[[Path], None]]  # class, ranks at fault (none: healthy), writer of the dumps


def _shape(rng: random.Random) -> tuple[str, Job]:
    world = rng.choice((2, 2, 3, 4, 4, 8, 8, 16, 32, 64))
    ms = rng.choice((2.0, 8.0, 30.0, 120.0, 400.0))
    steps = rng.randint(2, 8)
    made: dict[str, Callable[[], Job]] = {
        "ddp": lambda: S.ddp(world, steps, rng.randint(1, 5), loss=rng.random() < 0.5, ms=ms, setup=rng.random() < 0.7),
        "fsdp": lambda: S.fsdp(world, min(steps, 5), rng.randint(1, 5), coalesced=rng.random() < 0.4, ms=ms / 4),
        "tp_dp": lambda: S.tp_dp(2 if world < 8 else 4, max(1, world // 4), min(steps, 4), rng.randint(1, 3), ms=ms / 4),
        "pp": lambda: S.pipeline(max(2, min(world, 8)), max(1, world // 16), 1, micro=rng.randint(1, 6), steps=min(steps, 4),
                                 batched=rng.random() < 0.6, ms=ms / 4, norm=rng.random() < 0.5),
        "3d": lambda: S.pipeline(2, 2, max(1, world // 8), micro=rng.randint(1, 5), steps=min(steps, 3), ms=ms / 4,
                                 batched=rng.random() < 0.6),
        "experts": lambda: S.experts(max(4, world), 2 if world < 8 else 4, min(steps, 4), seed=str(rng.random()), ms=ms / 4),
        "mixed": lambda: S.mixed(world, min(steps, 5), ms=ms / 4),
        "two_groups": lambda: S.two_groups(world, steps),
        "ring": lambda: S.ring_of_groups(max(3, min(world, 16)), steps),
        "hybrid": lambda: S.hybrid_shard(max(2, world // 8), min(8, max(2, world // 2)), min(steps, 4)),
    }  # fmt: skip
    name = rng.choice(sorted(made))
    return name, made[name]()


def _form(rng: random.Random, *, healthy: bool) -> Form:
    form = Form(
        fmt=rng.choice(("pickle", "pickle", "json")), version=rng.choice(("2.10", "2.10", "2.9", "2.7")),
        timing=rng.random() < 0.2, frames=rng.random() < 0.7, buffer=rng.choice((2000, 2000, 2000, 20, 9)),
        skew_s=rng.choice((0.0, 0.02, 0.5)), timeout_s=rng.choice((30.0, 600.0, 1800.0)),
    )  # fmt: skip
    if rng.random() < (0.3 if healthy else 0.15):
        form = replace(form, active_only=True, frames=False)
    return replace(form, spread_s=rng.choice((0.0, 0.03, 0.3))) if healthy else form


def healthy(seed: str) -> Probe:
    """A job in which nothing is wrong, dumped in the middle of its work or at its end."""
    rng = random.Random(seed)
    name, job = _shape(rng)
    run = play(job, seed)
    form = _form(rng, healthy=True)
    at = rng.uniform(0.0, 1.02)
    form = replace(form, at_s=run.until * at)
    about = (
        f"{seed} {name} {job.world} at {at:.2f} of {run.until:.2f} s {'active' if form.active_only else ''} {form.fmt}"
    )
    return about, set(), lambda folder: _write(job, run, form, folder, seed)


def _write(job: Job, run: Run, form: Form, folder: Path, seed: str, missing: tuple[int, ...] = ()) -> None:
    write(job, run, form, folder, seed, missing)


def faulty(seed: str, kind: str) -> Probe:
    """A job with one fault, dumped by the watchdog or asked for after a wait."""
    for attempt in range(200):
        rng = random.Random(f"{seed}/{attempt}")
        name, job = _shape(rng)
        try:
            who, missing = _break(job, kind, rng)
        except (LookupError, IndexError, ValueError):
            continue
        run = play(job, seed)
        whole = all(call.done is not None for calls in run.issued for call in calls)
        halted = any(op.kind == "host_stuck" for program in job.programs for op in program)
        if whole or (halted and not any(c.done is None for calls in run.issued for c in calls)):
            continue
        form = _form(rng, healthy=False)
        if rng.random() < 0.3:
            form = replace(form, at_s=run.until + rng.uniform(12.0, 90.0))
        about = f"{seed}/{attempt} {kind} {name} {job.world} {'active' if form.active_only else ''} {form.fmt} buffer {form.buffer}"
        return about, who, lambda folder: _write(job, run, form, folder, seed, missing)
    raise LookupError(kind)


def _break(job: Job, kind: str, rng: random.Random) -> tuple[set[int], tuple[int, ...]]:
    """Edit one rank's program; (ranks that may be blamed, ranks that leave no dump)."""
    rank = rng.randrange(job.world)
    calls = [
        op for op in job.programs[rank]
        if op.label and len(job.groups[op.group][2]) > 1 and 0 <= op.step < 1000
        and (op.kind in ("send", "recv", "batch")) == (kind == "p2p")
    ]  # fmt: skip
    op = rng.choice(calls)
    members = job.groups[op.group][2]
    blamed = {rank, *(members if len(members) == 2 else ())}
    if kind == "skip":
        S.skip(job, [rank], op.label, op.step)
    elif kind == "extra":
        new = Op("collective", op.group, "all_reduce", [[2]], [[2]], label="score", step=op.step, site="eval")
        S.extra(job, [rank], op.label, op.step, rng.choice((None, new)))
    elif kind == "type":
        S.change(job, [rank], op.label, op.step, name="all_reduce" if op.name != "all_reduce" else "broadcast")
    elif kind == "size":
        if op.name not in ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "all_gather"):
            raise LookupError
        S.change(job, [rank], op.label, op.step, size=[777])
    elif kind == "dtype":
        if op.name not in ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "all_gather"):
            raise LookupError
        S.change(job, [rank], op.label, op.step, dtype="Half")
    elif kind == "order":
        other = rng.choice([one for one in calls if one.step == op.step and one.group != op.group])
        S.swap(job, [rank], op.label, other.label, op.step)
        both = [job.groups[one.group][2] for one in (op, other)]
        blamed = {rank, *(m for ms in both if len(ms) == 2 for m in ms)}
    elif kind == "p2p":
        part = rng.choice(op.parts or [op])
        S.drop_part(job, rank, part.label, op.step)
        blamed = {rank, part.peer}
    elif kind == "early":
        S.leave(job, [rank], op.step)
    elif kind == "host":
        S.stuck(job, [rank], op.label, op.step)
        blamed = {rank}
    elif kind == "gpu":
        S.gpu_stuck(job, [rank], op.label, op.step)
        blamed = {rank}
    elif kind == "joined":
        job.hung.add((op.group, op.label, op.step))
        blamed = set(range(job.world))
    elif kind == "missing":
        S.stuck(job, [rank], op.label, op.step)
        return {rank}, (rank,)
    return blamed, ()


def judged(probe: Probe, *, copied: bool) -> tuple[bool, str]:
    """Whether the report is right, and what it says."""
    about, who, make = probe
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "dumps")
        for path in (Path(folder) / "dumps").iterdir() if copied else ():
            os.utime(path)
        report: dict[str, Any] = analyze_flight_recorder([folder]).model_dump(mode="json")
    ranks = set(report["culprits"]["ranks"])
    kinds = [d["kind"] for d in report["divergences"]]
    told = {
        r
        for d in report["divergences"]
        if d["kind"] in ("dump_missing", "all_joined_none_finished")
        for r in d["ranks"]
    }
    if not who:
        right = report["status"] != "fault" and not ranks
    else:
        right = (bool(ranks & who) and ranks <= who) or (not ranks and bool(told & who))
    return right, f"{about}: {report['status']} {kinds[:1]} {sorted(ranks)[:8]} truth {sorted(who)[:8]}"


def main() -> None:
    """Print the share right per class, then what is wrong."""
    words = sys.argv[1:]
    seed, n = words[0], int(words[1]) if len(words) > 1 else 100
    only = words[3:] if len(words) > 3 else []
    probes = [("healthy", healthy(f"{seed}/h{i}")) for i in range(n)]
    probes += [(kind, faulty(f"{seed}/f{i}", kind)) for i in range(n) for kind in [CLASSES[i % len(CLASSES)]]]
    scores: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    lines: list[str] = []
    for kind, probe in probes:
        if only and kind not in only:
            continue
        right, text = judged(probe, copied="copied" in words)
        scores[kind][0] += right
        scores[kind][1] += 1
        if not right:
            lines.append(text)
    for kind, (right_ones, all_of_them) in scores.items():
        print(f"{kind:10} {right_ones:4} of {all_of_them}")
    print(f"faulty: {sum(r for k, (r, _) in scores.items() if k != 'healthy')} of {n}")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
