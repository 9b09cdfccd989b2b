"""The core with time and a switch: runs a `Registry` on an event loop. Decides nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from ..driver import Driver, DriverError
from . import events as ev
from .admission import JobSpec
from .convert import event_message
from .driving import DriverThread, Look
from .errors import Code, ControlError
from .jobs import Job
from .members import Claim
from .policy import Policy
from .registry import Registry
from .watchers import Watchers

T = TypeVar("T")
Order = ev.Bind | ev.Unbind

ROOM_WAIT_S: Final = 2.0
"""How long a call that finds no room, or that has ended a job, waits for the switch to drop jobs that have ended."""

DEADLINE_MARGIN_S: Final = 0.5
"""How long before its own deadline a client is told who is missing: else it would learn nothing."""

log = structlog.get_logger("inagg.control")


def stopping(why: str = "the switch is stopping") -> ControlError:
    """What every call ends with while the switch stops."""
    return ControlError(Code.UNAVAILABLE, f"{why}: join again, bringing what you had, when it is back")


class Engine:
    """Jobs on a switch. All methods are called on one event loop; `start` first."""

    def __init__(
        self,
        driver: Driver,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
        on_health: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        self.driver = driver
        self.policy = policy
        self.now = clock
        self.started_at = clock()
        self.registry = Registry(driver.shards, driver.limits, policy)
        self.watchers = Watchers(policy)
        self.switch = DriverThread(driver, clock)
        self.healthy = True
        self.last_look: Look | None = None
        """What the switch showed last; None if it has not been looked at."""
        self._on_health = on_health
        self._waiting: dict[int, asyncio.Future[ev.Epoch]] = {}
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._freed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: ControlError | None = None

    async def start(self) -> None:
        """Begin to apply limits, to give orders to the switch, and to look at it."""
        self._tasks = [
            asyncio.create_task(self._obey(), name="inagg-orders"),
            asyncio.create_task(self._every(self.policy.tick_interval_s, self._tick), name="inagg-tick"),
            asyncio.create_task(self._every(self.policy.poll_interval_s, self._poll), name="inagg-poll"),
        ]

    async def stop(self, why: str | None = None) -> None:
        """End all waiting calls and streams with UNAVAILABLE, and say ``why``. Jobs stay bound: the data planes' owner
        closes them."""
        self._stopping = error = stopping(why) if why is not None else stopping()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
        self.watchers.end_all(error)
        self._freed.set()  # who waits for room learns that the switch is stopping
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.switch.close()

    def check_open(self) -> None:
        """Raises `ControlError` if the switch is stopping."""
        if self._stopping is not None:
            raise self._stopping

    def refuse_new(self) -> None:
        """See `Registry.refuse_new`."""
        self.registry.refuse_new(self.now())
        self.pump()

    # ---------------------------------------------------------------------------------- calls

    async def create(self, spec: JobSpec) -> tuple[Job, bool]:
        """See `Registry.create`."""
        return await self._with_room(lambda: self.registry.create(self.now(), spec))

    async def join(self, job: JobSpec | str, claim: Claim, time_left_s: float | None) -> tuple[Job, ev.Epoch]:
        """Join, and wait for the epoch; ``time_left_s`` is the caller's. Raises `ControlError`.

        If the waiting is cancelled, the rank no longer waits.
        """
        timeout_s = self.policy.join_timeout_s
        if time_left_s is not None:
            timeout_s = min(timeout_s, time_left_s - min(DEADLINE_MARGIN_S, time_left_s / 2))
        deadline = self.now() + timeout_s
        ticket = await self._with_room(lambda: self.registry.join(self.now(), job, claim, deadline))
        name = job if isinstance(job, str) else job.name
        found = self.registry.by_name[name]
        waiting = self._waiting[ticket.number] = asyncio.get_running_loop().create_future()
        self.pump()
        try:
            return found, await waiting
        except asyncio.CancelledError:
            self.registry.abandon(self.now(), ticket)
            self.pump()
            raise
        finally:
            del self._waiting[ticket.number]

    async def leave(self, name: str, rank: int, member: int, *, end: bool, reason: str) -> Job:
        """See `Registry.leave`. If the job ends by it, its slots are free when this returns (if the switch does its
        part): so a job that the same script begins next has room."""
        job = self.registry.leave(self.now(), name, rank, member, end=end, reason=reason)
        self.pump()
        give_up_at = self.now() + ROOM_WAIT_S
        while job.number in self._on_its_way and self._stopping is None and await self._room_until(give_up_at):
            pass
        return job

    async def _with_room(self, call: Callable[[], T]) -> T:
        """``call()``, again if there is no room for it while the switch still has to drop jobs that ended."""
        give_up_at = self.now() + ROOM_WAIT_S
        while True:
            self.check_open()
            try:
                return call()
            except ControlError as error:
                if error.code is not Code.RESOURCE_EXHAUSTED or not self._on_its_way:
                    raise
                if not await self._room_until(give_up_at):
                    raise error from None

    @property
    def _on_its_way(self) -> set[int]:
        """Numbers of jobs that have ended and that the switch is about to drop."""
        return self.registry.ending.keys() - self.registry.retries.keys()

    async def _room_until(self, give_up_at: float) -> bool:
        """Wait until the switch has dropped a job, or failed to; False if that is too late."""
        self._freed.clear()
        try:
            async with asyncio.timeout(max(0.0, give_up_at - self.now())):
                await self._freed.wait()
        except TimeoutError:
            return False
        return True

    def pump(self) -> None:
        """Pass on what has come about in the registry."""
        for output in self.registry.drain():
            match output:
                case ev.Emit():
                    self._log(output)
                    self.watchers.put(output.job, event_message(output.at, output.event))
                case ev.Admitted(ticket, epoch):
                    waiting = self._waiting.get(ticket)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(epoch)
                case ev.Refused(ticket, error):
                    waiting = self._waiting.get(ticket)
                    if waiting is not None and not waiting.done():
                        waiting.set_exception(error)
                case ev.Bind() | ev.Unbind():
                    self._orders.put_nowait(output)

    @staticmethod
    def _log(emit: ev.Emit) -> None:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(emit.event).__name__).lower()
        fields = {field.name: getattr(emit.event, field.name) for field in dataclasses.fields(emit.event)}
        if "cause" in fields:
            fields["cause"] = fields["cause"].name.lower()
        loud = isinstance(emit.event, ev.MemberFailed | ev.Stalled)
        (log.warning if loud else log.info)(name, job=emit.name, job_number=emit.job, **fields)

    # ---------------------------------------------------------------------------------- tasks

    async def _obey(self) -> None:
        """Give the registry's orders to the switch, one after the other, and tell it how they went."""
        while True:
            order = await self._orders.get()
            try:
                if isinstance(order, ev.Bind):
                    await self.switch.bind(order)
                    self.registry.bound(self.now(), order.job, order.serial)
                else:
                    await self.switch.unbind(order.job)
                    self.registry.unbound(order.job)
                    self._freed.set()
            except DriverError as error:
                log.error("driver_failed", order=type(order).__name__.lower(), job_number=order.job, exc_info=error)
                if isinstance(order, ev.Bind):
                    self.registry.bind_failed(self.now(), order.job, str(error))
                else:
                    self.registry.unbind_failed(self.now(), order.job)
                    self._freed.set()  # whoever waits for room learns that there will be none
            self.pump()

    async def _every(self, interval_s: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await step()
            except Exception:
                # A bug. The next step may do better, and to stop here would be a silent hang for all jobs.
                log.exception("control_step_failed", step=step.__name__)

    async def _tick(self) -> None:
        self.registry.tick(self.now())
        self.pump()

    async def _poll(self) -> None:
        try:
            await self.look()
        except DriverError as error:
            if self.healthy:
                log.error("driver_unhealthy", exc_info=error)
            await self._set_health(False)
        else:
            await self._set_health(True)

    async def _set_health(self, healthy: bool) -> None:
        if healthy != self.healthy:
            self.healthy = healthy
            if self._on_health is not None:
                await self._on_health(healthy)

    async def look(self) -> Look:
        """Look at the switch, and tell the jobs what was seen. Raises `DriverError`."""
        jobs = [job for job in self.registry.jobs() if job.ran]
        look = self.last_look = await self.switch.look(job.number for job in jobs)
        now = self.now()
        for job in jobs:
            self.registry.observe(now, job.number, look.observation(job.number, job.spec.workers))
        self.pump()
        return look
