"""The time of a training step, from its computation and the cost of communication: buckets overlap the backward
pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..profiles.compute import Compute


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds. ``exposed_s``: what of communication computation does not hide, so step - forward - backward."""

    step_s: float
    communication_s: float
    exposed_s: float


def step_time(compute: Compute, cost_s: Callable[[int], float]) -> StepTime:
    """Buckets are reduced one after another, each not before it is complete, as DistributedDataParallel does.

    ``cost_s``: seconds to reduce so many elements, alone.
    """
    costs = [cost_s(elements) for elements, _ in compute.buckets]
    free_s = 0.0  # since the beginning of the backward pass
    for (_, ready_s), cost in zip(compute.buckets, costs, strict=True):
        free_s = max(free_s, ready_s) + cost
    exposed_s = max(0.0, free_s - compute.backward_s)
    return StepTime(compute.seconds + exposed_s, sum(costs), exposed_s)
