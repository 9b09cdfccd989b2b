"""What all the examples train: a small network that tells noisy points around four centres apart."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

CLASSES, FEATURES, HIDDEN = 4, 64, 512
"""Gradients of 130 KiB: `inagg` leaves tensors below 16 KiB to the inner group."""
STEPS = 40


class Counted(Protocol):
    """`inagg_host.stats.Counters`."""

    operations: int
    elements: int
    bytes_out: int
    inner: dict[str, int]


def make_model() -> nn.Module:
    """The same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def make_dataset(rank: int, size: int = 2560) -> torch.utils.data.TensorDataset:
    """Points of this rank, each with its class."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    mine = torch.Generator().manual_seed(100 + rank)
    labels = torch.randint(CLASSES, (size,), generator=mine)
    return torch.utils.data.TensorDataset(centres[labels] + 3 * torch.randn(size, FEATURES, generator=mine), labels)


def batches(rank: int, steps: int = STEPS, size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """As many of them."""
    yield from torch.utils.data.DataLoader(make_dataset(rank, steps * size), size)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int = STEPS) -> list[float]:
    """The loss of each step."""
    losses = []
    for points, labels in batches(rank, steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def report(rank: int, losses: list[float], counters: Counted) -> None:
    """Say what came out, and who summed. In one write: ranks share the terminal."""
    inner = ", ".join(f"{count} {reason}" for reason, count in sorted(counters.inner.items())) or "nothing"
    few = max(1, len(losses) // 8)
    sys.stdout.write(
        f"rank {rank}: loss {sum(losses[:few]) / few:.3f} -> {sum(losses[-few:]) / few:.3f}; the switch summed "
        f"{counters.operations} tensors ({counters.elements:,} elements, {counters.bytes_out:,} bytes sent); "
        f"the inner group: {inner}\n"
    )
    sys.stdout.flush()


def rank_and_world() -> tuple[int, int]:
    """As torchrun and `inagg testbed` set them."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
