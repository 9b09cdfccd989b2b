"""Residual networks (He et al. 2015, arXiv 1512.03385): ResNet-50 for ImageNet, ResNet-110 for CIFAR."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def convolution(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and batch normalization."""
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(width)
    )


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride, as everyone implements it), 1x1 to four times the width; a projection where shapes
    differ (option B)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.narrow = convolution(channels, width, 1)
        self.middle = convolution(width, width, 3, stride)
        self.widen = convolution(width, 4 * width, 1)
        same = stride == 1 and channels == 4 * width
        self.shortcut: nn.Module = nn.Identity() if same else convolution(channels, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.narrow(x))
        y = functional.relu(self.middle(y))
        return functional.relu(self.widen(y) + self.shortcut(x))


class ResNet50(nn.Module):
    """50 layers, 25,557,032 parameters; takes (count, 3, 224, 224)."""

    STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
    """Width, blocks, stride of the first block."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = convolution(3, 64, 7, 2)
        blocks: list[nn.Module] = []
        channels = 64
        for width, count, stride in self.STAGES:
            for number in range(count):
                blocks.append(Bottleneck(channels, width, stride if number == 0 else 1))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of shape (count, classes)."""
        x = functional.max_pool2d(functional.relu(self.stem(images)), 3, 2, padding=1)
        scores: torch.Tensor = self.head(self.blocks(x).mean((2, 3)))
        return scores


class Basic(nn.Module):
    """Two 3x3; where shapes differ the shortcut takes every other pixel and pads channels with zeros (option A)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(channels, width, 3, stride)
        self.second = convolution(width, width, 3)
        self.stride, self.padding = stride, width - channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(functional.relu(self.first(x)))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return functional.relu(y + functional.pad(shortcut, (0, 0, 0, 0, 0, self.padding)))


class ResNet110(nn.Module):
    """110 layers for pictures of 32 by 32, 1,727,962 parameters (shortcuts of option A, as in the paper's section 4.2;
    with projections, option B, there would be 1,730,714); takes (count, 3, 32, 32)."""

    BLOCKS = 18
    """In each of three stages: 6 x 18 + 2 = 110 layers."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = convolution(3, 16, 3)
        blocks: list[nn.Module] = []
        channels = 16
        for width in (16, 32, 64):
            for _ in range(self.BLOCKS):
                blocks.append(Basic(channels, width, width // channels))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of shape (count, classes)."""
        x = self.blocks(functional.relu(self.stem(images)))
        scores: torch.Tensor = self.head(x.mean((2, 3)))
        return scores
