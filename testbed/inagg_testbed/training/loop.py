"""The training loop: plain data parallelism, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from .data import Digits


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train. ``batch`` is that of all ranks together, so that the number of ranks changes little."""

    epochs: int = 10
    batch: int = 64
    learning_rate: float = 0.05
    momentum: float = 0.9
    seed: int = 0
    """Seed of the order of the data."""


def train(
    model: nn.Module,
    digits: Digits,
    plan: Plan,
    rank: int = 0,
    workers: int = 1,
    after_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train ``model``, which averages gradients over the ranks (as DistributedDataParallel does).

    ``after_step`` is called with the number of the step, from 0, and this rank's loss in it.
    """
    if plan.batch % workers:
        raise ValueError(f"{workers} ranks cannot share a batch of {plan.batch} equally")
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate, momentum=plan.momentum)
    model.train()
    step = 0
    for epoch in range(plan.epochs):
        order_seed = plan.seed * 1000 + epoch
        for images, labels in digits.batches(plan.batch // workers, rank, workers, order_seed):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if after_step is not None:
                after_step(step, loss.item())
            step += 1


def accuracy(model: nn.Module, digits: Digits) -> float:
    """The share of ``digits`` that ``model`` gets right, 0 to 1."""
    return evaluate(model, digits.images, digits.labels)[1]


@torch.no_grad()
def evaluate(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> tuple[float, float]:
    """Mean cross entropy, in nats, and the share of ``classes`` that ``model`` gets right, 0 to 1."""
    model.eval()
    scores = model(inputs)
    model.train()
    return float(functional.cross_entropy(scores, classes)), float((scores.argmax(1) == classes).float().mean())
