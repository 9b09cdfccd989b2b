"""Costs of the stages of the software switch: receive, parse, add, re-encode, send; on one core, one batch at a time.

The switch's kernels are timed alone, over the batches that a round has, in compiled loops: `add` takes contributions
into sums, `re-encode` writes results. `parse` is what else it takes to get a round's batches into the aggregator and
results out of it: to validate, to find slots, to count.

Where slots hold natural codes as they came (`inagg_switch.aggregation.deferred_sum`), these are added in the pass that
writes results: then the stages are `keep` and `add, re-encode`, and the latter reads the last of a round's batches.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inagg_link.base import Batch, datagrams_per_call
from inagg_link.jit import jit
from inagg_link.port import key_of
from inagg_link.udp import UdpLink
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.aggregation.deferred_sum import hold_nat4, hold_nat8
from inagg_switch.aggregation.kernels import NAT8, absorb
from inagg_switch.aggregation.peers import row_of
from inagg_switch.aggregation.receive import row_of_slot, take_batch
from inagg_switch.aggregation.replies import write_result
from inagg_switch.aggregation.validation import SLOT_AT, u32
from inagg_switch.binding import Binding
from inagg_wire.formats import JobFormat
from inagg_wire.layout import HEADER_BYTES, Op, datagram_bytes
from inagg_wire.slots import Lease, slots_for_window

from .switch import Replay

JOB = 1


@jit
def _take(batches: Any, size: int, sources: Any, t: Any) -> None:
    """All that the aggregator does with ``batches``, uint8, (batches, bytes); ``sources``: `row_of` each."""
    for k in range(len(batches)):
        taken = 0
        while taken * size < batches.shape[1]:
            taken, _ = take_batch(batches[k], size, taken, 0.0, sources[k], t, t.out)


@jit
def _add(batches: Any, size: int, acc: Any, job: Any, op: int) -> None:
    """Take the payloads of a round's ``batches`` into ``acc`` (int32, (datagrams, lanes)), as the binding ``job`` has
    it."""
    encoding, lanes, levels, held = job.encoding[op], job.lanes[op], job.levels[op], job.held[op]
    for k in range(len(batches)):
        data = batches[k]
        for i in range(len(data) // size):
            payload, row = data[i * size + HEADER_BYTES : (i + 1) * size], acc[i]
            if held == 0:
                absorb(encoding, row, payload, lanes, k == 0, levels)
            elif held == NAT8:
                hold_nat8(row.view(np.uint8)[k * lanes :], payload, lanes, levels)
            else:
                hold_nat4(row.view(np.uint8)[k * lanes // 2 :], payload, lanes)


@jit
def _write(last: Any, size: int, out: Any, row: int, t: Any) -> None:
    """Write to ``out``, uint8, (datagrams, bytes), the results of the slots that the contributions in ``last`` name,
    of the job in ``row``."""
    for i in range(len(last) // size):
        d = last[i * size : (i + 1) * size]
        row_of_slot(u32(d, SLOT_AT), row, t.jobs, t.slots)
        write_result(out[i], d, row, t.jobs, t.slots, t.counts, t.noise)


def _us(step: Callable[..., object], *given: Any) -> float:
    start_s = time.perf_counter()
    step(*given)
    return (time.perf_counter() - start_s) * 1e6


def _kernel_us(kernel: Callable[..., object], data: NDArray[np.uint8], *given: Any) -> float:
    """The time of a kernel for ``data``, without that of Python to call it."""
    kernel(data[:0], *given)  # what was between has driven it out of the caches
    return _us(kernel, data, *given) - _us(kernel, data[:0], *given)


def bench_stages(fmt: JobFormat, workers: int, lanes: int, runs: int) -> Iterator[dict[str, Any]]:
    """A line per stage: microseconds per batch, the median of ``runs``; how many batches it has in a round, in which
    every worker sends one and gets one; and its share of a round."""
    up = datagram_bytes(fmt.encoding(Op.SUM), lanes)
    down = datagram_bytes(fmt.result_encoding(Op.SUM, workers), lanes)
    count = min(datagrams_per_call(up), datagrams_per_call(down))
    lease = Lease(0, slots_for_window(count))
    binding = Binding(JOB, 1, fmt, lanes, lease, 1, tuple(("127.0.0.1", 1 + rank) for rank in range(workers)))
    switch = Aggregator(lease.slots, lanes)
    switch.bind(binding)
    held = bool(switch.tables.jobs.table[int(switch.tables.jobs.row[JOB])]["held"][Op.SUM])
    early = workers - held  # batches that are taken into sums, or kept, before results are made
    us = _measure(switch, binding, (count, up, down), early, runs)
    parse_us = max(0.0, us["take"] - us["add"] - us["write"])  # on a busy machine a part may seem to take more
    of_round = {
        "receive": (workers * us["receive"], workers),
        "parse": (parse_us, workers),
        "keep" if held else "add": (us["add"], early),
        "add, re-encode" if held else "re-encode": (us["write"], 1),
        "send": (workers * us["send"], workers),
    }
    total_us = sum(round_us for round_us, _ in of_round.values())
    for stage, (round_us, batches_of_round) in of_round.items():
        if not batches_of_round:
            continue
        yield {
            "bench": "stages",
            "stage": stage,
            "workers": workers,
            "format": fmt.name,
            "lanes": lanes,
            "datagrams": count,
            "runs": runs,
            "us_per_batch": round_us / batches_of_round,
            "batches_per_round": batches_of_round,
            "share_of_round": round_us / total_us,
            "elements_per_s": workers * count * lanes / (total_us * 1e-6),
        }


def _measure(
    switch: Aggregator, binding: Binding, sizes: tuple[int, int, int], early: int, runs: int
) -> dict[str, float]:
    """Medians of the microseconds that kernels and link took. ``sizes``: datagrams of a batch, and bytes of a datagram
    up and down. Raises RuntimeError if the switch has lost some."""
    count, up, down = sizes
    t = switch.tables
    row = int(t.jobs.row[JOB])
    sources = np.array([row_of(t.peers.keys, t.peers.rows, key_of(address)) for address in binding.children])
    replays = [Replay(binding, rank, count, 1) for rank in range(binding.world)]
    sums, results = np.zeros((count, binding.lanes), np.int32), np.zeros((count, down), np.uint8)
    times: dict[str, list[float]] = defaultdict(list)
    with UdpLink() as link, UdpLink() as peer:
        for _ in range(1 + runs):
            batches = np.stack([replay.next_batch() for replay in replays])
            peer.send(Batch(batches[0], up, link.address))
            times["receive"].append(_us(link.receive, 1.0))
            add = partial(_kernel_us, _add, batches[:early], up, sums, t.jobs.table[row], int(Op.SUM))
            times["add"].append(add() if early else 0.0)  # a single worker's contribution is kept nowhere
            taken_us = _kernel_us(_take, batches[:-1], up, sources[:-1], t)
            times["write"].append(_kernel_us(_write, batches[-1], up, results, row, t))
            times["take"].append(taken_us + _kernel_us(_take, batches[-1:], up, sources[-1:], t))
            times["send"].append(_us(link.send, Batch(results.reshape(-1), down, peer.address)))
            peer.receive(0.0)
    if switch.counters().jobs[JOB].results != count * (1 + runs):
        raise RuntimeError("the switch did not add up all that it was given")
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}  # the first run compiles
