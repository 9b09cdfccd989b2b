"""Parallel-Mem-SGD: processes that share an iterate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from inagg_host.compress.optim.parallel import Gradient, parallel_mem_sgd

Array = npt.NDArray[np.float64]
D = 12


@dataclass(frozen=True)
class Constant:
    """The same gradient everywhere: what is applied and what is remembered add up to the same in any order."""

    def __call__(self, worker: int) -> Gradient:
        return lambda x, t: np.arange(1.0, D + 1)


@dataclass(frozen=True)
class Broken:
    def __call__(self, worker: int) -> Gradient:
        raise ArithmeticError("on purpose")


def rate(t: int) -> float:
    return 2.0**-4


def test_nothing_is_lost_but_by_collisions() -> None:
    """One process: x - m is exactly what SGD would have done. Powers of two, so there is no rounding."""
    run = parallel_mem_sgd(Constant(), np.zeros(D), workers=1, steps=32, k=2, rate=rate)
    assert run.steps == (32,)
    assert (run.x - run.memories[0]).tolist() == (-2.0 * np.arange(1.0, D + 1)).tolist()
    assert run.memories.any()


def test_two_processes_share_the_steps_and_the_iterate() -> None:
    run = parallel_mem_sgd(Constant(), np.ones(D), workers=2, steps=9, k=D, rate=rate)
    assert run.steps == (5, 4)
    assert run.x.shape == (D,)
    assert (run.x < 1).all()  # both have written; how much of it survives collisions is not determined
    assert run.seconds > 0


def test_an_error_in_a_process_is_raised() -> None:
    with pytest.raises(RuntimeError, match="a worker of Parallel-Mem-SGD has failed"):
        parallel_mem_sgd(Broken(), np.zeros(D), workers=1, steps=1, k=1, rate=rate)
