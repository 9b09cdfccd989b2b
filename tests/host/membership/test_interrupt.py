"""A signal whose handler raises, as Ctrl-C does, while the main thread does the work of its all-reduce."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from inagg_host.allreduce import AllReduce
from inagg_host.codec.ordered import store_word
from inagg_host.codec.staging import Arriving
from inagg_host.core import Engine
from inagg_host.task import make_task
from inagg_testbed.switch_process import SwitchProcess

from .processes import start_switch

pytestmark = pytest.mark.timeout(method="thread")  # these set the timer that the other method has

ELEMENTS = 1 << 22


class Interrupted(BaseException):
    """What the handler raises: no Exception, as KeyboardInterrupt is none."""


@pytest.fixture(params=[Interrupted, TimeoutError])
def alarm(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """What the handler raises. A TimeoutError could also be the network's own."""
    kind: type[BaseException] = request.param

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise kind

    before = signal.signal(signal.SIGALRM, handler)
    yield kind
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_the_sums_go_on_after_it(alarm: type[BaseException]) -> None:
    with start_switch() as switch:
        results = interrupted_sums(switch, alarm, after_s=(0.001, 0.003, 0.005, 0.008))
    for result in results:
        np.testing.assert_array_equal(result, 2.0)


def test_a_sum_for_a_device_that_is_interrupted_while_it_begins_goes_on(alarm: type[BaseException]) -> None:
    load, main = Engine._load, threading.main_thread()

    def interrupted(engine: Engine) -> None:
        if threading.current_thread() is main and len(engine.operations) == 1:
            signal.raise_signal(signal.SIGALRM)
        load(engine)

    def other(switch: SwitchProcess) -> None:
        with AllReduce(switch=switch.control, job="begins", rank=1, workers=2) as all_reduce:
            for _ in range(2):
                all_reduce(np.ones(100, np.float32))

    arrays = [np.ones(100, np.float32) for _ in range(2)]
    with start_switch() as switch, ThreadPoolExecutor(1) as pool:
        running = pool.submit(other, switch)
        with AllReduce(switch=switch.control, job="begins", rank=0, workers=2) as all_reduce:
            words = np.zeros(2, np.int64)
            arriving = Arriving(all_reduce.wake, words, arrays[0], lambda: None)  # so it begins on this thread
            store_word(arriving.arrived, 1)
            with patch.object(Engine, "_load", interrupted), pytest.raises(alarm):
                all_reduce.submit_task(make_task(arrays[0], None), all_reduce.take_turn(), 0, arriving)
            all_reduce(arrays[1])
        running.result()
    np.testing.assert_array_equal(arrays, 2.0)


def interrupted_sums(
    switch: SwitchProcess, interrupted: type[BaseException], after_s: tuple[float, ...]
) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """The sums of two ranks' ones, of which rank 0 begins each on this thread and is interrupted so long after that."""
    assert threading.current_thread() is threading.main_thread()
    options: dict[str, Any] = {"switch": switch.control, "job": "interrupted", "workers": 2, "timeout_s": 30.0}

    def other() -> None:
        with AllReduce(rank=1, **options) as all_reduce:
            for _ in range(len(after_s) + 2):
                all_reduce(np.ones(ELEMENTS, np.float32))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(other)
        arrays = [np.ones(ELEMENTS, np.float32) for _ in range(len(after_s) + 2)]
        with AllReduce(rank=0, **options) as all_reduce:
            all_reduce(arrays[0])
            for array, delay_s in zip(arrays[1:], after_s, strict=False):

                def begin(*arguments: Any, delay_s: float = delay_s) -> Any:
                    signal.setitimer(signal.ITIMER_REAL, delay_s)  # not before: a sum that has not begun is left out
                    return AllReduce._begin(all_reduce, *arguments)

                with patch.object(all_reduce, "_begin", begin), suppress(interrupted):  # it goes on without this thread
                    try:
                        all_reduce(array)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
            all_reduce(arrays[-1])  # after all the others
        running.result()
    return arrays
