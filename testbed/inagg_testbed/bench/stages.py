"""Costs of the stages of the software switch: receive, parse, add, re-encode, send; on one core, one batch at a time.

A stage is timed as the difference that it makes: the same batch is given to the same code with the stage and without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from inagg_link.base import Batch, datagrams_per_call
from inagg_link.udp import UdpLink
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Binding
from inagg_wire.formats import JobFormat
from inagg_wire.layout import Op, datagram_bytes
from inagg_wire.slots import Lease, slots_for_window

from .switch import Replay


def _median_us(prepare: Callable[[], object], step: Callable[[], object], runs: int) -> float:
    """Median time of ``step``, each after a ``prepare`` that does not count."""
    times = []
    for _ in range(runs):
        prepare()
        start_s = time.perf_counter()
        step()
        times.append(time.perf_counter() - start_s)
    return statistics.median(times) * 1e6


def bench_stages(fmt: JobFormat, workers: int, lanes: int, runs: int) -> Iterable[dict[str, Any]]:
    """A line per stage: microseconds per batch, the median of ``runs``, and its share of a round, in which every worker
    sends one batch, gets one, and the switch re-encodes one."""
    up = datagram_bytes(fmt.encoding(Op.SUM), lanes)
    down = datagram_bytes(fmt.result_encoding(Op.SUM, workers), lanes)
    count = min(datagrams_per_call(up), datagrams_per_call(down))
    lease = Lease(0, slots_for_window(count))
    with UdpLink() as link, UdpLink() as peer:
        sources = tuple(("127.0.0.1", 1 + rank) for rank in range(workers))
        binding = Binding(1, 1, fmt, lanes, lease, 1, sources)
        switch = Aggregator(lease.slots, lanes)
        data = [Replay(binding, rank, count, 1).next_batch() for rank in range(workers)]

        def take(rank: int) -> None:
            for _ in switch.receive(data[rank], up, sources[rank], 0.0):
                pass

        def fresh() -> None:
            switch.bind(binding)

        def all_but_last() -> None:
            fresh()
            for rank in range(workers - 1):
                take(rank)

        def finished() -> None:
            all_but_last()
            take(workers - 1)

        def one_before() -> None:
            fresh()
            take(1)

        def stale() -> None:
            fresh()
            switch._slots.table["tag"][:] = 2  # every datagram is parsed, matched and dropped

        finished()  # compile
        received = _median_us(lambda: peer.send(Batch(data[0], up, link.address)), lambda: link.receive(1.0), runs)
        results = np.zeros(count * down, np.uint8)
        sent = _median_us(lambda: peer.receive(0.0), lambda: link.send(Batch(results, down, peer.address)), runs)
        parsed = _median_us(stale, lambda: take(0), runs)

        def beyond_parsing(prepare: Callable[[], object]) -> float:
            # A stage that takes next to nothing may seem to take less than that.
            return max(0.0, _median_us(prepare, lambda: take(0), runs) - parsed)

        first, again = beyond_parsing(fresh), beyond_parsing(finished)
        more = beyond_parsing(one_before) if workers > 1 else 0.0
        added = (first + (workers - 1) * more) / workers
        round_us = {
            "receive": workers * received,
            "parse": workers * parsed,
            "add": workers * added,
            "re-encode": again,
            "send": workers * sent,
        }
        each = {"receive": received, "parse": parsed, "add": added, "re-encode": again, "send": sent}
        total = sum(round_us.values())
        for stage, us in each.items():
            yield {
                "bench": "stages",
                "stage": stage,
                "workers": workers,
                "format": fmt.name,
                "lanes": lanes,
                "datagrams": count,
                "runs": runs,
                "us_per_batch": us,
                "share_of_round": round_us[stage] / total,
                "elements_per_s": workers * count * lanes / (total * 1e-6),
            }
