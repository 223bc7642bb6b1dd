"""A small decoder, whole or cut into pipeline stages."""

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Causal self-attention; ``kind`` is the kernel: fused, math (torch's fallback) or explicit (written out)."""

    def __init__(self, shape):
        super().__init__()
        self.heads, self.kind = shape.heads, shape.attention
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x, cache=None):
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.append(self, k, v)
        return self.out(self.attend(q, k, v, cache is None).transpose(1, 2).reshape(rows, length, width))

    def attend(self, q, k, v, causal):
        if self.kind == "explicit":
            return self.mix(q, k, v)
        if self.kind == "math":
            with sdpa_kernel(SDPBackend.MATH):
                return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def mix(self, q, k, v):
        future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


class Feedforward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.up, self.down = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attention, self.feedforward = Attention(shape), Feedforward(shape)

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm1(x), cache)
        return x + self.feedforward(self.norm2(x))


class Decoder(nn.Module):
    """Tokens to logits."""

    def __init__(self, shape):
        super().__init__()
        self.recompute = shape.recompute
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens, cache=None):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x, cache)
        return self.head(self.norm(x))


class Stage(nn.Module):
    """A stage of a pipeline: some blocks, and on the last one the head."""

    def __init__(self, shape, last):
        super().__init__()
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False) if last else None

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)
