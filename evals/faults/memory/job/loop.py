"""The ordinary training loop, and what of it is varied by shape and options alone."""

import torch
from model import Decoder
from setting import DEVICE, MEMORY, cannot, log, shape
from torch import nn


def make_batch(sizes, length=None):
    """Tokens and their successors."""
    tokens = torch.randint(0, sizes.vocabulary, (sizes.rows, (length or sizes.length) + 1), device=DEVICE)
    return tokens[:, :-1], tokens[:, 1:]


def make_model(sizes, fused=True):
    torch.manual_seed(0)
    model = Decoder(sizes).to(DEVICE)
    log(f"model with {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters on {DEVICE.type}")
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def update(model, optimiser, tokens, labels, half=False):
    """One step."""
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=half):
        loss = loss_of(model(tokens), labels)
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    return loss.detach()


def report(step, loss):
    log(f"step {step} loss {float(loss):.4f}")
    MEMORY.note()


def train(steps=6, half=False, fused=True, **changes):
    """Steps of one kind."""
    sizes = shape(**changes)
    model, optimiser = make_model(sizes, fused)
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes), half=half))
    MEMORY.dump()


def train_lengths(steps=8, half=False, **changes):
    """Every batch is padded to its own longest row."""
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    lengths = [sizes.length * share // 8 for share in (5, 8, 3, 7, 8, 4, 6, 8, 2, 7)]
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes, lengths[step % len(lengths)]), half=half))
    MEMORY.dump()


def train_with_average(steps=8):
    """From some step on, an average of the weights is kept beside them."""
    sizes = shape()
    model, optimiser = make_model(sizes)
    average = None
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes)))
        with torch.no_grad():
            if step == 3:
                average = [p.detach().clone() for p in model.parameters()]
            elif average is not None:
                torch._foreach_lerp_(average, list(model.parameters()), 0.1)
    MEMORY.dump()


def train_outlier(steps=5, factor=24, **changes):
    """One batch holds a document that nobody has cut."""
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    for step in range(steps):
        length = sizes.length * factor if step == steps - 1 else sizes.length
        log(f"step {step} batch of {sizes.rows} x {length}")
        report(step, update(model, optimiser, *make_batch(sizes, length)))
    MEMORY.dump()


def accumulate(steps=3, parts=16, **changes):
    """An update from several micro-batches: their losses are added up, then there is one backward."""
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    for step in range(steps):
        total = torch.zeros((), device=DEVICE)
        for _ in range(1 if step == 0 else parts):
            tokens, labels = make_batch(sizes)
            total = total + loss_of(model(tokens), labels)
        total.backward()
        optimiser.step()
        optimiser.zero_grad()
        report(step, total)
    MEMORY.dump()


def accumulate_by_parts(steps=3, parts=4, **changes):
    """The same with a backward for every micro-batch."""
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    for step in range(steps):
        total = torch.zeros((), device=DEVICE)
        for _ in range(parts):
            tokens, labels = make_batch(sizes)
            loss = loss_of(model(tokens), labels) / parts
            loss.backward()
            total += loss.detach()
        optimiser.step()
        optimiser.zero_grad()
        report(step, total)
    MEMORY.dump()


def train_annotated(steps=5):
    """The phases of each step are annotated, and allocations carry the number of the step where torch can."""
    sizes = shape()
    model, optimiser = make_model(sizes)
    mark = getattr(torch.cuda.memory, "_set_memory_metadata", None) if DEVICE.type == "cuda" else None
    for step in range(steps):
        if mark is not None:
            mark(f"step={step}")
        tokens, labels = make_batch(sizes)
        with torch.profiler.record_function("forward"):
            loss = loss_of(model(tokens), labels)
        with torch.profiler.record_function("backward"):
            loss.backward()
        with torch.profiler.record_function("update"):
            optimiser.step()
            optimiser.zero_grad()
        report(step, loss)
    MEMORY.dump()


def train_compiled(steps=4):
    """The model is compiled."""
    sizes = shape(layers=2)
    model, optimiser = make_model(sizes)
    compiled = torch.compile(model)
    for step in range(steps):
        try:
            loss = update(compiled, optimiser, *make_batch(sizes))
        except Exception as error:
            if step:
                raise
            cannot(f"torch.compile: {type(error).__name__}: {str(error)[:300]}")
        report(step, loss)
    MEMORY.dump()
