"""A small language model, and its text: the sources of Python's standard library, which every machine has."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

CONTEXT, WIDTH, HEADS, LAYERS, SYMBOLS = 64, 128, 4, 2, 128
"""Characters of a sequence; of the network; 128 symbols are ASCII, and what is none is the last of them."""
TEXT_BYTES = 6 << 20
HELD_OUT_SHARE = 0.1
HELD_OUT_SEQUENCES = 256


def load_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Characters to train on, and others to test on, uint8; of other files, so that nothing is known by heart."""
    library = Path(sysconfig.get_paths()["stdlib"])
    whole = b"".join(path.read_bytes() for path in sorted(library.glob("*.py")))[:TEXT_BYTES]
    text = torch.frombuffer(bytearray(whole), dtype=torch.uint8).clamp(max=SYMBOLS - 1)
    cut = int(len(text) * (1 - HELD_OUT_SHARE))
    return text[:cut], text[cut:]


def sequences(text: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the network reads, and what comes next, int64 of shape (count, `CONTEXT`)."""
    windows = text[starts[:, None] + torch.arange(CONTEXT + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def text_batches(
    text: torch.Tensor, size: int, rank: int, workers: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's batches of ``size`` sequences, without end; all ranks draw from one order that ``seed`` gives."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - CONTEXT - 1, (size * workers,), generator=generator)
        yield sequences(text, starts[rank * size : (rank + 1) * size])


def held_out(text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Always the same sequences of ``text``."""
    return sequences(text, torch.linspace(0, len(text) - CONTEXT - 2, HELD_OUT_SEQUENCES).long())


class SmallTransformer(nn.Module):
    """A decoder of 2 layers, 437,632 parameters: scores of the next character at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.out = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        """Shape (count, `SYMBOLS`, `CONTEXT`), as `cross_entropy` takes it, for (count, `CONTEXT`)."""
        x = self.symbols(read) + self.places.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        scores: torch.Tensor = self.out(x)
        return scores.transpose(1, 2)
