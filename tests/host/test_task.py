"""Arrays that can be summed, and what is said of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inagg_host.task import make_task

FLOATS = np.zeros(8, np.float32)


def unaligned() -> Any:
    return np.zeros(33, np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize("values", [[1.0, 2.0], 1.0, np.ma.masked_less(FLOATS, 1)])
def test_what_is_no_plain_array_is_refused_by_name(values: Any) -> None:
    """A masked array would be summed with what is masked."""
    with pytest.raises(ValueError, match=rf"^values: {type(values).__name__} cannot be summed; give a numpy"):
        make_task(values, None)


def test_an_out_that_is_no_array_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^out: list cannot be summed; give a numpy array"):
        make_task(FLOATS, [1.0] * 8)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [np.zeros(8, np.float32)[::2], np.zeros((2, 3), np.float32).T, unaligned()])
def test_values_that_lie_apart_are_refused_with_what_to_do(values: Any) -> None:
    with pytest.raises(ValueError, match=r"^the values are not contiguous and aligned: give np.array"):
        make_task(values, None)


def test_values_that_may_not_be_written_need_another_array_for_the_sums() -> None:
    values = np.zeros(8, np.float32)
    values.flags.writeable = False
    with pytest.raises(ValueError, match=r"^the sums need a contiguous, aligned array that may be written"):
        make_task(values, None)
    make_task(values, np.empty_like(values))


@pytest.mark.parametrize("divisor", ["2", 2.5, 0, -1, 10**30])
def test_a_divisor_is_a_whole_number(divisor: Any) -> None:
    with pytest.raises(ValueError, match=rf"^divisor {divisor!r}: give 1"):
        make_task(FLOATS, None, divisor=divisor)
