"""Parallel-Mem-SGD: processes that share an iterate."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inagg_host.compress.optim import parallel
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


@dataclass(frozen=True)
class Interrupted:
    """At work when Ctrl-C comes, which a terminal sends to all; and it would be for long."""

    def __call__(self, worker: int) -> Gradient:
        def gradient(x: Array, t: int) -> Array:
            os.kill(os.getpid(), signal.SIGINT)  # first, or the parent may be quicker than a traceback
            if t == 0:
                os.kill(os.getppid(), signal.SIGINT)
            time.sleep(0.1)
            return np.ones(D)

        return gradient


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


def test_an_error_in_a_process_is_raised_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(**options: Any) -> SharedMemory:
        made.append(SharedMemory(**options))
        return made[-1]

    monkeypatch.setattr(parallel, "SharedMemory", make)
    with pytest.raises(RuntimeError, match="a worker of Parallel-Mem-SGD has failed"):
        parallel_mem_sgd(Broken(), np.zeros(D), workers=1, steps=1, k=1, rate=rate)
    with pytest.raises(FileNotFoundError):
        SharedMemory(made[0].name)


def test_ctrl_c_ends_the_processes_at_once_and_without_a_word_of_theirs(capfd: pytest.CaptureFixture[str]) -> None:
    came_s = []

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        came_s.append(time.monotonic())
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            parallel_mem_sgd(Interrupted(), np.zeros(D), workers=2, steps=10_000, k=1, rate=rate)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - came_s[0] < 5
    assert capfd.readouterr().err == ""
