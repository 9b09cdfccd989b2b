"""What is counted of several shards, and of what came from elsewhere."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from inagg_host.core.state import FOREIGN, REPEATED
from inagg_host.io.tally import Tally
from inagg_host.stats import Counters

from .rig import LANES, begun


def test_counts_of_all_shards_and_of_both_loops_are_added() -> None:
    engine, _ = begun(100 * LANES, LANES, 8, shards=2)
    shards, counters = engine.state.shards, Counters()
    link: Any = SimpleNamespace(traffic=(90, 80, 7000, 6000))
    loop: Any = SimpleNamespace(phases=np.array([1.0, 2.0, 3.0, 4.0]), strangers=100)
    steps: Any = SimpleNamespace(strangers=200)
    tally = Tally(engine, link, loop, steps, counters)
    shards["retransmitted"], shards["timeouts"] = (1, 2), (3, 5)
    shards["counts"][:, REPEATED], shards["counts"][:, FOREIGN] = (10, 20), (30, 40)
    for _ in range(2):  # nothing is counted twice
        tally.update()
    assert (counters.datagrams_out, counters.datagrams_in, counters.bytes_out, counters.bytes_in) == link.traffic
    assert (counters.resent, counters.timeouts, counters.repeated, counters.foreign) == (3, 8, 30, 370)
    assert (counters.encode_s, counters.network_s, counters.decode_s, counters.idle_s) == (1, 2, 3, 4)
    assert counters.rtt_least_s == 0, "nothing is measured yet"
    shards["rtt_min_s"] = math.inf, 0.25
    tally.update()
    assert counters.rtt_least_s == 0.25
    assert tally.datagrams() == (90, 3, 80)
