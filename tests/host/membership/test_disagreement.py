"""Ranks that do not reduce the same things are told so, instead of summing what does not belong together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.io.futures import Work
from inagg_testbed.switch_process import SwitchProcess

from .processes import start_switch


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


def reduce_on_each_rank(switch: SwitchProcess, arrays: list[np.ndarray[Any, Any]]) -> list[str]:
    """What each rank hears when rank r reduces ``arrays[r]``."""

    def run(rank: int) -> str:
        options: dict[str, Any] = {
            "switch": switch.control,
            "job": "disagree",
            "timeout_s": 20.0,
            "lanes": 64,
            "window": 16,
        }
        with AllReduce(rank=rank, workers=len(arrays), **options) as all_reduce:
            try:
                all_reduce(arrays[rank])
            except AllReduceError as error:
                return str(error)
            return "no error"

    with ThreadPoolExecutor(len(arrays)) as pool:
        return list(pool.map(run, range(len(arrays))))


def errors_of(all_reduce: AllReduce, submissions: list[dict[str, Any]]) -> list[str]:
    """What each of several submissions fails with. They are under way at once, but where an earlier one has failed
    already, a later one is refused with the same error."""
    works: list[Work | AllReduceError] = []
    for submission in submissions:
        try:
            works.append(all_reduce.submit(**submission))
        except AllReduceError as error:
            works.append(error)
    errors = [work if isinstance(work, AllReduceError) else work.exception() for work in works]
    assert all(isinstance(error, AllReduceError) for error in errors), errors
    return [str(error) for error in errors]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(np.ones(1000, np.float32), id="size"),
        pytest.param(np.ones(10_000, np.float32), id="size beyond a chunk"),
        pytest.param(np.ones(999, np.float16), id="type"),
    ],
)
def test_arrays_that_do_not_match_are_an_error_on_every_rank(
    switch: SwitchProcess, other: np.ndarray[Any, Any]
) -> None:
    heard = reduce_on_each_rank(switch, [np.ones(999, np.float32), other])
    assert any("another rank reduces something else" in text for text in heard), heard
    assert "no error" not in heard


def test_arrays_of_one_size_in_another_order_are_an_error_on_every_rank(switch: SwitchProcess) -> None:
    """If the caller tells them apart. Else they would be summed crosswise."""

    def run(rank: int) -> list[str]:
        options: dict[str, Any] = {"switch": switch.control, "job": "order", "timeout_s": 20.0}
        with AllReduce(rank=rank, workers=2, **options) as all_reduce:
            tags = [3, 4] if rank == 0 else [4, 3]
            return errors_of(all_reduce, [{"values": np.ones(999, np.float32), "tag": tag} for tag in tags])

    with ThreadPoolExecutor(2) as pool:
        for heard in pool.map(run, range(2)):
            assert "order" in heard[0] or "rank" in heard[0], heard


def test_what_cannot_begin_fails_alone(switch: SwitchProcess) -> None:
    """By name; before and after it all is summed. For a rank alone, since others would wait for it."""
    odd = np.zeros(4 * 10 + 1, np.uint8)[1:].view(np.float32)  # numpy takes what is not aligned; kernels do not
    assert not odd.flags.aligned
    options: dict[str, Any] = {"switch": switch.control, "job": "odd", "timeout_s": 20.0}
    with AllReduce(rank=0, workers=1, **options) as all_reduce:
        before, after = np.ones(999, np.float32), np.ones(999, np.float32)
        works = [all_reduce.submit(array) for array in (before, odd, after)]
        works[0].result()
        said = r"10 elements of float32 cannot be summed: .*shape \(10,\).*not aligned to 4 bytes.*give a copy.*\.copy"
        with pytest.raises(AllReduceError, match=said):
            works[1].result()
        works[2].result()
        assert all_reduce.counters.failed == 1
    assert (before == 1).all()
    assert (after == 1).all()


def test_an_operation_that_one_rank_could_not_begin_is_not_taken_for_the_next_one(switch: SwitchProcess) -> None:
    def run(rank: int) -> str:
        odd = np.zeros(4 * 999 + 1, np.uint8)[1:].view(np.float32)
        options: dict[str, Any] = {"switch": switch.control, "job": "skipped", "timeout_s": 20.0}
        with AllReduce(rank=rank, workers=2, **options) as all_reduce:
            first, second = odd if rank == 0 else np.ones(999, np.float32), np.ones(999, np.float32)
            return errors_of(all_reduce, [{"values": first}, {"values": second}])[1]

    with ThreadPoolExecutor(2) as pool:
        heard = list(pool.map(run, range(2)))
    assert any("another rank reduces something else" in text for text in heard), heard


def test_arrays_that_match_are_summed(switch: SwitchProcess) -> None:
    assert reduce_on_each_rank(switch, [np.ones(999, np.float32)] * 2) == ["no error"] * 2
