"""Ranks that are threads of one process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from inagg_testbed.experiments.cluster import at_once

PATIENCE_S = 20.0


def test_what_is_raised_first_is_told_and_not_that_others_waited_in_vain() -> None:
    failed = threading.Event()

    def join(rank: int) -> None:
        if rank == 1:
            failed.set()
            raise ValueError("the cause")
        failed.wait(PATIENCE_S)
        threading.Event().wait(0.2)
        raise TimeoutError("rank 1 is missing")

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="the cause"):
        at_once(pool, join, range(2))
