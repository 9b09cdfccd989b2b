"""The calls to the switch, which block: a thread for each shard, so that one that does not answer holds up no other.
What changes the switch goes before what looks at it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from ..binding import Address, Binding
from ..control.events import ROOT
from ..control.stall_detector import WAITS_POLLED, Observation
from ..driver import BY_RANK, Counters, Driver, DriverError, JobCounters, SlotWait
from ..p4 import TARGETS

PORT_TAKEN_S: Final = 5.0
"""Seconds for which a shard that is to be started again waits for its port, which another program may have got
meanwhile, mostly for a moment: to ask a name server, say."""
PORT_AGAIN_S: Final = 0.1

log = structlog.get_logger("inagg.control")
T = TypeVar("T")

ORDER, LOOK = range(2)
"""Kinds of calls; a shard's thread takes orders first."""
LOOK_S: Final = 3.0
"""Seconds that a look at a shard may take. The thread still waits for its answer then, but whoever asked does not."""

AGAIN_S: Final = 1.0
"""Seconds that a look at a shard may take after one that had no answer: a few looks, one after the other, are answered
within the deadlines of who asks."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Slots of one job with incomplete sums: how many, and (shard, slot) of those that wait longest."""

    count: int
    longest: tuple[tuple[int, SlotWait], ...]


@dataclass(frozen=True, slots=True)
class Trunk:
    """Datagrams that a job has sent from a switch to its parent: see `JobCounters`."""

    switch: str
    partials: int
    partials_again: int


@dataclass(frozen=True, slots=True)
class SwitchSnapshot:
    """The switch, and those below it, at one moment. ``shards`` by switch, in order; ``waits`` by job number, without
    those that it does not tell.

    ``placed``: of the jobs that use switches below, by number, the ranks at each. ``waits`` are those of all switches,
    by rank; ``unanswered``: by job and switch, how many of the slots that wait longest have all contributions, and no
    answer from above.
    """

    at: float
    shards: Mapping[str, tuple[Counters, ...]]
    waits: dict[int, Waits]
    placed: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    unanswered: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    """A sentence for each shard of this switch that does not answer, whose counters are the last that it gave."""
    silent_below: Mapping[str, str] = field(default_factory=dict)
    """A sentence for each switch below that does not answer, by name; its counters are the last, if any."""

    @property
    def drops(self) -> dict[str, int]:
        """Datagrams that were dropped, by `Reason.label`, by all shards of all switches."""
        total: Counter[str] = Counter()
        for shard in itertools.chain(*self.shards.values()):
            total.update(shard.drops_by_label)
        return dict(total)

    def job(self, number: int, workers: int) -> JobCounters:
        """The counters of a job, summed over the shards; by rank, from the switch where each is."""
        lists = {name: [0] * workers for name in BY_RANK}
        total = JobCounters(**lists)  # type: ignore[arg-type]  # lists, and the numbers have defaults
        for name, ranks in self.placed.get(number, {ROOT: tuple(range(workers))}).items():
            for shard in self.shards.get(name, ()):
                counts = shard.jobs.get(number)
                if counts is None:
                    continue
                for field_name, values in lists.items():
                    # A leaf that came back counts anew, and may have had other ranks before.
                    for rank, count in zip(ranks, getattr(counts, field_name), strict=False):
                        values[rank] += count
                total.invalid_codes += counts.invalid_codes
        # A leaf counts whole blocks, where the root counts their parts; and one that came back has begun anew.
        leaves = [self.shards.get(name, ()) for name in self.placed.get(number, (ROOT,))]
        total.results = max(
            (sum(shard.jobs[number].results for shard in shards if number in shard.jobs) for shards in leaves),
            default=0,
        )
        for trunk in self.trunks(number):
            total.partials += trunk.partials
            total.partials_again += trunk.partials_again
        return total

    def trunks(self, number: int) -> list[Trunk]:
        """The trunks of a job from each switch below that knows it."""
        found = []
        for name, shards in self.shards.items():
            mine = [shard.jobs[number] for shard in shards if number in shard.jobs]
            if mine and name != ROOT:
                counts = sum(job.partials for job in mine), sum(job.partials_again for job in mine)
                found.append(Trunk(name, *counts))
        return found

    def observation(self, number: int, workers: int) -> Observation:
        """The counters and waits of a job."""
        waits, counts = self.waits.get(number, Waits(0, ())), self.job(number, workers)
        return Observation(tuple(counts.contributions), tuple(counts.bytes_in), waits.count, waits.longest)


class DriverThreads:
    """A driver, called from one thread for each shard, one call after the other. The calls raise `DriverError`,
    whatever the driver raised."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        whole = f"the {driver.name} switch" if driver.name in TARGETS else None  # which has no shards to speak of
        self._shards = [_ShardThread(shard, whole or f"shard {shard}") for shard in range(len(driver.shards))]
        self._last = [Counters() for _ in driver.shards]  # of each shard

    async def bind(self, bindings: Sequence[Binding]) -> None:
        """Bind one epoch on every shard."""
        await self._order(lambda shard: self._driver.bind(shard, bindings[shard]))

    async def unbind(self, job: int) -> None:
        """Drop a job on every shard."""
        await self._order(lambda shard: self._driver.unbind(shard, job))

    async def restart(self, shard: int) -> None:
        """Start a shard again that has died. It must have the port that it had: if another program has got that, it is
        waited for, for `PORT_TAKEN_S`. Who cancels this while it waits need not wait for anything."""
        give_up_at = time.monotonic() + PORT_TAKEN_S
        while True:
            await self._until_free(shard, give_up_at)
            try:
                await self._shards[shard].call(ORDER, lambda: self._driver.restart(shard))
                return
            except DriverError:
                if time.monotonic() >= give_up_at or not port_taken(self._driver.shards[shard].address):
                    raise  # else it was taken just now

    async def _until_free(self, shard: int, give_up_at: float) -> None:
        """Wait until the port of a shard is free, or until then."""
        address, told = self._driver.shards[shard].address, False
        while time.monotonic() < give_up_at and port_taken(address):
            if not told:
                told = True
                then = f"it is waited for, for {PORT_TAKEN_S:g} s"
                log.warning("port_taken", shard=shard, port=address[1], what="another program has it", then=then)
            await asyncio.sleep(PORT_AGAIN_S)

    async def _order(self, call: Callable[[int], None]) -> None:
        """``call`` for every shard."""
        await all_done(thread.call(ORDER, partial(call, shard)) for shard, thread in enumerate(self._shards))

    async def snapshot(self, jobs: Iterable[int], limit: int = WAITS_POLLED) -> SwitchSnapshot:
        """Counters of all shards, and the waiting slots of ``jobs``, at most ``limit`` of each listed. Fails if no
        shard answers."""
        numbers = list(jobs)
        found = await self._look(numbers, limit)
        silent = [str(answer) for answer in found if isinstance(answer, DriverError)]
        told: list[dict[int, Told]] = []
        for shard, answer in enumerate(found):
            if isinstance(answer, DriverError):
                if len(silent) == len(found):
                    raise answer
                told.append(dict.fromkeys(numbers, (0, [])))
            else:
                self._last[shard], waiting = answer
                told.append(waiting)
        waits = {job: joined for job in numbers if (joined := join_waits([of[job] for of in told], limit))}
        return SwitchSnapshot(time.monotonic(), {ROOT: tuple(self._last)}, waits, silent=tuple(silent))

    async def look(self, jobs: Iterable[int], limit: int) -> list[tuple[Counters, dict[int, Told]]]:
        """The counters and waits of all shards, shard by shard."""
        answers = []
        for answer in await self._look(list(jobs), limit):
            if isinstance(answer, DriverError):
                raise answer
            answers.append(answer)
        return answers

    async def _look(self, numbers: Sequence[int], limit: int) -> list[tuple[Counters, dict[int, Told]] | DriverError]:
        """The counters and waits of each shard, or why it does not answer."""

        def look(shard: int) -> tuple[Counters, dict[int, Told]]:
            waits = {job: self._driver.waiting(shard, job, limit) for job in numbers}
            return self._driver.counters(shard), waits

        calls = (thread.look(partial(look, shard)) for shard, thread in enumerate(self._shards))
        answers: list[tuple[Counters, dict[int, Told]] | DriverError] = []
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, DriverError):
                raise answer
            answers.append(answer)
        return answers

    async def close(self) -> None:
        """Wait for the calls in progress; the driver itself stays open."""
        await asyncio.gather(*(asyncio.to_thread(thread.close) for thread in self._shards))


def port_taken(address: Address) -> bool:
    """Whether another socket has this UDP address now."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        if family == socket.AF_INET6:  # as shards do: what has the port over IPv4 is in nobody's way
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


Told = tuple[int, list[SlotWait]] | None
"""Answer of `Driver.waiting`."""


async def all_done(calls: Iterable[Awaitable[None]]) -> None:
    """Wait for all, also where some fail. Raises what they raised: one `DriverError` of several."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise DriverError("; ".join(map(str, failures)))


def join_waits(told: list[Told], limit: int) -> Waits | None:
    """The answers of the shards on one job, as one; None if one of them does not tell."""
    count, found = 0, []
    for shard, of_shard in enumerate(told):
        if of_shard is None:
            return None
        count += of_shard[0]
        found += [(shard, wait) for wait in of_shard[1]]
    found.sort(key=lambda wait: -wait[1].waiting_s)
    return Waits(count, tuple(found[:limit]))


Queued = tuple[int, int, Callable[[], None], Future[Any] | None]
"""A call: its rank, its number, what to do, and whose result that is."""


class _ShardThread:
    """The thread that talks with one shard."""

    def __init__(self, shard: int, what: str) -> None:
        """``what``: the shard, in sentences."""
        self._what = what
        self._queue = queue.PriorityQueue[Queued]()
        self._numbers = itertools.count()
        self._ends = False
        self._silent_since: float | None = None  # when the first look began that had no answer in time
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
                self._silent_since = None
                future.set_result(result)

        self._queue.put((rank, next(self._numbers), run, future))
        return await asyncio.wrap_future(future)

    async def look(self, call: Callable[[], T]) -> T:
        """``call()``, on this thread, behind all orders, and for `LOOK_S` at most."""
        now = time.monotonic()
        silent_since = self._silent_since
        try:
            async with asyncio.timeout(LOOK_S if silent_since is None else AGAIN_S):
                return await self.call(LOOK, call)
        except TimeoutError:
            if silent_since is None:
                silent_since = self._silent_since = now
            since_s = time.monotonic() - silent_since
            raise DriverError(f"{self._what} has not answered for {since_s:.0f} s") from None

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
