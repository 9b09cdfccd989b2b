"""The core with time and a switch: runs a `Registry` on an event loop. Decides nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Final

import structlog
from prometheus_client import Histogram

from ..control import events as ev
from ..control.admission import JobSpec
from ..control.drops import DropWatch
from ..control.jobs import Job
from ..control.members import JoinRequest
from ..control.policy import Policy
from ..control.refusals import Code, ControlError
from ..control.registry import Registry
from ..control.stall_detector import WAITS_POLLED
from ..control.topology import AttachedSwitch
from ..driver import Driver, DriverError
from ..text import ranks_text
from .coalesced import Coalesced
from .driver_threads import DriverThreads, SwitchSnapshot
from .event_log import EventLog
from .job_messages import event_message
from .orders import Orders
from .refused_callers import RefusedCallers
from .remote_switch import RemoteSwitch
from .subscribers import Subscribers
from .switch_tree import SwitchTree

DEADLINE_MARGIN_S: Final = 0.5
"""Seconds before its own deadline at which a client is told who is missing: else it would learn nothing."""
DEADLINE_ROUNDING: Final = 0.011
"""Part of itself by which a deadline may come later here than where the call was made, at each switch that it has come
through: gRPC sends two or three digits of it, rounded up. So 100.001 s are 101 s here, and 1000.001 s are 1010 s."""

REFUSED_BEFORE_S: Final = 2.0
"""Seconds before a rank was last heard from which on a call of it may have been refused: its datagrams may have come
for a while after that, and are looked for once in each `Policy.poll_interval_s`."""

log = structlog.get_logger("inagg.control")


def patience_s(time_left_s: float, hops: int) -> float:
    """Seconds that a call may wait that says it has ``time_left_s``, and has come over ``hops`` connections."""
    margin_s = DEADLINE_MARGIN_S + DEADLINE_ROUNDING * hops * time_left_s
    return time_left_s - min(margin_s, time_left_s / 2)


class Controller:
    """Jobs on a switch. All methods are called on one event loop; `start` first."""

    def __init__(
        self,
        driver: Driver,
        policy: Policy,
        on_health: Callable[[bool], Awaitable[None]],
        refused: RefusedCallers | None = None,
    ) -> None:
        """``on_health`` is told when the driver begins to answer, or ceases to. ``refused``: those who call it without
        its secret."""
        self.driver = driver
        self.policy = policy
        self.now = time.monotonic
        self.started_at = self.now()
        self.registry = Registry(driver.shards, driver.limits, policy, admit=driver.admit)
        self.subscribers = Subscribers(policy)
        self.events = EventLog()
        self.on_poll: list[Callable[[SwitchSnapshot], None]] = []
        """Called with what each poll saw, on the event loop."""
        self.call_seconds = Histogram(
            "inagg_control_call_seconds",
            "How long calls of the control service took: Join with its wait for others, a stream until it is open.",
            ("call", "code"),
            registry=None,
        )
        self.refused = refused or RefusedCallers()
        self.refused.seconds = self.call_seconds
        self.switch = DriverThreads(driver)
        self.tree = SwitchTree(self.registry, self.switch)
        """This switch, and those below it."""
        self.healthy = True
        self.last_snapshot: SwitchSnapshot | None = None
        """The last snapshot of the switch; None if there is none yet."""
        self.drops = DropWatch()
        self._reads: Coalesced[SwitchSnapshot] = Coalesced(policy.read_interval_s)
        self._orders = Orders(self.registry, self.tree, driver, lambda: self._stopping, self.pump)
        self._on_health = on_health
        self._ticked_at = self.started_at
        self._waiting: dict[int, asyncio.Future[ev.Epoch]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: ControlError | None = None
        self._ends = False
        """Whether it was told to stop when its jobs have ended."""

    async def start(self) -> None:
        """Begin to apply limits, to give orders to the switch, and to look at it."""
        self._ticked_at = self.now()
        self._tasks = [
            asyncio.create_task(self._orders.obey(), name="inagg-orders"),
            asyncio.create_task(self._every(self.policy.tick_interval_s, self._tick), name="inagg-tick"),
            asyncio.create_task(self._every(self.policy.poll_interval_s, self._poll), name="inagg-poll"),
        ]

    async def stop(self, why: str | None) -> None:
        """End all waiting calls and streams with UNAVAILABLE, and say ``why``. Jobs stay bound: the data planes' owner
        closes them."""
        text = f"{why or 'the switch is stopping'}: join again, bringing what you had, when it is back"
        self._stopping = error = ControlError(Code.UNAVAILABLE, text)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
        self.subscribers.end_all(error)
        self.tree.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._orders.stop()
        await self._reads.close()
        await self.switch.close()

    def check_open(self) -> None:
        """Raises `ControlError` if the switch is stopping."""
        if self._stopping is not None:
            raise self._stopping

    def accept_new(self) -> None:
        """Take new jobs again. Raises `ControlError` if it is for its own end that the switch drains."""
        if self._ends:
            raise ControlError(Code.FAILED_PRECONDITION, "the switch is about to stop, and takes no new jobs any more")
        self.registry.draining = False

    def refuse_new(self, *, ends: bool = False) -> None:
        """See `Registry.refuse_new`. ``ends``: the switch is about to stop."""
        self._ends = self._ends or ends
        self.registry.refuse_new(self.now())
        self.pump()

    # ---------------------------------------------------------------------------------- calls

    async def create(self, spec: JobSpec, principal: str) -> tuple[Job, bool]:
        created = await self._orders.with_room(lambda: self.registry.create(self.now(), spec, principal))
        self.pump()
        return created

    def evict(self, name: str, reason: str) -> None:
        self.registry.evict(self.now(), name, reason)
        self.pump()

    async def join(
        self, job: JobSpec | str, request: JoinRequest, time_left_s: float | None, principal: str
    ) -> tuple[Job, ev.Epoch]:
        """Join, and wait for the epoch; ``time_left_s`` is the caller's. Raises `ControlError`.

        If the waiting is cancelled, the rank no longer waits.
        """
        timeout_s = self.policy.join_timeout_s
        if time_left_s is not None:
            topology = self.registry.topology
            hops = 1 + (len(topology.path(request.switch)) if topology.has(request.switch) else 0)
            timeout_s = min(timeout_s, patience_s(time_left_s, hops))
        deadline = self.now() + timeout_s
        ticket = await self._orders.with_room(lambda: self.registry.join(self.now(), job, request, deadline, principal))
        name = job if isinstance(job, str) else job.name
        found = self.registry.jobs.by_name[name]
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
        await self._orders.dropped(job.number)
        return job

    def pump(self) -> None:
        """Pass on what has come about in the registry."""
        for output in self.registry.drain():
            match output:
                case ev.Emit():
                    output = self._with_refusals(output)
                    self._log(output)
                    self.events.add(output)
                    self.subscribers.put(output.job, event_message(output.at, output.event))
                case ev.Admitted(ticket, epoch):
                    waiting = self._waiting.get(ticket)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(epoch)
                case ev.Refused(ticket, error):
                    waiting = self._waiting.get(ticket)
                    if waiting is not None and not waiting.done():
                        waiting.set_exception(error)
                case ev.Bind() | ev.Unbind():
                    self._orders.put(output)
                case ev.Bug(number, name, error):
                    log.error("job_ended_by_a_bug", job=name, job_number=number, exc_info=error)

    def _with_refusals(self, emit: ev.Emit) -> ev.Emit:
        """The news, with the reason if a member fell silent and calls from where it is were refused."""
        event, job = emit.event, self.registry.jobs.by_number.get(emit.job)
        if not isinstance(event, ev.MemberFailed) or job is None:
            return emit
        host, _ = job.roster.by_rank[event.rank].request.addresses[0]
        why = self.refused.since(host, emit.at - event.silent_s - REFUSED_BEFORE_S)
        if why is None:
            return emit
        text = f"{event.text}; calls from its address, {host}, were refused meanwhile: {why}"
        return replace(emit, event=replace(event, text=text))

    @staticmethod
    def _log(emit: ev.Emit) -> None:
        fields = asdict(emit.event)
        if "cause" in fields:
            fields["cause"] = fields["cause"].name.lower()
        for name in ("missing", "ranks"):  # a job of a thousand ranks would else write megabytes when it starts
            if name in fields:
                fields[name] = ranks_text(fields[name])
        loud = isinstance(emit.event, ev.MemberFailed | ev.Stalled)
        (log.warning if loud else log.info)(ev.name_of(emit.event), job=emit.name, job_number=emit.job, **fields)

    # ---------------------------------------------------------------------------------- tasks

    def attach(self, switch: AttachedSwitch) -> RemoteSwitch:
        """A switch has opened its stream, and is below this one now. Raises `ControlError`."""
        self.check_open()
        return self.tree.attach(switch)

    def detach(self, remote: RemoteSwitch, why: str) -> None:
        """Forget a switch below, whose stream is over."""
        self.tree.detach(self.now(), remote, why)
        self.pump()

    async def restart(self, shard: int) -> None:
        """Start a shard again that has died; jobs get new epochs. Raises `DriverError` if that does not work."""
        with self._orders.held_back():
            await self.switch.restart(shard)
        self.registry.shard_restarted(self.now(), shard)
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
        now = self.now()
        if (late_s := now - self._ticked_at - self.policy.tick_interval_s) > 0:
            self.registry.paused(now, late_s)
        self._ticked_at = now
        self.registry.tick(now)
        self.pump()

    async def _poll(self) -> None:
        try:
            snapshot = await self.snapshot()
        except DriverError as error:
            await self._set_health(str(error))
        else:
            await self._set_health("; ".join(snapshot.silent))
            for told in self.on_poll:
                told(snapshot)

    async def _set_health(self, trouble: str) -> None:
        """``trouble``: of its shards; "" if all answer."""
        healthy = not trouble
        if self.healthy and trouble:
            log.error("driver_unhealthy", error=trouble)
        if healthy != self.healthy:
            self.healthy = healthy
            await self._on_health(healthy)

    async def snapshot(self) -> SwitchSnapshot:
        """A snapshot of the switch; all who ask at the same time share it. Raises `DriverError`."""
        return await self._reads.get("snapshot", self._look)

    async def _look(self) -> SwitchSnapshot:
        """Look at the switches, and tell the jobs what was seen."""
        jobs = [job for job in self.registry.jobs if job.epochs.ran]
        snapshot = self.last_snapshot = await self.tree.look(jobs, WAITS_POLLED)
        now = self.now()
        self.drops.observe(now, snapshot.drops)
        for job in jobs:
            self.registry.observe(now, job.number, snapshot.observation(job.number, job.spec.workers))
        self.pump()
        return snapshot
