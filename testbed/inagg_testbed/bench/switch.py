"""How fast the software switch aggregates: contributions replayed at it over loopback, against an echo.

`echo` has as many processes, with datagrams of the same sizes, batches and windows, around processes that
echo and compute nothing. Both are measured in turns, `runs` times, and the medians compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import numba
import numpy as np
from numpy.typing import NDArray

from inagg_link.base import Batch, datagrams_per_call
from inagg_switch.binding import Binding
from inagg_switch.driver import Counters, DriverError
from inagg_switch.software.software_driver import SoftwareConfig, SoftwareDriver
from inagg_switch.text import count_text
from inagg_wire.batch import allocate, payloads
from inagg_wire.formats import Family, JobFormat, admit
from inagg_wire.header import Header
from inagg_wire.layout import LANE_BITS, Kind, Op, datagram_bytes
from inagg_wire.payload import pack
from inagg_wire.slots import Lease, slots_for_window

from ..progress import Doing
from .echo import Load, measure_echo
from .load import Workers

LIMIT_S = 120.0
WARM_UP_S = 0.2
KIND_AT, SLOT_AT, GENERATION_AT = 3, 16, 20
RESULT = int(Kind.RESULT)


@numba.njit(cache=True)
def _stamp(data: Any, size: int, block: int, base: int, slots: int) -> None:
    """Number the datagrams in ``data`` as blocks from ``block`` on."""
    for i in range(len(data) // size):
        words = (base + (block + i) % slots, 1 + (block + i) // slots)
        for j in range(4):
            data[i * size + SLOT_AT + j] = np.uint8(words[0] >> (24 - 8 * j))
            data[i * size + GENERATION_AT + j] = np.uint8(words[1] >> (24 - 8 * j))


@numba.njit(cache=True)
def _answered(data: Any, size: int, base: int, slots: int, generations: Any) -> int:
    """How many results in ``data`` are the first for their block, or -1 if there is something else; ``generations``
    holds the last one by slot."""
    count = 0
    for i in range(len(data) // size):
        if data[i * size + KIND_AT] != RESULT:
            return -1
        slot, generation = 0, 0
        for j in range(4):
            slot = slot << 8 | int(data[i * size + SLOT_AT + j])
            generation = generation << 8 | int(data[i * size + GENERATION_AT + j])
        if generation > generations[slot - base]:
            generations[slot - base] = generation
            count += 1
    return count


class Replay:
    """One worker's contributions, made once and sent again and again under new block numbers: a `load.Feed`."""

    def __init__(self, binding: Binding, worker: int, batch_datagrams: int, window: int) -> None:
        self._lease = binding.lease
        header = Header(
            Kind.CONTRIBUTION,
            Op.SUM,
            binding.format.up,
            binding.lanes,
            binding.job,
            binding.token,
            binding.lease.base,
            1,
        )
        # As many buffers as batches may be unanswered, so that each can be sent again.
        made = [allocate(header, batch_datagrams) for _ in range(window)]
        self.size = made[0][1]
        self._buffers = [data for data, _ in made]
        rng = np.random.default_rng(worker)
        for data in self._buffers:
            for payload in payloads(data, self.size):
                codes = _payload(binding.format, len(binding.children), binding.lanes, rng)
                payload[:] = np.frombuffer(codes, np.uint8)
        self._batch_datagrams = batch_datagrams
        self._sent = 0
        self._generations = np.zeros(binding.lease.slots, np.int64)

    def next_batch(self) -> NDArray[np.uint8]:
        data = self._buffers[self._sent % len(self._buffers)]
        _stamp(data, self.size, self._sent * self._batch_datagrams, self._lease.base, self._lease.slots)
        self._sent += 1
        return data

    def take(self, batch: Batch) -> int:
        fresh = int(_answered(batch.data, batch.size, self._lease.base, self._lease.slots, self._generations))
        if fresh < 0:
            raise RuntimeError(f"the switch refused a contribution: {batch.data[: batch.size].tobytes().hex()}")
        return fresh

    def unanswered(self) -> Iterable[NDArray[np.uint8]]:
        first = max(0, self._sent - len(self._buffers))
        return [self._buffers[i % len(self._buffers)] for i in range(first, self._sent)]


def _payload(fmt: JobFormat, workers: int, lanes: int, rng: np.random.Generator) -> bytes:
    """The payload of one contribution: valid codes, of all levels."""
    if fmt.family is Family.NATURAL:
        sign_bit = LANE_BITS[fmt.up] - 1
        codes = rng.integers(0, fmt.levels(workers) + 1, lanes) | rng.integers(0, 2, lanes) << sign_bit
    else:
        top = fmt.top(workers)
        codes = rng.integers(-top, top + 1, lanes) & ((1 << LANE_BITS[fmt.up]) - 1)
    return pack(fmt.up, codes.astype(np.uint32))


@dataclass(frozen=True, slots=True)
class SwitchRate:
    """One run. Rates count what the switch takes in: n workers contribute n times the elements of a result."""

    elements_per_s: float
    packets_per_s: float
    cpu_s_per_gelement: float
    """CPU seconds of the data planes for 10^9 elements taken in."""
    retries: int


def load_of(fmt: JobFormat, workers: int, lanes: int, window: int) -> Load:
    """The load that workers of a job are; ``window``: batches in flight."""
    encodings = fmt.encoding(Op.SUM), fmt.result_encoding(Op.SUM, workers)
    up, down = (datagram_bytes(encoding, lanes) for encoding in encodings)
    return Load(up, down, min(datagrams_per_call(up), datagrams_per_call(down)), window)


def measure(fmt: JobFormat, workers: int, lanes: int, seconds: float, *, shards: int, load: Load) -> SwitchRate:
    """Replay contributions at a switch for ``seconds``, after a warm-up.

    ``load``: of each worker and shard; with several shards each has worker processes of its own.
    Raises RuntimeError if a worker or the switch fails, click.ClickException if it was given too little time.
    """
    lease = Lease(0, slots_for_window(load.window * load.batch_datagrams))
    try:
        driver = SoftwareDriver(SoftwareConfig(shards=shards, slots=lease.slots))
    except DriverError as error:
        raise click.ClickException(f"the switch did not start: {error}") from None
    with ExitStack() as stack:
        stack.callback(driver.close)
        groups = []
        for i, shard in enumerate(driver.shards):
            group = Workers(workers, shard.address, size=load.size, window=load.window, limit_s=seconds + LIMIT_S)
            stack.enter_context(group)
            binding = Binding(1, 0xC0FFEE, fmt, lanes, lease, 1, tuple(group.addresses))
            driver.bind(i, binding)
            groups.append((group, binding))
        for group, binding in groups:
            feeds = [partial(Replay, binding, rank, load.batch_datagrams, load.window) for rank in range(workers)]
            group.start(feeds)
        _await_results(driver)
        time.sleep(WARM_UP_S)
        before, start_s = [driver.counters(i) for i in range(shards)], time.perf_counter()
        time.sleep(seconds)
        after, elapsed_s = [driver.counters(i) for i in range(shards)], time.perf_counter() - start_s
        retries = sum(report.retries for group, _ in groups for report in group.stop())

    def grown(count: Callable[[Counters], float]) -> float:
        return sum(map(count, after)) - sum(map(count, before))

    contributions = grown(lambda c: sum(c.jobs[1].contributions))
    if not contributions:
        raise _too_short("the switch has taken", seconds)
    return SwitchRate(
        elements_per_s=contributions * lanes / elapsed_s,
        packets_per_s=contributions / elapsed_s,
        cpu_s_per_gelement=grown(lambda c: c.cpu_s) / (contributions * lanes) * 1e9,
        retries=retries,
    )


def _too_short(what: str, seconds: float) -> click.ClickException:
    return click.ClickException(f"{what} nothing in {seconds:g} s: measure for longer with --seconds")


def _await_results(driver: SoftwareDriver) -> None:
    """Until every shard has completed a sum: the first start on a machine compiles kernels."""
    deadline_s = time.monotonic() + LIMIT_S
    while not all(driver.counters(i).jobs[1].results for i in range(len(driver.shards))):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no result within {LIMIT_S:.0f} s: {driver.counters(0)}")
        time.sleep(0.02)


def bench_switch(
    fmt: JobFormat, workers: int, *, lanes: int | None, seconds: float, runs: int, shards: int, window: int,
    progress: Doing = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Measure switch and echo in turns, ``seconds`` each in all ``runs`` together; the medians as one line of results.
    ``progress`` is told each run."""
    lanes = fmt.max_lanes(workers) if lanes is None else lanes
    admit(fmt, workers, lanes)
    load = load_of(fmt, workers, lanes, window)
    rates, echoed, run_s = [], [], seconds / runs
    for number in range(runs):
        progress(f"{count_text(workers, 'worker')}, {fmt.name}, {count_text(shards, 'shard')}: run {number + 1}")
        echo = measure_echo(workers, load, run_s, shards=shards)
        load = echo.load  # smaller, where receive buffers are small: for both
        echoed.append(echo.elements_per_s(lanes))
        if not echoed[-1]:
            raise _too_short("the process that echoes has received", run_s)
        rates.append(measure(fmt, workers, lanes, run_s, shards=shards, load=load))
    middle = statistics.median(r.elements_per_s for r in rates)
    return {
        "bench": "switch",
        "workers": workers,
        "format": fmt.name,
        "lanes": lanes,
        "shards": shards,
        "elements_per_s": middle,
        "packets_per_s": statistics.median(r.packets_per_s for r in rates),
        "cpu_s_per_gelement": statistics.median(r.cpu_s_per_gelement for r in rates),
        "echo_elements_per_s": statistics.median(echoed),
        "ratio_to_echo": middle / statistics.median(echoed),
        "window": load.window,
        "batch_datagrams": load.batch_datagrams,
        "retries": sum(r.retries for r in rates),
        "runs": runs,
    }
