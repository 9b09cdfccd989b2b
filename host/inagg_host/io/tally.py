"""Counts of what a transport has done, for `Counters`."""

from __future__ import annotations

from operator import sub

from inagg_host.core import Engine
from inagg_host.core.state import FOREIGN, REPEATED
from inagg_host.stats import Counters
from inagg_link.base import Link

from .loop import Loop
from .phases import Phase
from .step import Steps

Traffic = tuple[int, int, int]
"""Datagrams: how many were sent, how many of them again, and how many came."""


class Tally:
    """Counts of one transport, whose lock must be held."""

    def __init__(self, engine: Engine, link: Link, loop: Loop, steps: Steps, counters: Counters) -> None:
        """``counters``: those that are brought up to date."""
        self._engine, self._link, self._loop, self._steps, self._counters = engine, link, loop, steps, counters
        self._counted = [0.0] * len(Phase)  # of the phases' seconds, those that are in the counters

    def count_phases(self) -> None:
        """Bring the seconds of each phase into the counters."""
        c, now = self._counters, self._loop.phases.tolist()
        encode_s, network_s, decode_s, idle_s = map(sub, now, self._counted)
        self._counted = now
        c.encode_s += encode_s
        c.network_s += network_s
        c.decode_s += decode_s
        c.idle_s += idle_s

    def datagrams(self) -> Traffic:
        """Datagrams so far."""
        sent, came, *_ = self._link.traffic
        # Of one shard, in a seventh of the time that numpy's sum takes.
        again = sum(self._engine.state.shards["retransmitted"].tolist())
        return sent, again, came

    def update(self) -> None:
        """Bring into the counters what link and engine count themselves, and the phases."""
        self.count_phases()
        shards, c = self._engine.state.shards, self._counters
        c.datagrams_out, c.datagrams_in, c.bytes_out, c.bytes_in = self._link.traffic
        c.resent, c.timeouts = int(shards["retransmitted"].sum()), int(shards["timeouts"].sum())
        c.repeated = int(shards["counts"][:, REPEATED].sum())
        c.foreign = self._steps.strangers + self._loop.strangers + int(shards["counts"][:, FOREIGN].sum())
        c.rtt_s = self._engine.round_trip_s or 0.0
        least_s = float(shards["rtt_min_s"].min())
        c.rtt_least_s = least_s if least_s < float("inf") else 0.0
