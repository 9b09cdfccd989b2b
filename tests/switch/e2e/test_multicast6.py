"""Results to groups of IPv6: the same sums, sent once, and a switch that says so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.link.loopback import needs_groups6
from tests.switch.e2e.running import Run, Switch, gradients

from inagg_switch.multicast_groups import LOCAL

WORKERS, SIZES = 3, (1, 3_000, 400_000)
IPV6 = ("--listen", "[::1]:0")


@needs_groups6
def test_the_sums_are_those_of_a_switch_that_sends_to_each_rank(start: Callable[..., Switch]) -> None:
    arrays = gradients(WORKERS, SIZES, 1)
    sums, sent = [], []
    for multicast in ("auto", "off"):
        switch = start(*IPV6, "--multicast", multicast)
        assert switch.ready["multicast"] == (LOCAL[6] if multicast == "auto" else None)
        sums.append(Run(switch.address, arrays, job="ipv6", seed=7, format="nat8").results()[0])
        with switch.client() as client:
            sent.append(client.stats().shards[0].datagrams_out)
    for a, b in zip(*sums, strict=True):
        np.testing.assert_array_equal(a, b)
    assert sent[0] * (WORKERS - 1) < sent[1]  # to the group once, and perhaps some results again
