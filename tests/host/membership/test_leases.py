"""The same seed gives the same bits, wherever the switch has room for a job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from inagg_host.allreduce import AllReduce

from .processes import start_switch


@pytest.mark.parametrize("fmt", ["nat8", "dith8", "tern"])
def test_a_job_beside_others_has_the_bits_that_it_has_alone(fmt: str) -> None:
    """Formats whose results the switch rounds, with the noise of seed and slot."""

    def run(switch: str, name: str) -> tuple[int, bytes]:
        options: dict[str, Any] = {"switch": switch, "job": name, "seed": 11, "lanes": 64, "window": 16, "format": fmt}

        def one(rank: int) -> tuple[int, bytes]:
            values = np.random.default_rng(rank).standard_normal(20_000, np.float32)
            with AllReduce(rank=rank, workers=3, **options) as all_reduce:
                all_reduce(values)
                network = all_reduce._network
                assert network is not None
                return network.engine.epoch.shards[0].lease.base, values.tobytes()

        with ThreadPoolExecutor(3) as pool:
            first, *others = pool.map(one, range(3))
        assert others == [first] * 2
        return first

    with start_switch() as switch, ExitStack() as stack:
        alone = run(switch.control, "alone")
        other: dict[str, Any] = {"switch": switch.control, "rank": 0, "workers": 1, "lanes": 64, "window": 16}
        stack.enter_context(AllReduce(job="before", **other))
        beside = run(switch.control, "beside")
    assert alone[0] != beside[0], "the lease lies elsewhere"
    assert alone[1] == beside[1]
