"""What a training loop watches and remembers beside the loss."""

import torch
from loop import loss_of, make_batch, make_model, report, update
from setting import DEVICE, MEMORY, shape


class Averages:
    """Terms of the loss, averaged over an epoch."""

    def __init__(self):
        self.terms = []

    def add(self, logits):
        self.terms.append(torch.logsumexp(logits, -1).pow(2).mean())


def train_with_averages(steps=8, half=False, **changes):
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    averages = Averages()
    for step in range(steps):
        tokens, labels = make_batch(sizes)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=half):
            logits = model(tokens)
            loss = loss_of(logits, labels)
            averages.add(logits)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        report(step, loss)
    MEMORY.dump()


class Validation:
    """The loss on a fixed batch, after every step."""

    def __init__(self, sizes):
        self.batch, self.history = make_batch(sizes), []

    def measure(self, model):
        tokens, labels = self.batch
        self.history.append(loss_of(model(tokens), labels))


def train_with_validation(steps=12, **changes):
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    validation = Validation(sizes)
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes)))
        validation.measure(model)
    MEMORY.dump()


class Probe:
    """Every sixteenth position of a layer's output, for a later look."""

    def __init__(self, module):
        self.seen = []
        module.register_forward_hook(self.watch)

    def watch(self, _module, _inputs, output):
        self.seen.append(output.detach()[:, ::16].clone())


def train_with_probe(steps=8, **changes):
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    Probe(model.blocks[-1])
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes)))
    MEMORY.dump()


class Features:
    """Embedded samples by their id, at most ``most`` of them, or as many as there are."""

    def __init__(self, embedding, most=None):
        self.embedding, self.most, self.known = embedding, most, {}

    def look_up(self, key, tokens):
        if key not in self.known:
            if self.most is not None and len(self.known) >= self.most:
                self.known.pop(next(iter(self.known)))
            self.known[key] = self.embedding(tokens).detach()
        return self.known[key]


def train_with_features(steps=10, most=None, at=(), **changes):
    """Samples are embedded once; ids are drawn from a stream that does not come back to the same ones."""
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    features = Features(model.embedding, most)
    for step in range(steps):
        tokens, labels = make_batch(sizes)
        level = torch.zeros((), device=DEVICE)
        for row in range(sizes.rows):
            level += features.look_up(step * sizes.rows + row, tokens[row]).mean()
        report(step, update(model, optimiser, tokens, labels))
        if step + 1 in at:
            MEMORY.dump(f"step{step + 1:03d}")
    if not at:
        MEMORY.dump()
