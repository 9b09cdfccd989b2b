"""Orders of the registry to the switches, for jobs, and calls that wait for them: for slots that ended jobs still
have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import structlog

from ..control import events as ev
from ..control.refusals import Code, ControlError
from ..control.registry import Registry
from ..driver import Driver, DriverError
from .switch_tree import SwitchTree

T = TypeVar("T")
Order = ev.Bind | ev.Unbind

ROOM_WAIT_S: Final = 2.0
"""Seconds that a call that finds no room, or that has ended a job, waits for the switch to drop jobs that have
ended."""

log = structlog.get_logger("inagg.control")


class Orders:
    """The orders of one controller, on its event loop."""

    def __init__(
        self,
        registry: Registry,
        tree: SwitchTree,
        driver: Driver,
        stopping: Callable[[], ControlError | None],
        pump: Callable[[], None],
    ) -> None:
        """``stopping``: what those who wait are told when the switch stops, None before; ``pump`` is called when
        something has come about in the registry."""
        self._registry, self._tree, self._driver = registry, tree, driver
        self._stopping, self._pump = stopping, pump
        self._now = time.monotonic
        self._queue: asyncio.Queue[Order] = asyncio.Queue()
        self._carrying: set[asyncio.Task[None]] = set()
        """Orders that are being carried out."""
        self._freed = asyncio.Event()
        """Set when the switch has dropped a job, or failed to."""
        self._restarted = asyncio.Event()
        """Cleared while a shard that has died is started again."""
        self._restarted.set()

    def put(self, order: Order) -> None:
        """Give an order when its turn comes."""
        self._queue.put_nowait(order)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Inside, none is given: a shard is being started again."""
        self._restarted.clear()
        try:
            yield
        finally:
            self._restarted.set()

    async def stop(self) -> None:
        """Give none any more; `obey` has been cancelled."""
        self._freed.set()  # who waits for room learns that the switch is stopping
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    # ---------------------------------------------------------------------------------- who waits for room

    async def with_room(self, call: Callable[[], T]) -> T:
        """``call()``, again if there is no room for it while the switch still has to drop jobs that ended. Raises
        `ControlError`."""
        give_up_at = self._now() + ROOM_WAIT_S
        while True:
            if (stops := self._stopping()) is not None:
                raise stops
            try:
                return call()
            except ControlError as error:
                if error.code is not Code.RESOURCE_EXHAUSTED or not self._on_its_way:
                    raise
                if not await self._room_until(give_up_at):
                    raise error from None

    async def dropped(self, job: int) -> None:
        """Wait until the switch has dropped a job, if that has ended, or failed to; but not for long."""
        give_up_at = self._now() + ROOM_WAIT_S
        while job in self._on_its_way and self._stopping() is None and await self._room_until(give_up_at):
            pass

    @property
    def _on_its_way(self) -> set[int]:
        """Numbers of jobs that have ended and that the switch is about to drop."""
        return self._registry.jobs.quarantine.jobs.keys() - self._registry.jobs.quarantine.retries.keys()

    async def _room_until(self, give_up_at: float) -> bool:
        """Wait until the switch has dropped a job, or failed to; False if that is too late."""
        self._freed.clear()
        try:
            async with asyncio.timeout(max(0.0, give_up_at - self._now())):
                await self._freed.wait()
        except TimeoutError:
            return False
        return True

    # ---------------------------------------------------------------------------------- giving them

    async def obey(self) -> None:
        """Give the registry's orders to the switch: those for one job one after the other, those for others meanwhile,
        since a switch of the tree that does not answer holds up the jobs that use it."""
        last: dict[int, asyncio.Task[None]] = {}
        while True:
            order = await self._queue.get()
            task = asyncio.create_task(self._carry_out(order, last.get(order.job)), name=f"inagg-order-{order.job}")
            last[order.job] = task
            self._carrying.add(task)

            def over(done: asyncio.Task[None], job: int = order.job) -> None:
                self._carrying.discard(done)
                if last.get(job) is done:
                    del last[job]

            task.add_done_callback(over)

    async def _carry_out(self, order: Order, before: asyncio.Task[None] | None) -> None:
        """Give one order, when the one ``before`` is done, and tell the registry how it went."""
        if before is not None:
            await asyncio.wait((before,))
        await self._restarted.wait()
        try:
            if isinstance(order, ev.Bind):
                await self._tree.bind(order)
                self._registry.bound(self._now(), order.job, order.serial)
            else:
                await self._count_last(order.job)
                await self._tree.unbind(order)
                self._registry.jobs.unbound(order.job)
                self._freed.set()
        except DriverError as error:
            log.error("driver_failed", order=type(order).__name__.lower(), job_number=order.job, error=str(error))
            if isinstance(order, ev.Unbind) or (self._driver.died() is None and self._tree.has(order.by_switch)):
                self._failed(order, str(error))
            # Else the job gets a new order when the shard is back, or its ranks have joined through other switches, or
            # the switch ends.
        except Exception as error:
            # A bug. Orders for other jobs go on, and nobody waits for what this one was for.
            log.exception("order_failed", order=type(order).__name__.lower(), job_number=order.job)
            self._failed(order, f"a bug ({type(error).__name__}: {error}), of which the switch's log has more")
        self._pump()

    def _failed(self, order: Order, why: str) -> None:
        if isinstance(order, ev.Bind):
            self._registry.bind_failed(self._now(), order.job, order.serial, why)
        else:
            self._registry.jobs.quarantine.failed(self._now(), order.job)
            self._freed.set()  # whoever waits for room learns that there will be none

    async def _count_last(self, number: int) -> None:
        """Ask what an ended job has done, before the switch forgets it."""
        job = self._registry.jobs.quarantine.jobs.get(number)
        if job is None or not job.epochs.ran:
            return
        try:
            snapshot = await self._tree.look([job], 0)
        except DriverError as error:  # if it is more than slow, the order will say so
            log.warning("totals_unknown", job_number=number, why=str(error))
            return
        silent = [*snapshot.silent, *(why for name, why in snapshot.silent_below.items() if name in job.roster.placed)]
        if silent:
            log.warning("totals_unknown", job_number=number, why="; ".join(silent))
        else:
            self._registry.jobs.past.count_last(number, snapshot.job(number, job.spec.workers))
