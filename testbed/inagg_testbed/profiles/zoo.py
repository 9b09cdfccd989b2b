"""The table of networks: what each is called, what it is made by, what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from . import NAMES
from .models.gpt2 import GPT2
from .models.plain import VGG11, AlexNet
from .models.resnet import ResNet50, ResNet110


class Entry(NamedTuple):
    """A network. ``inputs`` makes a batch of so many examples, on the default device."""

    batch: int
    make: Callable[[], nn.Module]
    inputs: Callable[[int], torch.Tensor]


def images(side: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.zeros(count, 3, side, side)


def tokens(length: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.zeros(count, length, dtype=torch.int64)


# Batches as they are used with one small GPU per worker.
ZOO = {
    "alexnet": Entry(128, AlexNet, images(224)),
    "vgg11": Entry(32, VGG11, images(224)),
    "resnet50": Entry(32, ResNet50, images(224)),
    "resnet110": Entry(128, ResNet110, images(32)),
    "gpt2": Entry(4, GPT2, tokens(1024)),
}
assert tuple(ZOO) == NAMES
