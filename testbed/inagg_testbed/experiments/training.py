"""Data-parallel training of the digits in one process: one model, since all replicas are the same to the bit.

Replicas start equal and apply equal sums, so parameters are never sent (TernGrad's parameter localization). What a real
worker would do with its part of the batch, the loop does for each worker in turn; the gradients go through `Cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from inagg_wire.formats import CHILDREN_MAX

from ..training.data import Digits
from .model import SettingsError

Floats = npt.NDArray[np.float32]
Sum = Callable[[Sequence[Sequence[Floats]]], Sequence[Floats]]
"""Gradients by worker and parameter, flat, to their sums by parameter."""


BATCH: Final = 64
"""A batch of all workers together, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train. ``batch`` is that of all workers together."""

    workers: int
    epochs: int
    batch: int = BATCH
    learning_rate: float = 0.05
    momentum: float = 0.9
    decay: bool = False
    """The learning rate falls along a line, to zero at the end."""
    seed: int = 0
    adam: bool = False
    """In the place of SGD with momentum."""


def check_batch(batch: int, *counts: int) -> None:
    """Raises SettingsError unless so many workers, each of ``counts``, can share a batch equally."""
    for workers in counts:
        if batch % workers:
            these = ", ".join(str(n) for n in range(1, batch + 1) if batch % n == 0 and n <= CHILDREN_MAX)
            raise SettingsError(f"{workers} workers cannot share a batch of {batch} equally: give one of {these}")


def float_sum(vectors: Sequence[Sequence[Floats]]) -> list[Floats]:
    """The sums in float32, rank after rank."""
    return [np.sum(parts, axis=0, dtype=np.float32) for parts in zip(*vectors, strict=True)]


def train(
    model: nn.Module,
    digits: Digits,
    plan: Plan,
    summed: Sum,
    after_step: Callable[[int], bool] = lambda step: True,
) -> int:
    """Train ``model``; ``after_step`` gets the number of the step, from 1, and says whether to go on. Returns the
    steps.

    Raises SettingsError as `check_batch`.
    """
    check_batch(plan.batch, plan.workers)
    parameters = list(model.parameters())
    torch.set_num_threads(1)  # as for BLAS: see the package
    optimizer: torch.optim.Optimizer
    if plan.adam:
        optimizer = torch.optim.Adam(parameters, lr=plan.learning_rate)
    else:
        optimizer = torch.optim.SGD(parameters, lr=plan.learning_rate, momentum=plan.momentum)
    steps = plan.epochs * (len(digits) // plan.batch)
    step, model = 0, model.train()
    for epoch in range(plan.epochs):
        for images, labels in digits.batches(plan.batch, 0, 1, plan.seed * 1000 + epoch):
            parts = zip(images.chunk(plan.workers), labels.chunk(plan.workers), strict=True)
            gradients = [_gradients(model, parameters, *part) for part in parts]
            for parameter, total in zip(parameters, summed(gradients), strict=True):
                parameter.grad = torch.from_numpy(total / np.float32(plan.workers)).view_as(parameter)
            if plan.decay:
                optimizer.param_groups[0]["lr"] = plan.learning_rate * (1 - step / steps)
            optimizer.step()
            step += 1
            if not after_step(step):
                return step
    return step


def _gradients(
    model: nn.Module, parameters: Sequence[nn.Parameter], images: torch.Tensor, labels: torch.Tensor
) -> list[Floats]:
    loss = functional.cross_entropy(model(images), labels)
    return [g.reshape(-1).numpy() for g in torch.autograd.grad(loss, parameters)]


class DigitsMLP(nn.Sequential):
    """64, 128 and 10 units: 9,610 parameters."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
