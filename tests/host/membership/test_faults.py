"""Over real sockets and a real switch: what the network does to datagrams changes no bit of any sum.

The simulator (`tests.host.sim`) does the same in virtual time, ten thousand times.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from inagg_host.allreduce import AllReduce
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_testbed.switch_process import SwitchProcess

from .processes import start_switch

LOSSES = (0.0, 0.001, 0.01, 0.05, 0.2)
SIZES = (1, 700, 20_000, 3_000)
RANKS = 2


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


def sum_over(switch: SwitchProcess, faults: Faults) -> tuple[list[bytes], int, int]:
    """The sums, which are the same on all ranks; how many datagrams were disturbed, and how many sent again."""

    def run(rank: int) -> tuple[list[bytes], int, int]:
        links: list[FaultLink] = []

        def wrap(link: Any) -> FaultLink:
            links.append(FaultLink(link, faults, seed=rank))
            return links[0]

        options: dict[str, Any] = {"switch": switch.control, "seed": 5, "timeout_s": 60.0, "lanes": 64, "window": 64}
        rng = np.random.default_rng(rank)
        with AllReduce(rank=rank, workers=RANKS, wrap_link=wrap, **options) as all_reduce:
            arrays = [rng.standard_normal(size, np.float32) for size in SIZES]
            for work in [all_reduce.submit(array) for array in arrays]:
                work.result()
            resent = all_reduce.counters.resent
        disturbed = [
            c.dropped + c.discarded + c.duplicated + c.reordered
            for c in (links[0].sending.counters, links[0].receiving.counters)
        ]
        return [array.tobytes() for array in arrays], sum(disturbed), resent

    with ThreadPoolExecutor(RANKS) as pool:
        first, *others = pool.map(run, range(RANKS))
    assert all(sums == first[0] for sums, _, _ in others), "all ranks have the same"
    return first


@pytest.fixture(scope="module")
def calm(switch: SwitchProcess) -> list[bytes]:
    return sum_over(switch, Faults())[0]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss:.1%}")
def test_losses_change_no_bit(switch: SwitchProcess, calm: list[bytes], loss: float) -> None:
    sums, disturbed, resent = sum_over(switch, Faults(drop=loss))
    assert sums == calm
    if loss >= 0.01:
        assert disturbed > 0
        assert resent > 0


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(Faults(duplicate=0.2, duplicate_s=0.01), id="duplicates"),
        pytest.param(Faults(reorder=0.2, reorder_s=0.01), id="reordering"),
        pytest.param(Faults(corrupt=0.05, corrupt_bits=3), id="bit flips below the UDP checksum"),
        pytest.param(
            Faults(drop=0.02, corrupt=0.02, duplicate=0.1, reorder=0.1, duplicate_s=0.02, jitter_s=0.001), id="all"
        ),
    ],
)
def test_other_faults_change_no_bit(switch: SwitchProcess, calm: list[bytes], faults: Faults) -> None:
    sums, disturbed, _ = sum_over(switch, faults)
    assert sums == calm
    assert disturbed > 10
