"""Buffers beside the model: chunks of hidden states, prefetched parts, staged copies."""

import torch
from loop import make_batch, make_model, report, update
from setting import DEVICE, MEMORY, ON_GPU, cannot, floats, log, shape


class Chunks:
    """Hidden states of documents: long ones first, then short ones of which every other one is kept."""

    def fill_long(self, count, size_mib):
        self.held = [torch.empty(floats(size_mib), device=DEVICE) for _ in range(count)]

    def fill_short(self, count, size_mib):
        self.held = None
        short = [torch.empty(floats(size_mib), device=DEVICE) for _ in range(count)]
        self.held = short[::2]


def pack(size_mib):
    """One packed batch of what was left over."""
    return torch.empty(floats(size_mib), device=DEVICE)


def train_on_chunks(steps=4, long=(28, 96), short=(56, 40), packed_mib=400):
    sizes = shape()
    model, optimiser = make_model(sizes)
    chunks, packed = Chunks(), None
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes)))
        if step == 1:
            chunks.fill_long(*long)
        elif step == 2:
            chunks.fill_short(*short)
            packed = pack(packed_mib)
    log(f"packed {packed.numel()} numbers")
    MEMORY.dump()


class Prefetcher:
    """Reads parts on a stream of its own; of each part a small index stays."""

    def __init__(self):
        self.stream = torch.cuda.Stream() if ON_GPU else None
        self.indexes = []

    def load(self, parts):
        with torch.cuda.stream(self.stream):
            raw = []
            for _ in range(parts):
                raw += [self.read_half(), self.read_half()]
                self.indexes.append(self.make_index())
            for number, index in enumerate(self.indexes):
                index.copy_(raw[2 * number][: len(index)]).add_(raw[2 * number + 1][: len(index)])

    def read_half(self):
        return torch.empty(floats(9), device=DEVICE).fill_(1.0)

    def make_index(self):
        return torch.empty(floats(1.5), device=DEVICE)


def train_after_prefetch(steps=4, parts=110, **changes):
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    prefetcher = Prefetcher()
    prefetcher.load(parts)
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes)))
    MEMORY.dump()


def stage_copies(steps=3, copies=24, size_mib=16):
    """Copies that a slow stream still reads when the loop has let go of them."""
    if not ON_GPU:
        cannot("streams are of a GPU")
    sizes = shape()
    model, optimiser = make_model(sizes)
    aside, total = torch.cuda.Stream(), torch.zeros((), device=DEVICE)
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes)))
    torch.cuda.synchronize()
    staged = [torch.empty(floats(size_mib), device=DEVICE).fill_(1.0) for _ in range(copies)]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        # Some seconds at the clock of any GPU, so that it works when the snapshot is taken.
        torch.cuda._sleep(5_000_000_000)
        for part in staged:
            total += part.sum()
            part.record_stream(aside)
    del part, staged
    MEMORY.dump()
    log(f"staged {copies} copies")


def train_with_pinned(steps=5, size_mib=32):
    """Batches come through page-locked host memory."""
    sizes = shape()
    model, optimiser = make_model(sizes)
    for step in range(steps):
        host = torch.empty(floats(size_mib), pin_memory=ON_GPU)
        host.to(DEVICE, non_blocking=True)
        report(step, update(model, optimiser, *make_batch(sizes)))
    MEMORY.dump()
