"""Mem-SGD of two workers through the real switch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.host.compress.ranks import Rank, ranks_on

from inagg_host.compress import Compressor, RandK, TopK
from inagg_host.compress.optim.memory import MemSGD
from inagg_host.compress.optim.network import SwitchMean
from inagg_host.compress.optim.rates import InverseTime

WORKERS, D, STEPS = 2, 96, 12
RATE = InverseTime(2.0, 1.0, 20.0)


def gradient(rank: int, t: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([rank, t]).standard_normal(D))


@pytest.mark.parametrize("compressor", [RandK(0.25), TopK(0.1)], ids=["rand-k in the switch", "top-k by a gather"])
def test_iterate_is_what_sgd_would_have_done_plus_the_mean_of_the_memories(switch: str, compressor: Compressor) -> None:
    """x~ = x - mean of m_i, although the contributions are rounded. In a format whose sums are not rounded again on the
    way down, that is."""

    def run(rank: Rank) -> tuple[np.ndarray, np.ndarray]:
        x = torch.ones(D, dtype=torch.float64)
        optimizer = MemSGD([x], RATE, exchange=SwitchMean(rank.exchange, compressor, WORKERS))
        for t in range(STEPS):
            x.grad = gradient(rank.rank, t)
            optimizer.step()
        return x.numpy(), optimizer.memory(x).numpy()

    with ranks_on(switch, WORKERS, "fix32") as ranks:
        (x, first), (other, second) = ranks.run(run)
    assert (x == other).all()
    steps = [RATE(t) * (gradient(0, t) + gradient(1, t)).numpy() / 2 for t in range(STEPS)]
    virtual = np.ones(D) - np.sum(steps, axis=0)
    assert x - (first + second) / 2 == pytest.approx(virtual, abs=1e-12)
    assert first.any()
