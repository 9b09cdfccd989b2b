"""A small convolutional network for pictures of 8 by 8."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional

Network = TypeVar("Network", bound=nn.Module)


class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers, 71,754 parameters, most of them in one layer as in larger networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4 * 4, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of shape (count, 10) for images of shape (count, 1, 8, 8)."""
        x = functional.relu(self.conv1(images))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        scores: torch.Tensor = self.out(functional.relu(self.hidden(x.flatten(1))))
        return scores


def make_model(seed: int) -> DigitsCNN:
    """`DigitsCNN`, `seeded`."""
    return seeded(DigitsCNN, seed)


def seeded(make: Callable[[], Network], seed: int) -> Network:
    """A network with the initial weights that ``seed`` gives. Leaves torch's own random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
