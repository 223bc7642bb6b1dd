"""Evaluation, generation and captured graphs."""

import torch
from loop import loss_of, make_batch, make_model, report, update
from setting import MEMORY, ON_GPU, cannot, log, shape


def score(model, sizes, batches):
    """The mean loss, batch by batch."""
    losses = []
    with torch.no_grad():
        for _ in range(batches):
            tokens, labels = make_batch(sizes)
            losses.append(loss_of(model(tokens), labels).item())
    return sum(losses) / len(losses)


def predict(model, sizes, batches):
    """All logits of the set, for a metric that wants them at once."""
    found = []
    with torch.no_grad():
        for _ in range(batches):
            tokens, _ = make_batch(sizes)
            found.append(model(tokens))
            MEMORY.note()
    return torch.cat(found).argmax(-1).float().mean().item()


def train_and_score(steps=6, every=2, **changes):
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes)))
        if (step + 1) % every == 0:
            log(f"validation loss {score(model, sizes, 4):.4f}")
    MEMORY.dump()


def train_and_predict(steps=3, batches=60, **changes):
    sizes = shape(**changes)
    model, optimiser = make_model(sizes)
    for step in range(steps):
        report(step, update(model, optimiser, *make_batch(sizes)))
    log("evaluating")
    log(f"mean prediction {predict(model, sizes, batches):.2f}")
    MEMORY.dump()


def infer(batches=20, **changes):
    """Nothing is trained."""
    sizes = shape(**changes)
    model, _ = make_model(sizes)
    for number in range(batches):
        report(number, score(model, sizes, 1))
    MEMORY.dump()


class KeyValueCache:
    """Keys and values of what has been read, for each layer."""

    def __init__(self):
        self.held = {}

    def append(self, layer, keys, values):
        if layer in self.held:
            before_keys, before_values = self.held[layer]
            keys, values = torch.cat([before_keys, keys], 2), torch.cat([before_values, values], 2)
        self.held[layer] = keys, values
        return keys, values


def generate(rounds=60, chunk=16, **changes):
    """Read a prompt, then append chunks of tokens that a draft has proposed."""
    sizes = shape(**changes)
    model, _ = make_model(sizes)
    cache = KeyValueCache()
    tokens, _ = make_batch(sizes)
    with torch.no_grad():
        for number in range(rounds):
            logits = model(tokens, cache)
            tokens = logits[:, -1:].argmax(-1).expand(-1, chunk).contiguous()
            MEMORY.note()
            if number % 10 == 0:
                log(f"generated {number * chunk} tokens")
    MEMORY.dump()


def capture(model, tokens):
    """A graph of the model for one size of batch, with memory of its own."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        model(tokens)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        last = model(tokens)[:, -1].clone()
    return graph, tokens, last


def serve(sizes_of_batch, then=0, **changes):
    """Capture a graph for each size of batch, use them, and read a larger prompt without one."""
    if not ON_GPU:
        cannot("graphs are captured on a GPU")
    graphs = []
    with torch.no_grad():
        sizes = shape(**changes)
        model, _ = make_model(sizes)
        for rows in sizes_of_batch:
            tokens, _ = make_batch(shape(**{**changes, "rows": rows}))
            graphs.append(capture(model, tokens.contiguous()))
        for graph, _, last in graphs:
            graph.replay()
            MEMORY.note()
            log(f"replayed a batch of {len(last)}")
        if then:
            tokens, _ = make_batch(shape(**{**changes, "rows": then}))
            log(f"read {model(tokens)[:, -1].shape[0]} prompts")
    MEMORY.dump()
