"""SGD with a memory and without one on logistic regression, one sample a step: how far the averaged iterate's loss is
above the minimum (the gap), at the steps ``at``. ``order``: of the samples, by step; ``best``: the least loss."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from inagg_host.compress import Compressor, Key
from inagg_host.compress.optim.memory import MemSGD
from inagg_host.compress.optim.rates import InverseTime, SquaredTime

from .logistic import Logistic

GAMMA = 2


def mem_sgd_gaps(
    problem: Logistic,
    order: npt.NDArray[np.int64],
    at: list[int],
    best: float,
    compressor: Compressor,
    rate: InverseTime,
    seed: int,
) -> tuple[list[float], float]:
    """Mem-SGD: its gaps, and how far it ever was from what it should be."""
    d, wanted = problem.samples.shape[1], set(at)
    x, virtual, drift, gaps = torch.zeros(d, dtype=torch.float64), np.zeros(d), 0.0, []
    optimizer = MemSGD([x], rate, compressor, weight=SquaredTime(rate.shift), seed=seed)
    for t, i in enumerate(order.tolist()):
        gradient = problem.sample_gradient(x.numpy(), i)
        virtual -= rate(t) * gradient
        x.grad = torch.from_numpy(gradient)
        optimizer.step()
        if t + 1 in wanted:
            gaps.append(problem.loss(optimizer.average(x).numpy()) - best)
            difference = virtual - (x - optimizer.memory(x)).numpy()
            drift = max(drift, float(np.abs(difference).max() / np.abs(virtual).max()))
    return gaps, drift


def sgd_gaps(
    problem: Logistic,
    order: npt.NDArray[np.int64],
    at: list[int],
    best: float,
    keep: int,
    compressor: Compressor | None = None,
    seed: int = 0,
) -> list[float]:
    """SGD that applies the ``keep`` (1 or all) largest coordinates of each step and forgets the others; or what an
    unbiased ``compressor`` makes of it."""
    d = problem.samples.shape[1]
    shift = d / keep
    rate, weight = InverseTime(GAMMA, problem.l2, shift), SquaredTime(shift)
    x, average, weights, gaps, wanted = np.zeros(d), np.zeros(d), 0.0, [], set(at)
    for t, i in enumerate(order.tolist()):
        weights += weight(t)
        average += (x - average) * (weight(t) / weights)
        change = rate(t) * problem.sample_gradient(x, i)
        if keep == d:
            x -= change if compressor is None else compressor(change, Key(seed, 0, t))
        else:
            j = int(np.abs(change).argmax())
            x[j] -= change[j]
        if t + 1 in wanted:
            gaps.append(problem.loss(average) - best)
    return gaps
