"""Logs of runs that never were, from a seed: healthy ones with the noise that real ones have, to put faults into."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

Print = Callable[[int, int, "Values"], str]
START = datetime(2026, 11, 30, 8, 0, 0)


@dataclass
class Values:
    """What one rank could print of one step."""

    loss: float
    grad_norm: float
    lr: float
    scale: float
    skipped: int
    time_s: float
    data_s: float
    forward_s: float
    backward_s: float
    allocated: float
    reserved: float
    rss: float
    when: datetime


@dataclass
class Run:
    """A run's ranks by step; change what is in it, then print it."""

    steps: list[list[Values]] = field(default_factory=list)

    def text(self, form: str) -> str:
        """Print it; ranks take turns, as with a launcher that mixes their output."""
        write = FORMS[form]
        lines = [write(step, rank, v) for step, ranks in enumerate(self.steps) for rank, v in enumerate(ranks)]
        return "\n".join(line for line in lines if line)


def healthy(seed: int, *, n_steps: int = 300, n_ranks: int = 2, calm: bool = False) -> Run:
    """Warm-up, a falling and noisy loss, a loss-scale search, checkpoints, an evaluation, jitter, creeping peaks.

    With ``calm`` there is only a little noise, and no step stands out.
    """
    r = random.Random(seed)
    base_s = r.choice([0.05, 0.3, 1.0, 4.0])
    jitter = r.choice([0.01, 0.05, 0.2, 0.5])
    noise = r.choice([0.005, 0.03, 0.1, 0.4])
    contention, period = r.choice([0.0, 0.15]), r.uniform(40, 400)
    checkpoint = r.choice([0, 50, 100])
    if calm:
        jitter, noise, contention, checkpoint = 0.03, 0.02, 0.0, 0
    fp16 = r.random() < 0.5
    start_loss, end_loss = r.uniform(6, 11), r.uniform(0.5, 3)
    scale, good, skipped = 2.0**16 if fp16 else 1.0, 0, 0
    finds = 2.0 ** r.randint(8, 14)
    peaks = [r.uniform(20e9, 40e9) for _ in range(n_ranks)]
    warm = r.randint(1, 6)
    now = START
    run = Run()
    for step in range(n_steps):
        slow = base_s * r.uniform(2, 30) if step < warm else 0.0
        pause = base_s * 8 if checkpoint and step % checkpoint == checkpoint - 1 else 0.0
        pause += base_s * 40 if step == n_steps * 2 // 3 and not calm else 0.0
        wave = 1 + contention * math.sin(2 * math.pi * step / period)
        time_s = base_s * wave * r.lognormvariate(0, jitter) + slow + pause
        now += timedelta(seconds=time_s)
        if fp16:
            overflows = scale > finds
            skipped += overflows
            scale, good = (scale / 2, 0) if overflows else (scale, good + 1)
            if good == 120 and scale < finds:
                scale, good = scale * 2, 0
        decay = math.exp(-4 * step / n_steps)
        loss = end_loss + (start_loss - end_loss) * decay
        lr = 3e-4 * min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / n_steps))
        ranks: list[Values] = []
        shared_loss = loss * r.lognormvariate(0, noise)
        norm = r.lognormvariate(0, 0.3) * (5 * decay + 0.4)
        for rank in range(n_ranks):
            data = base_s * 0.02 * r.lognormvariate(0, 0.8)
            forward = (time_s - data) * 0.3 * r.uniform(0.9, 1.1)
            peaks[rank] = max(peaks[rank], 30e9 + 4e9 * r.lognormvariate(0, 0.4))
            ranks.append(
                Values(
                    loss=shared_loss * r.lognormvariate(0, noise / 3),
                    grad_norm=norm,
                    lr=lr,
                    scale=scale,
                    skipped=skipped,
                    time_s=time_s,
                    data_s=data,
                    forward_s=forward,
                    backward_s=max(0.0, time_s - data - forward),
                    allocated=28e9 + 4e9 * r.lognormvariate(0, 0.4),
                    reserved=peaks[rank],
                    rss=12e9 * (1 + 0.2 * min(1.0, step / 60)) + 2e8 * r.random(),
                    when=now + timedelta(milliseconds=rank),
                )
            )
        run.steps.append(ranks)
    return run


def change(run: Run, edit: Callable[[int, int, Values], None]) -> Run:
    """Put a fault in: ``edit`` gets step, rank and values."""
    for step, ranks in enumerate(run.steps):
        for rank, values in enumerate(ranks):
            edit(step, rank, values)
    return run


def slower(run: Run, factor: Callable[[int], float]) -> Run:
    """Make steps take longer, on all ranks alike; time stamps follow."""
    now = START
    for step, ranks in enumerate(run.steps):
        times = factor(step)
        now += timedelta(seconds=ranks[0].time_s * times)
        for values in ranks:
            values.backward_s += values.time_s * (times - 1)
            values.time_s *= times
            values.when = now
    return run


def _stamp(v: Values) -> str:
    return v.when.strftime("%Y-%m-%d %H:%M:%S,") + f"{v.when.microsecond // 1000:03d}"


def _plain(step: int, rank: int, v: Values) -> str:
    return (
        f"{_stamp(v)} INFO trainer rank={rank} step={step} loss={v.loss:.4f} grad_norm={v.grad_norm:.3f} lr={v.lr:.1e} "
        f"tok/s={8192 / v.time_s:.0f} data_ms={v.data_s * 1e3:.1f} fwd_ms={v.forward_s * 1e3:.1f} "
        f"bwd_ms={v.backward_s * 1e3:.1f} allocated={v.allocated / 2**30:.2f}GiB reserved={v.reserved / 2**30:.2f}GiB "
        f"rss={v.rss / 2**20:.0f}MiB"
    )


def _stamps(step: int, rank: int, v: Values) -> str:
    return f"[{_stamp(v)}][rank{rank}] step {step} loss {v.loss:.4f}"


def _megatron(step: int, rank: int, v: Values) -> str:
    if rank:
        return ""
    return (
        f" iteration {step:8d}/    9000 | consumed samples: {step * 8:12d} | elapsed time per iteration (ms): "
        f"{v.time_s * 1e3:.1f} | throughput per GPU (TFLOP/s/GPU): {100 / v.time_s:.1f} | learning rate: {v.lr:.6E} | "
        f"global batch size:     8 | lm loss: {v.loss:.6E} | loss scale: {v.scale:.1f} | "
        f"grad norm: {v.grad_norm:.3f} | number of skipped iterations: {v.skipped:3d} | number of nan iterations:   0 |"
    )


def _trainer(step: int, rank: int, v: Values) -> str:
    return (
        ""
        if rank
        else f"{{'loss': {v.loss:.4f}, 'grad_norm': {v.grad_norm}, 'learning_rate': {v.lr}, 'epoch': {step / 100:.2f}}}"
    )


def _titan(step: int, rank: int, v: Values) -> str:
    gib, speed = v.reserved / 2**30, 1 / v.time_s
    return (
        f"[rank{rank}]:[titan] {_stamp(v)} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {v.loss:7.4f}  "
        f"\x1b[38;2;180;60;0mgrad_norm: {v.grad_norm:7.4f}  "
        f"\x1b[38;2;54;234;195mmemory: {gib:5.2f}GiB({gib / 0.8:.2f}%)  "
        f"\x1b[34mtps: {round(8192 * speed):,}  \x1b[36mtflops: {99 * speed:,.2f}  "
        f"\x1b[35mmfu: {9.9 * speed:.2f}%\x1b[39m"
    )


def _lightning(step: int, rank: int, v: Values) -> str:
    if rank:
        return ""
    pace = f"{v.time_s:.2f}s/it" if v.time_s >= 1 else f"{1 / v.time_s:.2f}it/s"
    return f"Epoch 0:  10%|#    | {step}/9000 [00:12<01:40, {pace}, v_num=0, train_loss={v.loss:.3f}]"


def _json(step: int, rank: int, v: Values) -> str:
    return (
        f'{{"rank": {rank}, "step": {step}, "train/loss": {v.loss}, "step_time": {v.time_s}, '
        f'"memory_allocated": {int(v.allocated)}}}'
    )


FORMS: dict[str, Print] = {
    "plain": _plain, "stamps": _stamps, "megatron": _megatron, "trainer": _trainer, "titan": _titan,
    "lightning": _lightning, "json": _json,
}  # fmt: skip
