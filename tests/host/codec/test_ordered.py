"""Words that threads hand work over by."""

from __future__ import annotations

import numpy as np

from inagg_host.codec.ordered import load_word, store_word


def test_words_are_read_and_written() -> None:
    words = np.array([5, -7, 9], np.int64)
    at = words.ctypes.data + 8
    assert load_word(at) == -7
    store_word(at, 1 << 62)
    assert load_word(at) == 1 << 62
    assert words.tolist() == [5, 1 << 62, 9]
