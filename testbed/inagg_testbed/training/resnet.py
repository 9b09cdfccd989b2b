"""A small residual network for pictures of 32 x 32, narrow and short enough for a processor core."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

WIDTHS = (16, 32, 64, 128)
"""Widths of the first layer and of the three stages, each of which halves the sides of the picture."""


class Block(nn.Module):
    """Two convolutions of 3 x 3 with batch normalization, and a way around them (He and others, 2015)."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=2, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.around = nn.Sequential(nn.Conv2d(before, width, 1, stride=2, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Half as high and wide."""
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(y + self.around(x))


class SmallResNet(nn.Module):
    """Three blocks between a convolution and a linear layer: 304,154 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        self.blocks = nn.Sequential(*(Block(*pair) for pair in pairwise(WIDTHS)))
        self.out = nn.Linear(WIDTHS[-1], 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of shape (count, 10) for images of shape (count, 3, 32, 32)."""
        x = self.blocks(functional.relu(self.norm(self.conv(images))))
        scores: torch.Tensor = self.out(x.mean(dim=(2, 3)))
        return scores
