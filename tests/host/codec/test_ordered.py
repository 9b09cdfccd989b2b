"""Words that threads hand work over by."""

from __future__ import annotations

import os
from contextlib import closing

import numpy as np

from inagg_host.codec.bell import Bell, ring
from inagg_host.codec.ordered import load_word, store_word, swap_word


def test_words_are_read_and_written() -> None:
    words = np.array([5, -7, 9], np.int64)
    at = words.ctypes.data + 8
    assert load_word(at) == -7
    store_word(at, 1 << 62)
    assert swap_word(at, 3) == 1 << 62
    assert words.tolist() == [5, 3, 9]


def test_a_bell_that_was_rung_by_compiled_code_is_heard_once() -> None:
    with closing(Bell()) as bell:
        for _ in range(3):
            ring(bell.address)
        assert os.eventfd_read(bell.descriptor) == 3
        bell.clear()  # nothing is there: it does not wait
