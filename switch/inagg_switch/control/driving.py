"""The calls to the switch: all in one thread, since a driver is used by one at a time and its calls block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ..driver import Counters, Driver, DriverError, JobCounters, SlotWait
from .events import Bind
from .watching import WAITS_POLLED, Observation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waits:
    """Slots of one job with incomplete sums: how many, and (shard, slot) of those that wait longest."""

    count: int
    longest: tuple[tuple[int, SlotWait], ...]


@dataclass(frozen=True, slots=True)
class Look:
    """The switch at one moment. ``shards`` in order; ``waits`` by job number, without those that it does not tell."""

    at: float
    shards: tuple[Counters, ...]
    waits: dict[int, Waits]

    def job(self, number: int, workers: int) -> JobCounters:
        """The counters of a job, summed over the shards."""
        zeros = [0] * workers
        total = JobCounters(zeros, zeros, zeros, zeros, zeros)
        for shard in self.shards:
            counts = shard.jobs.get(number)
            if counts is None:
                continue
            for field in ("contributions", "duplicates", "resends", "stale", "bytes_in"):
                setattr(
                    total, field, [a + b for a, b in zip(getattr(total, field), getattr(counts, field), strict=True)]
                )
            total.results += counts.results
            total.invalid_codes += counts.invalid_codes
        return total

    def observation(self, number: int, workers: int) -> Observation:
        """What there is to see of a job."""
        waits = self.waits.get(number, Waits(0, ()))
        return Observation(tuple(self.job(number, workers).contributions), waits.count, waits.longest)


class DriverThread:
    """A driver, called from a thread of its own, one call after the other in the order in which they are made.

    The calls raise `DriverError`, whatever the driver raised.
    """

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inagg-driver")

    async def _call(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except DriverError:
            raise
        except Exception as error:
            # A bug of a driver must not end more than what it was called for.
            raise DriverError(f"unexpected {type(error).__name__}: {error}") from error

    async def bind(self, order: Bind) -> None:
        """Bind one epoch on every shard."""

        def call() -> None:
            for shard, binding in enumerate(order.bindings):
                self._driver.bind(shard, binding)

        await self._call(call)

    async def unbind(self, job: int) -> None:
        """Drop a job on every shard. A shard that fails does not keep the others from being asked."""

        def call() -> None:
            failures = []
            for shard in range(len(self._driver.shards)):
                try:
                    self._driver.unbind(shard, job)
                except DriverError as error:
                    failures.append(f"shard {shard}: {error}")
            if failures:
                raise DriverError("; ".join(failures))

        await self._call(call)

    async def look(self, jobs: Iterable[int], limit: int = WAITS_POLLED) -> Look:
        """Counters of all shards, and the waiting slots of ``jobs``, at most ``limit`` of each listed."""
        numbers = list(jobs)

        def call() -> Look:
            shards = range(len(self._driver.shards))
            counters = tuple(self._driver.counters(shard) for shard in shards)
            waits = {job: found for job in numbers if (found := self._waits(job, limit)) is not None}
            return Look(self._clock(), counters, waits)

        return await self._call(call)

    def _waits(self, job: int, limit: int) -> Waits | None:
        count, found = 0, []
        for shard in range(len(self._driver.shards)):
            told = self._driver.waiting(shard, job, limit)
            if told is None:
                return None
            here, waits = told
            count += here
            found += [(shard, wait) for wait in waits]
        found.sort(key=lambda wait: -wait[1].waiting_s)
        return Waits(count, tuple(found[:limit]))

    async def close(self) -> None:
        """Wait for the call in progress; the driver itself stays open."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)
