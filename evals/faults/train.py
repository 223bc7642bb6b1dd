"""A small two-rank training job that can be made to fail, to record what such a failure leaves behind.

``FAULT`` picks the failure by number (faults.yaml says which is which), so that nothing in the recording names it.
Run through record.py, or by hand: ``FAULT=0 torchrun --nproc-per-node 2 train.py``.
"""

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FAULT = int(os.environ["FAULT"])
RANK = int(os.environ["RANK"])
TIMEOUT_S = float(os.environ.get("PG_TIMEOUT_S", "16"))
DEVICE = torch.device("cuda", 0 if FAULT == 30 else int(os.environ["LOCAL_RANK"]))
STEPS = int(os.environ.get("STEPS", "8"))


def log(message):
    print(f"[rank{RANK}] {message}", flush=True)


class Samples(Dataset):
    def __init__(self, count, block_at=None):
        self.count, self.block_at = count, block_at

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.block_at:
            path = f"/tmp/pipe-{os.getpid()}"
            os.mkfifo(path)
            Path(path).read_bytes()
        if FAULT == 24 and RANK == 1 and index == 20:
            raise KeyError("input_ids")
        return torch.randn(256), index % 10


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 256)
        self.body = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU())
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.body(x + self.embed.weight[0]))


def setup():
    torch.cuda.set_device(DEVICE)
    if FAULT == 31 and RANK == 1:
        time.sleep(600)
    dist.init_process_group("nccl", timeout=timedelta(seconds=TIMEOUT_S))


def wrap():
    return DistributedDataParallel(Model().to(DEVICE), bucket_cap_mb=1)


def batch():
    return torch.randn(8, 256, device=DEVICE), torch.randint(0, 10, (8,), device=DEVICE)


def optimise(model, optimiser, step, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    log(f"step {step} loss {loss.item():.4f}")
    return loss


def evaluate(step):
    total = torch.ones(3, device=DEVICE)
    dist.all_reduce(total)
    log(f"evaluated at step {step}: {total[0].item():.1f}")


def save_checkpoint():
    dist.barrier()
    if RANK == 0:
        time.sleep(0.05)
    dist.barrier()


def fit():
    """The ordinary loop, with the faults that happen inside it."""
    model = wrap()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = STEPS
    if FAULT in (3, 4):
        steps = STEPS - 2 if RANK == 0 else STEPS
    if FAULT == 5:
        steps = STEPS - 1 if RANK == 1 else STEPS
    loader = None
    if FAULT in (9, 24, 38):
        loader = iter(
            DataLoader(Samples(64, block_at=40 if RANK == 0 and FAULT == 9 else None), batch_size=8, num_workers=2)
        )
    for step in range(steps):
        x, y = batch()
        if loader is not None:
            a, b = next(loader)
            x, y = a.to(DEVICE), b.to(DEVICE)
        if FAULT == 1 and RANK == 0 and step == 4 and x.mean() < 10:
            log(f"step {step} loss above threshold, not used")
            continue
        if FAULT == 10 and RANK == 1 and step == 5:
            os.mkfifo(f"/tmp/data-{os.getpid()}")
            Path(f"/tmp/data-{os.getpid()}").read_bytes()
        if FAULT == 11 and RANK == 1 and step == 5:
            while not Path("/tmp/run/ready-flag").exists():
                time.sleep(0.5)
        if FAULT == 12 and RANK == 0 and step == 5:
            table = {}
            while True:
                for i in range(100000):
                    table[i % 977] = table.get(i % 977, 0) + i
        if FAULT == 13 and RANK == 1 and step == 5:
            os.kill(os.getpid(), signal.SIGSTOP)
        if FAULT == 14 and RANK == 0 and step == 4:
            try:
                raise ValueError("could not decode sample 88")
            except ValueError as error:
                log(f"error: {error}; skipping this batch")
                continue
        if FAULT == 15 and RANK == 1 and step == 5:
            log("early stopping: no improvement for 3 evaluations")
            break
        if FAULT == 16 and RANK == 1 and step == 5:
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        if FAULT == 20 and RANK == 0 and step == 4:
            y = y + 10
        if FAULT == 21 and RANK == 1 and step == 4:
            model.module.embed(torch.tensor([64 + step], device=DEVICE)).sum().item()
        if FAULT == 22 and RANK == 1 and step == 4:
            import ctypes

            ctypes.string_at(0)
        if FAULT == 23 and RANK == 0 and step == 4:
            try:
                {}["weights"]
            except KeyError as error:
                raise RuntimeError("cannot build the batch") from error
        if FAULT == 25 and RANK == 1 and step == 4:
            os._exit(3)
        if FAULT == 32 and RANK == 1 and step == 5:
            import ctypes

            ctypes.PyDLL(None).sleep(300)
        if FAULT == 36 and RANK == 1 and step == 4:
            threading.Thread(target=time.sleep, args=(300,)).start()
            raise IndexError("sample 4711 has no labels")
        if FAULT == 44 and step == 4:
            for _ in range(3 if RANK == 0 else 2):
                nn.functional.cross_entropy(model(x), y).backward()
        if FAULT == 46 and RANK == 1 and step == 5:
            dist.distributed_c10d._get_default_store().wait(["prepared"], timedelta(seconds=300))
        if FAULT == 26 and RANK == 0 and step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == 27:
            x = x[:, :255]
        optimise(model, optimiser, step, x, y)
        if FAULT == 2 and RANK == 0 and step == 5:
            evaluate(step)
        if FAULT == 40:
            time.sleep(1.0)
    if FAULT == 45:
        if RANK == 0:
            log("saving the last checkpoint")
            dist.barrier()
        return
    if FAULT == 3:
        log("end of epoch 0")
        evaluate(steps)
        return
    if FAULT == 4 and RANK == 0:
        log("data exhausted, finished")
        time.sleep(45)
        return
    if FAULT == 38:
        evaluate(steps)
    log("training done")
    save_checkpoint()


def raw():
    """Plain collectives, where ranks disagree about one of them."""
    a, b = torch.ones(1 << 22 if FAULT == 6 else 4096, device=DEVICE), torch.ones(4096, device=DEVICE)
    first, second = (dist.new_group([0, 1]), dist.new_group([0, 1])) if FAULT == 7 else (None, None)
    for step in range(STEPS):
        odd = step == 5
        if FAULT == 6 and odd and RANK == 1:
            dist.broadcast(b[:1024], 0)
            dist.all_reduce(a)
        elif FAULT == 17 and odd:
            dist.all_reduce(a[: 4096 if RANK == 0 else 2048])
        elif FAULT == 18 and odd and RANK == 1:
            dist.all_reduce(a.to(torch.bfloat16))
            dist.broadcast(b[:1024], 0)
        elif FAULT == 39:
            shard = a[: 2048 if odd and RANK == 0 else 1024]
            dist.all_gather_into_tensor(torch.empty(2 * len(shard), device=DEVICE), shard)
        elif FAULT == 8:
            if odd:
                dist.recv(a, 1 - RANK)
            elif RANK == 0:
                dist.send(a, 1)
                dist.recv(b, 1)
            else:
                dist.recv(a, 0)
                dist.send(b, 0)
        elif FAULT == 7 and odd:
            for group in (first, second) if RANK == 0 else (second, first):
                dist.all_reduce(a, group=group)
                torch.cuda.synchronize()
        elif FAULT == 7:
            dist.all_reduce(a, group=first)
            dist.all_reduce(a, group=second)
        elif FAULT == 19 and odd and RANK == 1:
            pass
        else:
            dist.all_reduce(a)
            dist.broadcast(b[:1024], 0)
        torch.cuda.synchronize()
        log(f"iteration {step} sum {a[0].item():.1f}")
    log("finished")


class TwoTowers(nn.Module):
    """A text body and an image tower that a batch without images does not need."""

    def __init__(self):
        super().__init__()
        self.text = nn.Linear(256, 256)
        self.image = nn.Linear(256, 256)
        self.head = nn.Linear(256, 10)

    def forward(self, x, with_image):
        x = self.text(x)
        return self.head(x + self.image(x) if with_image else x)


def shard():
    """FSDP2, where a batch of rank 1 makes it leave out one tower."""
    from torch.distributed.fsdp import fully_shard

    model = TwoTowers().to(DEVICE)
    for part in (model.text, model.image, model.head):
        fully_shard(part)
    fully_shard(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x, y = batch()
        loss = nn.functional.cross_entropy(model(x, with_image=not (RANK == 1 and step == 5)), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        log(f"step {step} loss {loss.item():.4f}")


def main():
    torch.manual_seed(0)
    setup()
    (shard if FAULT == 43 else raw if FAULT in (6, 7, 8, 17, 18, 19, 39) else fit)()
    if FAULT != 4:
        dist.destroy_process_group()
    log("finished")


if __name__ == "__main__":
    main()
