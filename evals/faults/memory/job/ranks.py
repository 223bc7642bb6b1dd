"""Jobs of several ranks. Each is a process of its own; what peers would send is made up, so that one GPU is enough."""

import torch
from loop import loss_of, make_batch, make_model, report, update
from model import Stage
from setting import DEVICE, MEMORY, RANK, WORLD_SIZE, log, shape


def train_replica(steps=5, factors=(1, 6), **changes):
    """Data parallel; how long the rows are is up to each rank's part of the data."""
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    for step in range(steps):
        length = sizes.length if step == 0 else sizes.length * factors[RANK]
        log(f"step {step} batch of {sizes.rows} x {length}")
        report(step, update(model, optimiser, *make_batch(sizes, length)))
    MEMORY.dump()


def train_stage(steps=4, **changes):
    """A stage of a pipeline; the last one has the head and the loss."""
    sizes, last = shape(**changes), RANK == WORLD_SIZE - 1
    torch.manual_seed(0)
    stage = Stage(sizes, last).to(DEVICE)
    optimiser = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    for step in range(steps):
        received = torch.randn(sizes.rows, sizes.length, sizes.width, device=DEVICE, requires_grad=True)
        output = stage(received)
        if last:
            loss = loss_of(output, make_batch(sizes)[1])
            loss.backward()
        else:
            output.backward(torch.randn_like(output))
            loss = output.detach().mean()
        optimiser.step()
        optimiser.zero_grad()
        report(step, loss)
    MEMORY.dump()
