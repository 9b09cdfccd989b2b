"""Ranks that do not reduce the same things are told so, instead of summing what does not belong together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from inagg_host.allreduce import AllReduce, AllReduceError
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


def test_arrays_that_match_are_summed(switch: SwitchProcess) -> None:
    assert reduce_on_each_rank(switch, [np.ones(999, np.float32)] * 2) == ["no error"] * 2
