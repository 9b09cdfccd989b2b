"""The calls to the switch, which block: a thread for each shard, so that one that does not answer holds up no other.
What changes the switch goes before what looks at it."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from ..binding import Binding
from ..control.events import ROOT
from ..control.stall_detector import WAITS_POLLED, Observation
from ..driver import BY_RANK, Counters, Driver, DriverError, JobCounters, SlotWait

log = structlog.get_logger("inagg.control")
T = TypeVar("T")

ORDER, LOOK = range(2)
"""What a shard's thread takes first."""
LOOK_S: Final = 3.0
"""How long a look at a shard may take. The thread still waits for its answer then, but whoever asked does not."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Slots of one job with incomplete sums: how many, and (shard, slot) of those that wait longest."""

    count: int
    longest: tuple[tuple[int, SlotWait], ...]


@dataclass(frozen=True, slots=True)
class Trunk:
    """What a job has sent from a switch to its parent, in datagrams: see `JobCounters`."""

    switch: str
    partials: int
    partials_again: int


@dataclass(frozen=True, slots=True)
class SwitchSnapshot:
    """The switch at one moment. ``shards`` in order; ``waits`` by job number, without those that it does not tell.

    ``below``: the shards of the switches below it, by name; ``placed``: of the jobs that use them, by number, the ranks
    at each. ``waits`` are those of all switches, by rank; ``unanswered``: by job and switch, how many of the slots that
    wait longest have all contributions, and no answer from above.
    """

    at: float
    shards: tuple[Counters, ...]
    waits: dict[int, Waits]
    below: Mapping[str, tuple[Counters, ...]] = field(default_factory=dict)
    placed: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    unanswered: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @property
    def drops(self) -> dict[str, int]:
        """Datagrams that were dropped, by `Reason.label`, by all shards of all switches."""
        total: Counter[str] = Counter()
        for shard in itertools.chain(self.shards, *self.below.values()):
            total.update(shard.drops_by_label)
        return dict(total)

    def job(self, number: int, workers: int) -> JobCounters:
        """The counters of a job, summed over the shards; by rank, from the switch where each is."""
        lists = {name: [0] * workers for name in BY_RANK}
        total = JobCounters(**lists)  # type: ignore[arg-type]  # lists, and the numbers have defaults
        for name, ranks in self.placed.get(number, {ROOT: tuple(range(workers))}).items():
            for shard in self.shards if name == ROOT else self.below.get(name, ()):
                counts = shard.jobs.get(number)
                if counts is None:
                    continue
                for field_name, values in lists.items():
                    # A leaf that came back counts anew, and may have had other ranks before.
                    for rank, count in zip(ranks, getattr(counts, field_name), strict=False):
                        values[rank] += count
                total.invalid_codes += counts.invalid_codes
        # A leaf counts whole blocks, where the root counts their parts; and one that came back has begun anew.
        leaves = [self.below.get(name, ()) for name in self.placed[number]] if number in self.placed else [self.shards]
        total.results = max(
            (sum(shard.jobs[number].results for shard in shards if number in shard.jobs) for shards in leaves),
            default=0,
        )
        for trunk in self.trunks(number):
            total.partials += trunk.partials
            total.partials_again += trunk.partials_again
        return total

    def trunks(self, number: int) -> list[Trunk]:
        """What a job has sent up from each switch below that knows it."""
        found = []
        for name, shards in self.below.items():
            mine = [shard.jobs[number] for shard in shards if number in shard.jobs]
            if mine:
                counts = sum(job.partials for job in mine), sum(job.partials_again for job in mine)
                found.append(Trunk(name, *counts))
        return found

    def observation(self, number: int, workers: int) -> Observation:
        """What there is to see of a job."""
        waits, counts = self.waits.get(number, Waits(0, ())), self.job(number, workers)
        return Observation(tuple(counts.contributions), tuple(counts.bytes_in), waits.count, waits.longest)


class DriverThreads:
    """A driver, called from one thread for each shard, one call after the other. The calls raise `DriverError`,
    whatever the driver raised."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._shards = [_ShardThread(shard) for shard in range(len(driver.shards))]

    async def bind(self, bindings: Sequence[Binding]) -> None:
        """Bind one epoch on every shard."""
        await self._order(lambda shard: self._driver.bind(shard, bindings[shard]))

    async def unbind(self, job: int) -> None:
        """Drop a job on every shard."""
        await self._order(lambda shard: self._driver.unbind(shard, job))

    async def restart(self, shard: int) -> None:
        """Start a shard again that has died."""
        await self._shards[shard].call(ORDER, lambda: self._driver.restart(shard))

    async def _order(self, call: Callable[[int], None]) -> None:
        """``call`` for every shard. One that fails does not keep the others from being asked; all have answered when
        this returns or raises."""
        calls = (thread.call(ORDER, partial(call, shard)) for shard, thread in enumerate(self._shards))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise DriverError("; ".join(map(str, failures)))

    async def snapshot(self, jobs: Iterable[int], limit: int = WAITS_POLLED) -> SwitchSnapshot:
        """Counters of all shards, and the waiting slots of ``jobs``, at most ``limit`` of each listed."""
        numbers = list(jobs)
        found = await self.look(numbers, limit)
        waits = {job: joined for job in numbers if (joined := join_waits([told[job] for _, told in found], limit))}
        return SwitchSnapshot(time.monotonic(), tuple(counters for counters, _ in found), waits)

    async def look(self, jobs: Iterable[int], limit: int) -> list[tuple[Counters, dict[int, Told]]]:
        """The same, shard by shard."""
        numbers = list(jobs)

        def look(shard: int) -> tuple[Counters, dict[int, Told]]:
            waits = {job: self._driver.waiting(shard, job, limit) for job in numbers}
            return self._driver.counters(shard), waits

        calls = (thread.look(partial(look, shard)) for shard, thread in enumerate(self._shards))
        return list(await asyncio.gather(*calls))

    async def close(self) -> None:
        """Wait for the calls in progress; the driver itself stays open."""
        await asyncio.gather(*(asyncio.to_thread(thread.close) for thread in self._shards))


Told = tuple[int, list[SlotWait]] | None
"""What `Driver.waiting` says."""


def join_waits(told: list[Told], limit: int) -> Waits | None:
    """What the shards say of one job, as one; None if one of them does not tell."""
    count, found = 0, []
    for shard, of_shard in enumerate(told):
        if of_shard is None:
            return None
        count += of_shard[0]
        found += [(shard, wait) for wait in of_shard[1]]
    found.sort(key=lambda wait: -wait[1].waiting_s)
    return Waits(count, tuple(found[:limit]))


Queued = tuple[int, int, Callable[[], None], Future[Any] | None]
"""Its rank, its number, what to do, and whose result that is."""


class _ShardThread:
    """The thread that talks with one shard."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._queue = queue.PriorityQueue[Queued]()
        self._numbers = itertools.count()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name=f"inagg-driver-{shard}", daemon=True)
        self._thread.start()

    async def call(self, rank: int, call: Callable[[], T]) -> T:
        """``call()``, on this thread. Raises `DriverError`."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except DriverError as error:
                future.set_exception(error)
            except Exception as error:
                # A bug of a driver must not end more than what it was called for.
                log.exception("driver_call_failed")
                future.set_exception(DriverError(f"unexpected {type(error).__name__}: {error}"))
            else:
                future.set_result(result)

        self._queue.put((rank, next(self._numbers), run, future))
        return await asyncio.wrap_future(future)

    async def look(self, call: Callable[[], T]) -> T:
        """The same, behind all orders, and for `LOOK_S` at most."""
        try:
            async with asyncio.timeout(LOOK_S):
                return await self.call(LOOK, call)
        except TimeoutError:
            raise DriverError(f"shard {self._shard} has not answered for {LOOK_S:.0f} s") from None

    def _run(self) -> None:
        while not self._ends:
            self._queue.get()[2]()

    def _end(self) -> None:
        self._ends = True

    def close(self) -> None:
        """End the thread, after the call in progress; calls that have not begun are cancelled."""
        self._queue.put((-1, -1, self._end, None))
        self._thread.join()
        while not self._queue.empty():
            future = self._queue.get()[3]
            if future is not None:
                future.cancel()
