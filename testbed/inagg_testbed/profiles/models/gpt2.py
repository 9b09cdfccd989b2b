"""A transformer of GPT-2's shape (Radford et al. 2019): pre-norm blocks, and an output layer that shares the weights of
the token embedding."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and beside a residual path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        y: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return y


class GPT2(nn.Module):
    """GPT-2 small: 12 blocks, width 768, 12 heads, 50,257 tokens, 1024 positions; 124,439,808 parameters. Takes token
    numbers of shape (count, length), length at most 1024."""

    def __init__(
        self, blocks: int = 12, width: int = 768, heads: int = 12, tokens: int = 50257, positions: int = 1024
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(positions, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of shape (count, length, number of tokens)."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return functional.linear(self.norm(self.blocks(x)), self.token.weight)
