"""Run a step of a network and note when each gradient is there: counted in FLOPs without any data, or measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .profile import Gradient, Profile


@dataclass(frozen=True, slots=True)
class Trace:
    """A step as a clock saw it. ``ready``: of each parameter, from the beginning of the backward pass, in the order in
    which they came."""

    forward: float
    backward: float
    ready: tuple[tuple[str, int, float], ...]
    """Name, elements, reading of the clock."""

    def gradients(self) -> tuple[Gradient, ...]:
        return tuple(Gradient(name, elements, at / self.backward) for name, elements, at in self.ready)


def trace(model: nn.Module, inputs: torch.Tensor, clock: Callable[[], float]) -> Trace:
    """Run ``model`` forward and backward once. The gradients of a model that was traced are thrown away."""
    ready: list[tuple[str, int, float]] = []
    began = 0.0

    def note(name: str, parameter: torch.Tensor) -> None:
        ready.append((name, parameter.numel(), clock() - began))
        parameter.grad = None  # as large as the parameters, and nobody looks at them

    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(note, name))  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters()
    ]
    try:
        before = clock()
        loss = model(inputs).sum()
        began = clock()
        loss.backward()
        return Trace(began - before, clock() - began, tuple(ready))
    finally:
        for hook in hooks:
            hook.remove()


def make_profile(batch: int, make: Callable[[], nn.Module], inputs: Callable[[], torch.Tensor]) -> Profile:
    """Profile what ``make`` makes, on torch's meta device: shapes and FLOPs, no memory, no arithmetic. ``inputs`` makes
    one example."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        seen = trace(make(), inputs(), counter.get_total_flops)
    return Profile(batch, seen.gradients(), int(seen.forward), int(seen.backward))


def measure(model: nn.Module, inputs: torch.Tensor, runs: int = 2) -> Trace:
    """The fastest of ``runs`` steps of ``model`` where it is, in seconds, after one that does not count."""
    trace(model, inputs, time.perf_counter)
    return min((trace(model, inputs, time.perf_counter) for _ in range(runs)), key=lambda t: t.forward + t.backward)
