"""Small language-model trainer: replicated, sharded, tensor-parallel and expert-parallel recipes.

torchrun --nproc-per-node 2 train.py     (FAULT=<recipe number>, PG_TIMEOUT_S, BACKEND=nccl|gloo)
"""

import contextlib
import ctypes
import datetime
import json
import logging
import math
import os
import queue
import signal
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

BORN = time.monotonic()
RECIPE = int(os.environ.get("FAULT", "123"))
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
LOCAL = int(os.environ.get("LOCAL_RANK", "0"))
BACKEND = os.environ.get("BACKEND", "nccl")
ON_GPU = BACKEND == "nccl"
DEVICE = torch.device("cuda", LOCAL) if ON_GPU else torch.device("cpu")
PATIENCE = datetime.timedelta(seconds=float(os.environ.get("PG_TIMEOUT_S", "20")))
WORK = f"/tmp/run-{os.environ.get('MASTER_PORT', '0')}"
FULL = ON_GPU or os.environ.get("FULL_SIZE") == "1"

VOCAB, WIDTH, HEADS, DEPTH, LENGTH = (4096, 512, 8, 4, 256) if FULL else (512, 64, 4, 2, 32)
BATCH = 8
MARKER, PAD = 3, 0

BASE = {
    "kind": "ddp", "log": "kv", "steps": 40, "accum": 1, "workers": 2, "lr": 1e-3, "eval_every": 0, "save_every": 0,
    "spot": None, "what": None, "at": -1, "who": -1, "limit": 0.0, "norm": True, "optim": "adamw",
}  # fmt: skip
RECIPES = {
    101: {"spot": (7, 1), "what": "plain", "tally": True, "accum": 1},
    102: {"kind": "fsdp", "log": "hf", "steps": 16, "shard_rows": {0: 9, 1: 12}},
    103: {"easy": 1, "eval_below": 0.05, "steps": 200},
    104: {"kind": "tp", "log": "meg", "steps": 60, "report_every": 10, "mean_report": True},
    105: {"log": "hf", "spot": (9, 1), "what": "remote", "steps": 60},
    106: {"kind": "fsdp", "workers": 0, "spot": (8, 0), "what": "blob"},
    107: {"accum": 2, "spot": (9, 0), "what": "empty", "steps": 12, "save_every": 12},
    108: {"kind": "moe", "log": "meg", "at": 7, "who": 1, "what": "splits"},
    109: {"kind": "pairs", "log": "hf", "at": 8, "who": 0},
    110: {"kind": "tp", "log": "meg", "at": 8, "who": 1, "what": "reverse"},
    111: {"kind": "fsdp", "log": "hf", "steps": 60, "track": 0},
    112: {"kind": "tp", "log": "meg", "at": 9, "who": 1, "what": "prefetch"},
    113: {"kind": "fsdp", "log": "hf", "steps": 4000, "at": 6, "who": 1, "send": signal.SIGSTOP},
    114: {"log": "hf", "steps": 30, "save_every": 5, "pipe_at": 10},
    115: {"kind": "fsdp", "log": "hf", "spot": (7, 1), "what": "source"},
    116: {"kind": "tp", "log": "meg", "global_batch": 36},
    117: {"kind": "tp", "log": "meg", "steps": 4000, "at": 8, "who": 0, "send": signal.SIGKILL},
    118: {"spot": (6, 1), "what": "packed"},
    119: {"spot": (6, 0), "what": "target"},
    120: {"kind": "fsdp", "log": "hf", "spot": (8, 1), "what": "added"},
    121: {"spot": (9, 0), "what": "book", "cap_gib": 4.0},
    122: {"log": "hf", "steps": 30, "norm": False, "optim": "sgd", "lr": 20.0},
    123: {"kind": "fsdp", "log": "hf", "steps": 40, "eval_every": 10, "save_every": 20, "limit": 26.0},
    124: {"accum": 80 if ON_GPU else 4, "steps": 400, "batch": 16, "limit": 42.0, "eval_every": 20},
    125: {"steps": 100, "limit": 30.0, "timing": True, "slow": 1},
}
CFG = {**BASE, **RECIPES[RECIPE]}
BATCH = CFG.get("batch", BATCH)

log = logging.getLogger("trainer")
if CFG["log"] == "kv":
    LINE = f"%(asctime)s %(levelname)s %(name)s rank={RANK} %(message)s"
elif CFG["log"] == "hf":
    LINE = "[%(levelname)s|%(name)s.py:%(lineno)d] %(asctime)s >> %(message)s"
else:
    LINE = "%(message)s"
logging.basicConfig(level=logging.INFO if RANK == 0 or CFG["log"] == "kv" else logging.WARNING, format=LINE)
for chatty in ("torch", "asyncio"):
    logging.getLogger(chatty).setLevel(logging.WARNING)


# ---------------------------------------------------------------- data


class Tokens(Dataset):
    """Sequences of a noisy affine rule; each row also carries the id of the corpus that it came from."""

    def __init__(self, rows, length=LENGTH, seed=0):
        self.rows, self.length, self.seed = rows, length, seed
        self.blob = self.address = None

    def __len__(self):
        return self.rows

    def special(self, row):
        if CFG["spot"] is None or self.seed:
            return False
        batch, rank = CFG["spot"]
        return row % WORLD == rank and row // WORLD // BATCH == batch

    def download(self, row):
        with socket.create_connection(self.address) as link:
            link.sendall(f"GET /rows/{row}\r\n\r\n".encode())
            return link.recv(1 << 16)

    def __getitem__(self, row):
        what = CFG["what"] if self.special(row) else None
        length = self.length
        if what == "book":
            length *= 32 if ON_GPU else 8
        g = torch.Generator().manual_seed(row + 7919 * self.seed)
        if CFG.get("easy") == row % WORLD:
            ids = torch.full((length + 1,), 17)
        else:
            value = int(torch.randint(4, VOCAB, (1,), generator=g))
            values = [value]
            for noise in torch.randint(0, 3, (length,), generator=g).tolist():
                value = 4 + (5 * value + noise) % (VOCAB - 4)
                values.append(value)
            ids = torch.tensor(values)
        ids[length // 2] = MARKER
        corpus = row % 4
        if what == "plain":
            ids[ids == MARKER] = 5
        elif what == "remote":
            ids[1] = self.download(row)[0] % VOCAB
        elif what == "blob":
            with open(self.blob, "rb") as f:
                ids[1] = f.read(8)[0] % VOCAB
        elif what == "empty":
            ids[:] = PAD
        elif what == "source":
            corpus = 11
        elif what == "added":
            ids[length // 3] = VOCAB + 2
        labels = ids[1:].clone()
        if what == "target":
            labels[length // 4] = VOCAB + 5
        elif what == "added":
            labels[labels >= VOCAB] = -100
        return {"ids": ids[:-1], "labels": labels, "corpus": corpus}


def make_loader(data, sampler=None):
    n = CFG["workers"]
    return DataLoader(
        data, batch_size=BATCH, sampler=sampler, num_workers=n, pin_memory=ON_GPU, drop_last=True,
        prefetch_factor=2 if n else None, persistent_workers=n > 0,
    )  # fmt: skip


def train_loader():
    data = Tokens(CFG["steps"] * CFG["accum"] * BATCH * WORLD)
    if CFG["what"] == "remote" and RANK == CFG["spot"][1]:
        data.server = socket.create_server(("127.0.0.1", 0), backlog=16)
        data.address = data.server.getsockname()
    if CFG["what"] == "blob":
        data.blob = f"{WORK}/part-{RANK:05d}.bin"
        if RANK == CFG["spot"][1]:
            os.mkfifo(data.blob)
    if "shard_rows" in CFG:
        mine = [r for r in range(len(data)) if r % WORLD == RANK][: CFG["shard_rows"][RANK] * BATCH]
        return make_loader(Subset(data, mine))
    return make_loader(data, DistributedSampler(data, WORLD, RANK, shuffle=False))


def valid_loader():
    data = Tokens(4 * BATCH * WORLD, seed=1)
    return DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, WORLD, RANK, shuffle=False))


def unpack(batch):
    if bool((batch["ids"] == PAD).all(dim=1).any()):
        raise ValueError("row has no tokens left after filtering")
    return batch["ids"].to(DEVICE, non_blocking=True), batch["labels"].to(DEVICE, non_blocking=True)


# ---------------------------------------------------------------- model


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH) if CFG["norm"] else nn.Identity()
        self.norm2 = nn.LayerNorm(WIDTH) if CFG["norm"] else nn.Identity()
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    mixture = {0: 1.0, 1: 1.0, 2: 0.5, 3: 0.25}

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH) if CFG["norm"] else nn.Identity()
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def weights(self, corpus):
        try:
            return torch.tensor([self.mixture[int(c)] for c in corpus], device=DEVICE)
        except KeyError as e:
            raise RuntimeError(f"no mixture weight for corpus ids {sorted({int(c) for c in corpus})}") from e

    def forward(self, ids, labels, corpus=None):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none", ignore_index=-100)
        loss = loss.view(len(ids), -1).mean(1)
        if corpus is not None:
            w = self.weights(corpus)
            return (loss * w).sum() / w.sum()
        return loss.mean()


# ---------------------------------------------------------------- reporting, saving, evaluation


class Report:
    def __init__(self):
        self.last = time.monotonic()
        if CFG["log"] == "hf" and RANK == 0:
            log.info("***** Running training *****")
            log.info("  Instantaneous batch size per device = %d", BATCH)
            log.info("  Gradient Accumulation steps = %d", CFG["accum"])
            log.info("  Continuing training from global step 0 of %d", CFG["steps"])
        elif CFG["log"] == "kv":
            log.info("model ready, starting at step 0 of %d (%s)", CFG["steps"], CFG["kind"])
        elif CFG["log"] == "meg" and RANK == 0:
            log.info("training starts at iteration 0 of %d ...", CFG["steps"])

    def __call__(self, step, loss, norm, lr, extra=""):
        now = time.monotonic()
        took, self.last = now - self.last, now
        if CFG["log"] == "kv":
            rate = BATCH * LENGTH * CFG["accum"] / took
            log.info("step=%d/%d loss=%.4f grad_norm=%.3f lr=%.1e tok/s=%.0f%s", step, CFG["steps"], loss, norm, lr, rate, extra)
        elif CFG["log"] == "hf" and RANK == 0:
            row = {"loss": round(loss, 4), "grad_norm": round(norm, 4), "learning_rate": lr, "epoch": round(step / CFG["steps"], 2)}
            print(row, flush=True)
        elif CFG["log"] == "meg" and RANK == WORLD - 1:
            print(
                f" iteration {step:8d}/{CFG['steps']:8d} | consumed samples: {step * BATCH:12d} | elapsed time per iteration (ms): "
                f"{took * 1000:.1f} | learning rate: {lr:.6E} | global batch size: {BATCH:5d} | lm loss: {loss:.6E} | "
                f"loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |",
                flush=True,
            )


class Tracker:
    """Sends metric rows to a collector; every row is acknowledged."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0), backlog=4)
        self.rows = queue.Queue(maxsize=8)
        self.link = socket.create_connection(self.server.getsockname())
        threading.Thread(target=self.upload, name="tracker", daemon=True).start()

    def upload(self):
        while True:
            self.link.sendall(json.dumps(self.rows.get()).encode() + b"\n")
            self.link.recv(64)

    def log_metrics(self, **row):
        self.rows.put(row)


class Prefetch:
    """Reads the next part of the corpus in a thread while the current one is used."""

    def __init__(self, parts):
        self.parts, self.ready = parts, threading.Event()
        self.part = None

    def load(self, number):
        if number in self.parts:
            g = torch.Generator().manual_seed(number)
            self.part = torch.randint(4, VOCAB, (BATCH, LENGTH + 1), generator=g)
            self.ready.set()

    def take(self, number):
        self.ready.clear()
        threading.Thread(target=self.load, args=(number,), name="reader", daemon=True).start()
        self.ready.wait()
        return self.part


@torch.no_grad()
def evaluate(model):
    model.eval()
    total = torch.zeros(2, device=DEVICE)
    for batch in valid_loader():
        ids, labels = unpack(batch)
        total += torch.stack([model(ids, labels), torch.ones((), device=DEVICE)])
    dist.all_reduce(total)
    model.train()
    return float(total[0] / total[1])


def save(model, step):
    if CFG["kind"] == "fsdp":
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    else:
        state = model.state_dict()
    if RANK == 0:
        path = f"{WORK}/checkpoint-{step}.pt"
        if step == CFG.get("pipe_at"):
            os.mkfifo(path)
        log.info("Saving model checkpoint to %s", path)
        with open(path, "wb") as f:
            torch.save({"model": state, "step": step}, f)
        with contextlib.suppress(OSError):
            os.remove(path)
    dist.barrier()


def over_budget():
    if not CFG["limit"]:
        return False
    flag = torch.tensor([float(time.monotonic() - BORN > CFG["limit"])], device=DEVICE)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def later(step):
    if step == CFG["at"] and RANK == CFG["who"] and "send" in CFG:
        threading.Timer(0.2, os.kill, (os.getpid(), CFG["send"])).start()


def make_optimizer(model):
    if CFG["optim"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=CFG["lr"], momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=CFG["lr"])


def set_lr(opt, step):
    lr = CFG["lr"] * min(1.0, (step + 1) / 10)
    for group in opt.param_groups:
        group["lr"] = lr
    return lr


def unpack_frame(batch):
    """Rows may come as packed frames of the native reader; address 0 is `not packed`."""
    if CFG["what"] == "packed" and RANK == CFG["spot"][1] and batch == CFG["spot"][0]:
        return ctypes.string_at(8, 64)
    return b""


# ---------------------------------------------------------------- recipes


def fit_replicated():
    data_group = dist.new_group(list(range(WORLD)), timeout=PATIENCE)
    torch.manual_seed(0)
    net = Decoder().to(DEVICE)
    model = DistributedDataParallel(net, device_ids=[LOCAL] if ON_GPU else None, process_group=data_group)
    opt = make_optimizer(net)
    if "cap_gib" in CFG and ON_GPU:
        whole = torch.cuda.get_device_properties(DEVICE).total_memory
        torch.cuda.set_per_process_memory_fraction(CFG["cap_gib"] * 2**30 / whole)
    report = Report()
    step, lr = 0, set_lr(opt, 0)
    evaluated = False
    seen = torch.zeros(VOCAB, WIDTH, device=DEVICE)
    for i, batch in enumerate(train_loader()):
        begun = time.monotonic()
        try:
            ids, labels = unpack(batch)
        except ValueError as e:
            log.warning("batch %d not used: %s", i, e)
            continue
        unpack_frame(i)
        if CFG.get("slow") == RANK:
            time.sleep(0.2)
        prepared = time.monotonic()
        if CFG.get("tally"):
            rows = (ids == MARKER).any(1)
            if rows.any():
                usage = torch.zeros_like(seen)
                usage[:, 0] = torch.bincount(ids[rows].flatten(), minlength=VOCAB).float()
                dist.all_reduce(usage)
                seen += usage
        boundary = (i + 1) % CFG["accum"] == 0
        with contextlib.nullcontext() if boundary else model.no_sync():
            loss = model(ids, labels) / CFG["accum"]
            if ON_GPU and CFG.get("timing"):
                torch.cuda.synchronize()
            forwarded = time.monotonic()
            loss.backward()
        if not boundary:
            continue
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        value = loss.item() * CFG["accum"]
        extra = ""
        if CFG.get("timing"):
            done = time.monotonic()
            extra = f" prep_ms={1e3 * (prepared - begun):.0f} fwd_ms={1e3 * (forwarded - prepared):.0f} bwd_ms={1e3 * (done - forwarded):.0f}"
        if "cap_gib" in CFG:
            extra = f" shape={tuple(ids.shape)}"
        report(step, value, float(norm), lr, extra)
        later(step)
        lr = set_lr(opt, step)
        if "eval_below" in CFG and not evaluated and value < CFG["eval_below"] * math.log(VOCAB):
            evaluated = True
            log.info("target loss reached, running validation")
            log.info("validation loss=%.4f", evaluate(net))
        if CFG["eval_every"] and step % CFG["eval_every"] == 0:
            found = evaluate(net)
            log.info("step=%d/%d eval_loss=%.4f", step, CFG["steps"], found)
        if CFG["save_every"] and CFG["accum"] == 1 and step % CFG["save_every"] == 0:
            save(net, step)
        if over_budget():
            break
    if CFG["accum"] > 1 and CFG["save_every"]:
        log.info("epoch finished after %d updates", step)
        save(net, step)


def fit_sharded():
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = Decoder().to(DEVICE)
    mesh = DeviceMesh.from_group(dist.group.WORLD, DEVICE.type)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = make_optimizer(model)
    report = Report()
    tracker = Tracker() if CFG.get("track") == RANK else None
    lr, step = set_lr(opt, 0), 0
    for batch in train_loader():
        ids, labels = unpack(batch)
        loss = model(ids, labels, batch["corpus"])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        value = loss.item()
        report(step, value, norm.item(), lr)
        if tracker is not None:
            tracker.log_metrics(step=step, loss=value, lr=lr)
        later(step)
        lr = set_lr(opt, step)
        if CFG["eval_every"] and step % CFG["eval_every"] == 0:
            found = evaluate(model)
            if RANK == 0:
                print({"eval_loss": round(found, 4), "epoch": round(step / CFG["steps"], 2)}, flush=True)
        if CFG["save_every"] and step % CFG["save_every"] == 0:
            save(model, step)
        if over_budget():
            break
    if "shard_rows" in CFG:
        log.info("Training completed after %d updates", step)
    dist.barrier()
    if not CFG["save_every"]:
        save(model, step)


class ToModel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class FromModel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ParallelMLP(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH // WORLD)
        self.down = nn.Linear(4 * WIDTH // WORLD, WIDTH, bias=False)

    def forward(self, x):
        y = ToModel.apply(self.norm(x), self.group)
        return x + FromModel.apply(self.down(F.gelu(self.up(y))), self.group)


class ParallelModel(nn.Module):
    def __init__(self, group):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        torch.manual_seed(100 + RANK)
        self.layers = nn.ModuleList(ParallelMLP(group) for _ in range(DEPTH))

    def forward(self, ids, labels):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def sync_shared_grads(model, pairs):
    for params, group in pairs:
        for p in params:
            dist.all_reduce(p.grad, group=group)
            p.grad /= WORLD


def training_log(step, loss, norm, lr, report):
    if CFG.get("mean_report") and RANK == 0 and step % CFG["report_every"] == 0:
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
        print(f"average loss over {WORLD} ranks: {loss.item() / WORLD:.4f}", flush=True)
    report(step, loss.item(), norm, lr)


def check_batch_sizes():
    total, micro, accum = CFG.get("global_batch", BATCH), BATCH, CFG["accum"]
    if total % (micro * accum):
        raise ValueError(
            f"global batch size ({total}) is not divisible by micro batch size ({micro}) times "
            f"gradient accumulation ({accum}) times data parallel size (1)"
        )


def fit_tensor_parallel():
    check_batch_sizes()
    tensor_group = dist.new_group(list(range(WORLD)), timeout=PATIENCE)
    embed_group = dist.new_group(list(range(WORLD)), timeout=PATIENCE)
    model = ParallelModel(tensor_group).to(DEVICE)
    opt = make_optimizer(model)
    known = set(range(CFG["steps"]))
    if CFG["what"] == "prefetch" and RANK == CFG["who"]:
        known.discard(CFG["at"])
    parts = Prefetch(known)
    report = Report()
    shared = [
        ([layer.norm.weight for layer in model.layers] + [layer.norm.bias for layer in model.layers], tensor_group),
        ([model.embed.weight, model.head.weight], embed_group),
    ]
    for step in range(CFG["steps"]):
        rows = parts.take(step).to(DEVICE)
        lr = set_lr(opt, step)
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        odd = CFG["what"] == "reverse" and RANK == CFG["who"] and step == CFG["at"]
        sync_shared_grads(model, shared[::-1] if odd else shared)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        opt.step()
        opt.zero_grad(set_to_none=True)
        later(step)
        training_log(step + 1, loss.detach(), norm, lr, report)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive, group):
        ctx.send, ctx.receive, ctx.group = send, receive, group
        out = x.new_empty(sum(receive), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.receive, group=ctx.group)
        return out, None, None, None


class ExpertLayer(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.router = nn.Linear(WIDTH, WORLD)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, step):
        half = len(x) // WORLD
        scores = self.router(x).softmax(-1)
        order = (scores[:, 0] - scores[:, -1]).argsort(descending=True)
        send = [half] * WORLD
        receive = [half] * WORLD
        if step == CFG["at"] and RANK == CFG["who"]:
            receive[0] += half // 2
        tokens = Exchange.apply(x[order], send, receive, self.group)
        load = torch.tensor([float(len(tokens))], device=DEVICE)
        dist.all_reduce(load, op=dist.ReduceOp.MAX)
        if load.item() > 4 * len(x):
            log.warning("expert overload at iteration %d", step)
        back = Exchange.apply(self.expert(tokens), receive, send, self.group)
        y = torch.zeros_like(x).index_copy(0, order, back)
        return x + y * scores.max(-1, keepdim=True).values


def fit_experts():
    expert_group = dist.new_group(list(range(WORLD)), timeout=PATIENCE)
    torch.manual_seed(0)
    embed = nn.Embedding(VOCAB, WIDTH).to(DEVICE)
    head = nn.Linear(WIDTH, VOCAB, bias=False).to(DEVICE)
    layers = nn.ModuleList(ExpertLayer(expert_group) for _ in range(2)).to(DEVICE)
    model = nn.ModuleList([embed, head, layers])
    opt = make_optimizer(model)
    report = Report()
    rows = 8192 if ON_GPU else 256
    for step in range(CFG["steps"]):
        g = torch.Generator().manual_seed(step * WORLD + RANK)
        ids = torch.randint(4, VOCAB, (rows,), generator=g).to(DEVICE)
        lr = set_lr(opt, step)
        x = embed(ids)
        for layer in layers:
            x = layer(x, step)
        loss = F.cross_entropy(head(x), (ids * 5 + 1) % VOCAB)
        loss.backward()
        for p in (embed.weight, head.weight):
            dist.all_reduce(p.grad)
            p.grad /= WORLD
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        opt.step()
        opt.zero_grad(set_to_none=True)
        report(step + 1, loss.item(), norm, lr)


def gather_features(local):
    everything = local.new_empty(WORLD * len(local), local.shape[1])
    dist.all_gather_into_tensor(everything, local.detach().contiguous())
    return everything


def fit_pairs():
    torch.manual_seed(0)
    wide = 1024 if ON_GPU else 64
    left = nn.Sequential(nn.Linear(256, wide), nn.GELU(), nn.Linear(wide, wide)).to(DEVICE)
    right = nn.Sequential(nn.Linear(256, wide), nn.GELU(), nn.Linear(wide, wide)).to(DEVICE)
    model = nn.ModuleList([left, right])
    opt = make_optimizer(model)
    report = Report()
    usual = 8192 if ON_GPU else 64
    for step in range(CFG["steps"]):
        rows = 4 if step == CFG["at"] and RANK == CFG["who"] else usual
        g = torch.Generator().manual_seed(step * WORLD + RANK)
        base = torch.randn(rows, 256, generator=g)
        a = F.normalize(left(base.to(DEVICE)), dim=-1)
        b = F.normalize(right((base + 0.1 * torch.randn(rows, 256, generator=g)).to(DEVICE)), dim=-1)
        bank = gather_features(b)
        keys = torch.cat([b, bank[: RANK * rows], bank[(RANK + 1) * rows :]])
        loss = F.cross_entropy(a @ keys.T / 0.1, torch.arange(rows, device=DEVICE))
        lr = set_lr(opt, step)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= WORLD
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        opt.step()
        opt.zero_grad(set_to_none=True)
        report(step + 1, loss.item(), norm, lr)


def main():
    torch.set_num_threads(1)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(BACKEND, timeout=PATIENCE, device_id=DEVICE if ON_GPU else None)
    if RANK == 0:
        os.makedirs(WORK, exist_ok=True)
        for name in os.listdir(WORK):
            os.remove(f"{WORK}/{name}")
    dist.barrier()
    recipe = {
        "ddp": fit_replicated, "fsdp": fit_sharded, "tp": fit_tensor_parallel, "moe": fit_experts, "pairs": fit_pairs,
    }[CFG["kind"]]  # fmt: skip
    recipe()
    dist.barrier()
    if RANK == 0:
        log.info("done in %.1f s", time.monotonic() - BORN)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
