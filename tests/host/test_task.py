"""Arguments that cannot be summed, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inagg_host.task import make_task

FLOATS = np.zeros(8, np.float32)


@pytest.mark.parametrize("values", [[1.0, 2.0], 1.0, np.ma.masked_less(FLOATS, 1)])
def test_what_is_no_plain_array_is_refused_by_name(values: Any) -> None:
    """A masked array would be summed with what is masked."""
    with pytest.raises(ValueError, match=rf"^values: {type(values).__name__} cannot be summed; give a numpy array"):
        make_task(values, None)


def test_an_out_that_is_no_array_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^out: list cannot be summed; give a numpy array"):
        make_task(FLOATS, [1.0] * 8)  # type: ignore[arg-type]


def test_an_array_in_a_file_is_an_array(tmp_path: Path) -> None:
    values = np.memmap(tmp_path / "values", np.float32, "w+", shape=(8,))
    assert make_task(values, None).values.size == 8


@pytest.mark.parametrize("divisor", ["2", 2.5, 0, -1, 10**30])
def test_a_divisor_is_a_whole_number(divisor: Any) -> None:
    with pytest.raises(ValueError, match=rf"^divisor {divisor!r}: give 1"):
        make_task(FLOATS, None, divisor=divisor)


def test_numpys_whole_numbers_are_divisors() -> None:
    assert make_task(FLOATS, None, divisor=np.int64(4)).divisor == 4  # type: ignore[arg-type]
