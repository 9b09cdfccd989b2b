"""Arguments that cannot be summed, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inagg_host.task import make_max_task, make_task

FLOATS = np.zeros(8, np.float32)


@pytest.mark.parametrize("values", [[1.0, 2.0], 1.0, np.ma.masked_less(FLOATS, 1)])
def test_what_is_no_plain_array_is_refused_by_name(values: Any) -> None:
    """A masked array would be summed with what is masked."""
    with pytest.raises(ValueError, match=rf"^values: {type(values).__name__} cannot be summed; give a numpy array"):
        make_task(values, None)


def test_an_out_that_is_no_array_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^out: list cannot be summed; give a numpy array"):
        make_task(FLOATS, [1.0] * 8)  # type: ignore[arg-type]


def test_room_for_what_is_contributed_that_is_no_array_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^contributed: list cannot be summed; give a numpy array"):
        make_task(FLOATS, None, contributed=[1.0] * 8)  # type: ignore[arg-type]


def test_maxima_of_what_is_no_array_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^values: list cannot be summed; give a numpy array"):
        make_max_task([1, 2], None)  # type: ignore[arg-type]


STRIDED = np.zeros((4, 4), np.float32)[::2]
READ_ONLY = np.zeros((2, 4), np.float32)
READ_ONLY.flags.writeable = False
ROWS = np.zeros((2, 4), np.float32)


@pytest.mark.parametrize(
    ("arguments", "name", "advice"),
    [
        ({"values": STRIDED}, "values", "which is not contiguous: np.ascontiguousarray(values) is a copy that is"),
        ({"values": ROWS, "out": STRIDED}, "out", "which is not contiguous: np.empty makes one that is"),
        ({"values": ROWS, "contributed": STRIDED}, "contributed", "is not contiguous: np.empty makes one that is"),
        ({"values": READ_ONLY}, "values", "which is read-only: give an array that is writable"),
        ({"values": ROWS, "out": READ_ONLY}, "out", "which is read-only: give an array that is writable"),
        ({"values": ROWS, "contributed": READ_ONLY}, "contributed", "is read-only: give an array that is writable"),
    ],
)
def test_an_array_that_sums_cannot_come_from_or_go_to_is_named_with_what_to_do(
    arguments: dict[str, Any], name: str, advice: str
) -> None:
    strides = arguments[name].strides
    with pytest.raises(ValueError, match=r"contiguous|writable") as caught:
        make_task(**{"out": None, **arguments})
    said = str(caught.value)
    assert said.startswith(f"{name} is float32 of shape (2, 4) with strides of {strides} bytes, ")
    assert advice in said


def test_what_makes_a_strided_array_contiguous_is_taken() -> None:
    assert make_task(np.ascontiguousarray(STRIDED), None).values.size == 8


def test_an_array_in_a_file_is_an_array(tmp_path: Path) -> None:
    values = np.memmap(tmp_path / "values", np.float32, "w+", shape=(8,))
    assert make_task(values, None).values.size == 8


@pytest.mark.parametrize("divisor", ["2", 2.5, 0, -1, 10**30])
def test_a_divisor_is_a_whole_number(divisor: Any) -> None:
    with pytest.raises(ValueError, match=rf"^divisor {divisor!r}: give 1"):
        make_task(FLOATS, None, divisor=divisor)


def test_numpys_whole_numbers_are_divisors() -> None:
    assert make_task(FLOATS, None, divisor=np.int64(4)).divisor == 4  # type: ignore[arg-type]
