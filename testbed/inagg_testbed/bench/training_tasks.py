"""Tasks of `bench training`: a network, its batches, and how good it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import torch
from torch import nn

from ..training import load_digits, make_model
from ..training.images import load_images
from ..training.loop import evaluate
from ..training.model import seeded
from ..training.resnet import SmallResNet
from ..training.text import SmallTransformer, held_out, load_text, text_batches

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Task:
    """Task to train, loaded; ``batch`` is a rank's."""

    batch: int
    network: Callable[[int], nn.Module]
    """Network for a seed."""
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: Callable[[int, int, int, int], Batches]
    """Batches for a batch size, rank, workers and seed; without end."""
    evaluate: Callable[[nn.Module], tuple[float, float]]
    """Loss, and accuracy from 0 to 1, on what is not trained on."""
    decays: bool = False
    """The learning rate goes to 0 along a cosine: else the end of a training depends on when it is looked at."""


def _digits(_: Path | None) -> Task:
    training, test = load_digits()

    def batches(batch: int, rank: int, workers: int, seed: int) -> Batches:
        for epoch in count():
            yield from training.batches(batch, rank, workers, 1000 * seed + epoch)

    return Task(
        16, make_model,
        lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), batches,
        lambda model: evaluate(model, test.images, test.labels),
    )  # fmt: skip


def _text(_: Path | None) -> Task:
    text, other = load_text()
    read, following = held_out(other)
    return Task(
        8, partial(seeded, SmallTransformer), lambda model: torch.optim.AdamW(model.parameters(), 2e-3),
        lambda batch, rank, workers, seed: text_batches(text, batch, rank, workers, seed),
        lambda model: evaluate(model, read, following),
    )  # fmt: skip


def _cifar(folder: Path | None) -> Task:
    training, test = load_images(folder)

    return Task(
        16, partial(seeded, SmallResNet),
        lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4),
        training.batches, lambda model: evaluate(model, test.pixels, test.labels), decays=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A task by its name: how many ``steps`` a training has, and what loads it. ``data``: it takes a folder."""

    steps: int
    load: Callable[[Path | None], Task]
    data: bool = False


TASKS = {"text": Kind(300, _text), "digits": Kind(300, _digits), "cifar": Kind(500, _cifar, data=True)}
USUAL = ("text", "digits")
"""Tasks that are trained if nobody names any."""
