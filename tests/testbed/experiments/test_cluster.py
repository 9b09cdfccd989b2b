"""Ranks that are threads of one process."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from inagg_host.compress import parse
from inagg_testbed.experiments.cluster import at_once, open_cluster
from inagg_testbed.switch_process import SwitchProcess

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


def test_what_a_training_is_advised_is_not_said_of_an_experiment(caplog: pytest.LogCaptureFixture) -> None:
    """It is about compressors that nobody has typed."""
    rows = [[np.arange(8, dtype=np.float32)]]
    with SwitchProcess() as switch, open_cluster(switch.control, 1, "nat8", 1, "advice") as cluster:
        cluster.sums(parse("topk:k=0.5"), rows)
        logging.getLogger("inagg").warning("what is wrong is said")
    assert [record.getMessage() for record in caplog.records] == ["what is wrong is said"]
