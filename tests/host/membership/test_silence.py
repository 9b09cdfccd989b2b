"""What the switch counts as a sign of life of a rank whose heartbeats do not come."""

from __future__ import annotations

import ctypes
import time
from multiprocessing.connection import Connection

import numpy as np

from inagg_host.allreduce import AllReduce

from .processes import LANES, PATIENCE_S, start_switch
from .spawning import CONTEXT

LIMIT_S, HELD_S = 2, 6


def _sum(connection: Connection, rank: int, switch: str) -> None:
    """Of rank 0, after the submit, no thread can run Python for a while; rank 1 is as late."""
    with AllReduce(rank=rank, workers=2, switch=switch, job="lock", lanes=LANES) as all_reduce:
        all_reduce(np.ones(10, np.float32))
        if rank == 1:
            time.sleep(HELD_S)
        work = all_reduce.submit(np.ones(1000, np.float32))
        if rank == 0:
            time.sleep(0.2)  # it is sent
            ctypes.PyDLL(None).sleep(HELD_S)
        sums = work.result()
        connection.send((float(sums.min()), all_reduce.counters.epochs))


def test_a_rank_that_waits_for_another_is_alive_though_it_cannot_run_python() -> None:
    """As where a thread waits in a device's driver, and keeps the interpreter's lock: what was sent is sent again."""
    with start_switch("--heartbeat-limit", str(LIMIT_S)) as switch:
        pipes = [CONTEXT.Pipe() for _ in range(2)]
        ranks = [CONTEXT.Process(target=_sum, args=(p[1], i, switch.control), daemon=True) for i, p in enumerate(pipes)]
        for rank in ranks:
            rank.start()
        try:
            assert [ours.poll(PATIENCE_S) and ours.recv() for ours, _ in pipes] == [(2.0, 1)] * 2
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
