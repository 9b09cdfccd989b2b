"""Ranks agree on a part of the store that no attempt before had, whatever those left in it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore, Store

from inagg_host.errors import AllReduceError
from inagg_host.torch.rendezvous import rendezvous

TIMEOUT = timedelta(seconds=30)


def attempt(store: Store, workers: int, late: int = 0) -> list[str]:
    """What each rank reads under a key that each attempt's rank 0 writes; rank ``late`` comes after the others."""
    written = threading.Event()

    def rank(index: int) -> str:
        if index == late:
            time.sleep(0.05)
        mine = rendezvous(store, index, workers, TIMEOUT)
        if index == 0:
            assert not mine.check(["key"]), "an earlier attempt wrote it"
            mine.set("key", str(time.monotonic_ns()))
            written.set()
        written.wait(30)
        return mine.get("key").decode()

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(rank, range(workers)))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_each_attempt_has_a_part_of_its_own_in_the_store_of_those_before(late: int) -> None:
    store = HashStore()
    seen = [attempt(store, 3, late) for _ in range(3)]
    assert all(len(set(read)) == 1 for read in seen), "all ranks of an attempt read the same"
    assert len({read[0] for read in seen}) == 3


def test_an_attempt_of_which_a_rank_never_came_does_not_confuse_the_next() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(rendezvous, store, rank, 3, timedelta(seconds=0.2)) for rank in (0, 1)]
        with pytest.raises(AllReduceError, match=r"rank 0 waited 0\.2 s for rank 2 to come"):
            waits[0].result()
        with pytest.raises(AllReduceError, match=r"rank 1 waited"):
            waits[1].result()
    assert len(set(attempt(store, 3))) == 1
    assert len(set(attempt(store, 2))) == 1, "and it may be smaller"


def test_one_rank_meets_itself() -> None:
    assert attempt(HashStore(), 1)
