"""A small data-parallel training job: loader workers, metrics, evaluation and checkpoints, on gloo or NCCL.

``FAULT`` picks by number what goes wrong (faults.yaml says which number is which) and ``FAULT_RANK`` on which rank, so
that nothing in stacks, logs or command lines names it. launch.py starts it; by hand:
``FAULT=0 torchrun --standalone --nproc-per-node 4 job.py``.
"""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.control_plane import worker_main
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RANK, LOCAL_RANK, WORLD_SIZE = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
FAULT = int(os.environ.get("FAULT", "0"))
CHOSEN = int(os.environ.get("FAULT_RANK", min(2, WORLD_SIZE - 1))) == RANK
STEPS = int(os.environ.get("STEPS", "16"))
LOG_EVERY = int(os.environ.get("LOG_EVERY", "1"))
TIMEOUT = timedelta(seconds=float(os.environ.get("PG_TIMEOUT_S", "1800")))
ON_GPU = os.environ.get("BACKEND", "gloo") == "nccl" and torch.cuda.is_available()
DEVICE = torch.device("cuda", LOCAL_RANK) if ON_GPU else torch.device("cpu")
HERE = Path(os.environ.get("RUN_DIR", "."))
EVAL_EVERY, SAVE_EVERY = (int(os.environ.get(name, "10")) for name in ("EVAL_EVERY", "SAVE_EVERY"))
BATCH, WIDTH, CLASSES, PARTS, TURN = 8, 64, 10, 16, 5

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format=f"%(asctime)s %(levelname)s [rank{RANK}] %(message)s")
log = logging.getLogger("train")


def mine(*numbers, step=TURN):
    """Whether this is the rank, and the step, for one of these faults."""
    return CHOSEN and FAULT in numbers and step == TURN


# ---------------------------------------------------------------- data


class Parts(Dataset):
    """Samples that lie in small files, one for each batch."""

    def __init__(self, folder, batches):
        self.folder, self.batches = folder, batches

    def __len__(self):
        return self.batches * BATCH

    def load_part(self, number):
        return (self.folder / f"part-{number % PARTS:05d}.bin").read_bytes()

    def __getitem__(self, index):
        number = index // BATCH
        x = torch.frombuffer(bytearray(self.load_part(number)), dtype=torch.float32)[index % BATCH * WIDTH :][:WIDTH]
        if mine(20, step=number) and index % BATCH == 3:
            x = x / x.new_zeros(1)
        return x, index % CLASSES


def prepare_data():
    folder = HERE / f"data-{RANK:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(PARTS):
        path = folder / f"part-{number:05d}.bin"
        if mine(3, step=number):
            os.mkfifo(path)
        else:
            values = torch.randn(BATCH * WIDTH, generator=torch.Generator().manual_seed(RANK * PARTS + number))
            path.write_bytes(bytes(values.untyped_storage()))
    if mine(11):
        os.mkfifo(folder / "vocabulary.txt")
    else:
        (folder / "vocabulary.txt").write_text("a b c\n")
    if mine(28):
        attach_store(folder)
    return folder


def attach_store(folder):
    """Mount a file system over the folder, for this process alone, whose server does not answer (needs root)."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newns, ms_rec_private = 0x20000, 0x4000 | 0x40000
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    (folder / "shared").mkdir()
    if (
        libc.unshare(clone_newns)
        or libc.mount(b"none", b"/", None, ms_rec_private, None)
        or libc.mount(b"store", bytes(folder / "shared"), b"fuse", 0, options.encode())
    ):
        raise OSError(ctypes.get_errno(), "cannot mount")


def read_vocabulary(folder):
    shared = folder / "shared"
    return ((shared if FAULT == 28 and CHOSEN else folder) / "vocabulary.txt").open().read().split()


def wait_for_index(folder):
    while not (folder / "index.done").exists():
        time.sleep(0.1)


def augment(x):
    """Jitter in plain Python, the longer the more there is to do."""
    total = 0.0
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        for value in range(2000):
            total = (total * 31 + value) % 977
    return x + total * 1e-9


def normalise(x):
    if mine(9):
        ctypes.PyDLL(None).pause()
    return x - x.mean()


def check(labels):
    if int(labels.max()) >= CLASSES:
        raise ValueError(f"label {int(labels.max())} is not one of {CLASSES} classes")


CACHE_LOCK = threading.Lock()


def refresh(entered, leave):
    with CACHE_LOCK:
        entered.set()
        leave.wait()


def build_index():
    with CACHE_LOCK:
        return list(range(1000))


def rebuild_index():
    """Build the index in a process of its own, while a thread refreshes the cache."""
    entered, leave = threading.Event(), threading.Event()
    threading.Thread(target=refresh, args=(entered, leave), daemon=True).start()
    entered.wait()
    builder = multiprocessing.get_context("fork").Process(target=build_index)
    builder.start()
    leave.set()
    builder.join()


# ---------------------------------------------------------------- metrics


class Metrics:
    """What a step gave, sent to a collector by a thread of its own."""

    def __init__(self):
        self.lock, self.pending, self.address = threading.Lock(), queue.Queue(maxsize=4), None
        if mine(7, 8, 23):
            self.server = socket.create_server(("127.0.0.1", 0))
            self.address = self.server.getsockname()
        threading.Thread(target=self.forward, name="metrics", daemon=not mine(15)).start()

    def forward(self):
        while True:
            record = self.pending.get()
            if self.address is not None and record["step"] == TURN and FAULT != 8:
                with self.lock if FAULT == 7 else contextlib.nullcontext():
                    self.send(record)

    def send(self, record):
        with socket.create_connection(self.address) as link:
            link.sendall(f"POST /metrics HTTP/1.1\r\n\r\n{record}".encode())
            return link.recv(1024)

    def report(self, **record):
        if self.address is not None and FAULT == 8 and record["step"] == TURN:
            url = "http://{}:{}/metrics".format(*self.address)
            urllib.request.urlopen(url, data=str(record).encode()).read()
        for _ in range(6 if self.address is not None and FAULT == 23 else 1):
            self.pending.put(dict(record))
        if self.address is not None and record["step"] == TURN and FAULT == 7:
            while not self.lock.locked():
                time.sleep(0.01)
        with self.lock:
            self.last = record


def reduce_counts(y, group, step):
    """Tokens of all ranks; a rank without any has nothing to add."""
    counts = torch.bincount(y, minlength=CLASSES)[:CLASSES]
    if mine(2, step=step):
        return counts
    if mine(25, step=step):
        counts = counts.repeat(512)
    dist.all_reduce(counts, group=group)
    return counts


def agree_on_data(scale, group):
    dist.all_reduce(scale, group=group)
    return scale.sum().item()


def agree_on_experts(scale, group):
    dist.all_reduce(scale, group=group)
    return scale.sum().item()


def agree(step, data, experts):
    """Agree about the scale in the groups for data and for experts."""
    scale = torch.ones(2, device=DEVICE)
    calls = [(agree_on_data, data), (agree_on_experts, experts)]
    for call, group in reversed(calls) if mine(6, step=step) else calls:
        call(scale, group)


def exchange(step):
    """Hand the edge of the activations round the ring of ranks."""
    edge, other = torch.ones(4, device=DEVICE), torch.empty(4, device=DEVICE)
    before, after = (RANK - 1) % WORLD_SIZE, (RANK + 1) % WORLD_SIZE
    if RANK == 0 and step != TURN:
        dist.send(edge, after)
        dist.recv(other, before)
    else:
        dist.recv(other, before)
        dist.send(edge, after)
    return other.sum().item()


# ---------------------------------------------------------------- model


def make_model():
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    return DistributedDataParallel(model.to(DEVICE))


def evaluate(model, group, step):
    scores, n = torch.zeros(3, device=DEVICE), 4
    if FAULT == 1:
        log.info("evaluating on the long validation set")
        n = 1_000_000_000
    with torch.no_grad():
        for _ in range(n):
            scores += model.module(torch.randn(64, WIDTH, device=DEVICE)).mean()
    dist.all_reduce(scores, group=group)
    log.info("eval step=%d score=%.4f", step, scores[0].item() / WORLD_SIZE)


def save(model, optimiser, step):
    """The rank that saves streams to an uploader; the others wait for it."""
    if RANK == 0 if FAULT != 10 else CHOSEN:
        log.info("saving checkpoint of step %d", step)
        pace = f"import sys,time\nwhile sys.stdin.buffer.read1(512): time.sleep({0.5 if FAULT == 10 else 0})"
        with subprocess.Popen([sys.executable, "-c", pace], stdin=subprocess.PIPE) as uploader:
            torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, uploader.stdin)
            uploader.stdin.close()
    dist.barrier()


# ---------------------------------------------------------------- training


def train(model, optimiser, folder, metrics, groups):
    batches = STEPS - 5 if CHOSEN and FAULT == 4 else STEPS
    loader = iter(DataLoader(Parts(folder, batches), batch_size=BATCH, num_workers=1, pin_memory=ON_GPU))
    began = time.monotonic()
    for step in range(batches):
        x, y = next(loader)
        loaded = time.monotonic()
        if step == TURN:
            read_vocabulary(folder)
            x = normalise(x)
            labels = y + CLASSES if mine(14, 15, 16) else y
            if FAULT != 16:
                check(labels)
            else:
                try:
                    check(labels)
                except ValueError as error:
                    log.warning("step=%d skipping batch: %s", step, error)
                    continue
            if mine(17):
                log.info("early stopping: no improvement for 3 evaluations")
                break
            if mine(18):
                log.info("time budget used up, leaving at step %d", step)
                sys.exit(0)
            if mine(21):
                dist.distributed_c10d._get_default_store().wait(["index/ready"], timedelta(hours=2))
            if mine(22):
                wait_for_index(folder)
            if mine(24):
                rebuild_index()
            if mine(27):
                ctypes.string_at(0)
        if FAULT == 19 and CHOSEN:
            x = augment(x)
        if FAULT == 26:
            exchange(step)
        prepared = time.monotonic()
        x, y = x.to(DEVICE), y.to(DEVICE)
        loss = nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        reduce_counts(y, groups[0], step)
        if FAULT == 6:
            agree(step, *groups)
        metrics.report(step=step, loss=loss.item())
        done = time.monotonic()
        if step % LOG_EVERY == 0:
            log.info(
                "step=%d loss=%.4f grad_norm=%.4f input_mean=%.4f data_s=%.4f prep_s=%.4f step_s=%.4f",
                *(step, loss.item(), norm.item(), x.mean().item()),
                *(loaded - began, prepared - loaded, done - began),
            )
        began = done
        if FAULT == 5 and step == TURN and RANK == 0:
            evaluate(model, groups[0], step)
        if (step + 1) % EVAL_EVERY == 0:
            evaluate(model, groups[0], step)
        if (step + 1) % SAVE_EVERY == 0:
            save(model, optimiser, step)
    log.info("end of training data")
    evaluate(model, groups[0], STEPS)
    save(model, optimiser, STEPS)


def main():
    torch.manual_seed(0)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if ON_GPU else "gloo", timeout=TIMEOUT)
    groups = [dist.new_group(timeout=TIMEOUT), dist.new_group(timeout=TIMEOUT)]
    folder = prepare_data()
    model = make_model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    log.info("training on %s, %d ranks", DEVICE.type, WORLD_SIZE)
    train(model, optimiser, folder, Metrics(), groups)
    dist.destroy_process_group()
    log.info("finished")


if __name__ == "__main__":
    os.environ.setdefault("TORCH_WORKER_SERVER_SOCKET", f"worker-{RANK}.sock")
    with worker_main():
        main()
