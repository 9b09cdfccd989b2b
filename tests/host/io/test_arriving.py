"""Values that are on their way to the host's memory when the engine has them already."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from inagg_host.codec.ordered import load_word, store_word
from inagg_host.codec.staging import Arriving
from inagg_host.core.operation import Request
from inagg_wire.scale import FloatType

from .fake_device import garbage
from .rig import LANES, Rank, World, Wrap, either_loop, values

ELEMENTS = 400 * LANES - 5


class Landing:
    """Where values arrive, and sums will be."""

    def __init__(self, rank: Rank, elements: int) -> None:
        self.rank, self.values = rank, np.full(elements, 77.0, np.float32)
        self.words = garbage(16).view(np.int64)
        self.words[:] = 0
        self.waited = 0
        self.copying = threading.Thread(target=self._copy)
        """Whoever waits for values waits for it, if it was started."""
        self.arriving = Arriving(rank.transport.wake, self.words, self.values, self._wait)

    def _wait(self) -> None:
        self.waited += 1
        if self.copying.ident is not None:
            self.copying.join()

    def _copy(self) -> None:
        time.sleep(0.05)
        self.values[:] = 1.0

    def submit(self) -> None:
        def submit() -> None:
            self.rank.engine.submit(Request(self.values, self.values, FloatType.FLOAT32, codec=self.arriving), 0.0)

        self.rank.transport.submit(submit, awaited=True)


@either_loop
def test_what_arrives_is_encoded_by_the_cpu_when_it_is_there(stack: ExitStack, wrap: Wrap) -> None:
    world = World(stack, wrap=wrap)
    arrays = [values(rank, ELEMENTS) for rank in range(2)]
    with ExitStack() as first:
        expected = World(first).sum([[array] for array in arrays], [FloatType.FLOAT32])
    landings = [Landing(rank, ELEMENTS) for rank in world.ranks]
    for landing in landings:
        landing.submit()
    time.sleep(0.05)
    for landing, array in zip(landings, arrays, strict=True):
        landing.values[:] = array
        store_word(landing.arriving.arrived, 1)  # nobody is woken
    world.wait(1)
    assert [landing.values.tobytes() for landing in landings] == [expected[0]] * 2


def test_who_waits_for_sums_where_values_arrived_is_told_of_them_by_a_word(stack: ExitStack) -> None:
    landing = Landing(World(stack).ranks[0], LANES)
    assert load_word(landing.arriving.summed) == 0
    landing.arriving.finish()
    assert landing.words.tolist() == [0, 1]
    assert (landing.values == 77.0).all()


def test_sums_of_what_arrives_are_nan_when_it_is_released(stack: ExitStack) -> None:
    landing = Landing(World(stack).ranks[0], LANES)
    landing.arriving.release()
    assert load_word(landing.arriving.summed) == 1
    assert np.isnan(landing.values).all()


def test_values_that_arrive_late_do_not_take_the_place_of_nan(stack: ExitStack) -> None:
    landing = Landing(World(stack).ranks[0], LANES)
    landing.copying.start()
    landing.arriving.release()
    landing.copying.join()
    assert np.isnan(landing.values).all()


def test_values_that_do_not_arrive_end_the_job_with_the_reason(stack: ExitStack) -> None:
    landing = Landing(World(stack).ranks[0], ELEMENTS)
    landing.submit()
    landing.arriving.fail(RuntimeError("no copy"))
    assert str(landing.rank.failure()) == "the device of a tensor failed: no copy"


def test_who_waits_for_values_hears_what_went_wrong_with_them(stack: ExitStack) -> None:
    landing = Landing(World(stack).ranks[0], LANES)
    landing.arriving.wait()
    landing.arriving.fail(RuntimeError("no copy"))
    with pytest.raises(RuntimeError, match="no copy"):
        landing.arriving.wait()
    assert landing.waited == 2
