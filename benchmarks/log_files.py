"""Generate a log of many ranks that print into one file, with one failure in it. Seeded: the same every time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CULPRIT = 41
MODE = "illegal-memory-access-in-kernel"
_BLOCK_STEPS = 50
_FAILURE = f"""\
Traceback (most recent call last):
  File "/workspace/train.py", line 210, in <module>
    main()
  File "/workspace/train.py", line 181, in main
    loss = model(batch).mean()
  File "/workspace/model.py", line 77, in forward
    return self.gather(x, index)
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING={1}
"""


def write_log(path: Path, size_mb: int, n_ranks: int = 64, *, wordy: bool = False) -> None:
    """Write about ``size_mb`` MB: steps of all ranks interleaved, NCCL's lines, and a failure of rank 41 at the end.

    With ``wordy`` every third line is free text that never comes again.
    """
    rng = random.Random(f"{size_mb} {n_ranks} {wordy}")
    target, written, step = size_mb * 1_000_000, 0, 0
    with path.open("w", encoding="utf-8") as out:
        while written < target:
            block = "".join(_block(rng, step, n_ranks, wordy=wordy))
            step += _BLOCK_STEPS
            out.write(block)
            written += len(block)
        for line in _FAILURE.splitlines():
            out.write(f"[rank{CULPRIT}]: {line}\n")
        for rank in range(n_ranks):
            if rank != CULPRIT:
                out.write(
                    f"[rank{rank}]:[E1130 20:10:00.{rank:06d}000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog "
                    f"caught collective operation timeout: WorkNCCL(SeqNum={9 * step}, OpType=ALLREDUCE, "
                    "NumelIn=4194304, NumelOut=4194304, Timeout(ms)=600000) ran for 600012 milliseconds before "
                    "timing out.\n"
                )


def _block(rng: random.Random, first_step: int, n_ranks: int, *, wordy: bool) -> Iterator[str]:
    for step in range(first_step, first_step + _BLOCK_STEPS):
        ranks = list(range(n_ranks))
        rng.shuffle(ranks)
        clock = f"2026-11-30 {12 + step // 36000 % 8:02d}:{step // 600 % 60:02d}:{step // 10 % 60:02d}"
        for rank in ranks:
            yield (
                f"[rank{rank}]: {clock},{rng.randrange(1000):03d} INFO train.py:88 step {step} "
                f"loss {2 + rng.random():.4f} grad_norm {rng.random():.3f} lr 3.0e-04 tokens/s "
                f"{rng.randrange(9000, 12000)} mem {rng.randrange(50, 60)}.{rng.randrange(10)}GiB\n"
            )
            if rank % 4 == 0:
                yield (
                    f"node{rank // 8:02d}:{4000 + rank}:{5000 + rank} [{rank % 8}] NCCL INFO Channel {step % 32:02d}/0 "
                    f": {rank}[{rank % 8}] -> {(rank + 1) % n_ranks}[{(rank + 1) % 8}] via P2P/CUMEM/read\n"
                )
            if wordy and rng.random() < 0.6:
                yield f"[rank{rank}]: read shard {rng.getrandbits(64):x} of {rng.choice('abcdef')}{rng.random()}.tar\n"
