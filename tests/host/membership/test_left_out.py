"""What becomes of sums after one that some ranks, or all, could not submit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from inagg_host.allreduce import AllReduce, AllReduceError

from .processes import start_switch


def sum_after_an_error(failing: frozenset[int]) -> list[float | str]:
    """What two ranks' next sums are, of an array of the same shape, if some were refused the first one and catch it."""

    def rank(number: int, switch: str) -> float | str:
        first, second = np.full(1000, 1.0, np.float32), np.full(1000, 10.0, np.float32)
        read_only = first.copy()
        read_only.flags.writeable = False
        with AllReduce(switch=switch, job="left-out", rank=number, workers=2, format="fix32") as all_reduce:
            if number in failing:
                with pytest.raises(ValueError, match="writable"):
                    all_reduce.submit(read_only)
            else:
                all_reduce.submit(first)
            try:
                return float(all_reduce(second)[0])
            except AllReduceError as error:
                return str(error)

    with start_switch() as switch, ThreadPoolExecutor(2) as pool:
        return list(pool.map(rank, range(2), [switch.control] * 2))


def test_where_one_rank_alone_could_not_submit_a_sum_all_get_an_error_in_place_of_sums_of_others() -> None:
    for said in sum_after_an_error(frozenset({0})):
        assert "has left that out" in str(said)


def test_ranks_that_all_catch_the_same_error_go_on() -> None:
    assert sum_after_an_error(frozenset({0, 1})) == [20.0, 20.0]
