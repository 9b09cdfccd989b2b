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

    title: str
    example: str
    batch: int
    make: Callable[[], nn.Module]
    inputs: Callable[[int], torch.Tensor]


def images(side: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.zeros(count, 3, side, side)


def tokens(length: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.zeros(count, length, dtype=torch.int64)


# Batches as they are used with one small GPU per worker.
ZOO = {
    "alexnet": Entry("AlexNet", "picture of 224 x 224", 128, AlexNet, images(224)),
    "vgg11": Entry("VGG-11", "picture of 224 x 224", 32, VGG11, images(224)),
    "resnet50": Entry("ResNet-50", "picture of 224 x 224", 32, ResNet50, images(224)),
    "resnet110": Entry("ResNet-110", "picture of 32 x 32", 128, ResNet110, images(32)),
    "gpt2": Entry("GPT-2 small", "text of 1024 tokens", 4, GPT2, tokens(1024)),
}
assert tuple(ZOO) == NAMES
