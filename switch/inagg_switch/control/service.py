"""The calls of `inagg.v1.Control`. Each reads its message, asks the engine, and writes the reply.

On `grpc.aio`, since most calls wait: with 32 ranks a job, each with a Join or a Watch open, a thread for each call
would need thousands of threads, and a smaller pool would hang with all its threads in Joins that wait for one that
has no thread left. Only the switch's own calls block, and those have a thread of their own (`driving`).
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog

from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc

from ..driver import DriverError
from .convert import (
    address_message,
    claim_from,
    ended_message,
    epoch_message,
    job_message,
    reason_from,
    spec_from,
)
from .driving import Look
from .engine import Engine
from .errors import Code, ControlError
from .explain import explain
from .jobs import Job
from .policy import HEARTBEATS_PER_LIMIT
from .watching import WAITS_POLLED

SLOTS_LISTED: int = 16
SLOTS_LISTED_MAX: int = 1024
"""Slots that Why lists if nothing else is asked for, and at most."""

log = structlog.get_logger("inagg.control")

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Service = TypeVar("Service", bound="ControlService")
Context = grpc.aio.ServicerContext[Any, Any]


def status_code(code: Code) -> grpc.StatusCode:
    """gRPC's own name of a code."""
    return grpc.StatusCode[code.name]


def answered(
    method: Callable[[Service, Request, Context], Awaitable[Reply]],
) -> Callable[[Service, Request, Context], Awaitable[Reply]]:
    """Let a call end with the status that a `ControlError` says, and a `DriverError` with INTERNAL."""

    @functools.wraps(method)
    async def call(self: Service, request: Request, context: Context) -> Reply:
        try:
            self.engine.check_open()
            return await method(self, request, context)
        except ControlError as error:
            await context.abort(status_code(error.code), error.text)
        except DriverError as error:
            log.error("driver_failed", call=method.__name__, exc_info=error)
            await context.abort(grpc.StatusCode.INTERNAL, f"the switch does not answer: {error}; see its log")
        raise AssertionError("abort raises")

    return call


class ControlService(control_pb2_grpc.ControlServicer):
    """The service, over an engine that runs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def _shards(self) -> int:
        return len(self.engine.registry.shards)

    def _job(self, job: Job) -> pb.Job:
        return job_message(job, self.engine.now(), self.engine.registry.shards)

    @answered
    async def Create(self, request: pb.CreateRequest, context: Context) -> pb.CreateResponse:  # noqa: N802
        job, created = await self.engine.create(spec_from(request.spec, self.engine.registry.limits))
        self.engine.pump()
        return pb.CreateResponse(job=self._job(job), created=created)

    @answered
    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:  # noqa: N802
        which = request.WhichOneof("job")
        if which is None:
            raise ControlError(Code.INVALID_ARGUMENT, "no job is named: give its name, or a spec to create it from")
        spec = spec_from(request.spec, self.engine.registry.limits) if which == "spec" else request.name
        claim = claim_from(request, self._shards, context.peer())
        job, epoch = await self.engine.join(spec, claim, context.time_remaining())
        interval_s = job.heartbeat_limit_s / HEARTBEATS_PER_LIMIT
        return epoch_message(job, epoch, self.engine.registry.shards, interval_s)

    @answered
    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:  # noqa: N802
        reason = reason_from(request.reason)
        job = await self.engine.leave(request.name, request.rank, request.member, end=request.end, reason=reason)
        return pb.LeaveResponse(ended=job.ended is not None)

    @answered
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:  # noqa: N802
        job = self.engine.registry.heartbeat(self.engine.now(), request.name, request.rank, request.member)
        return pb.HeartbeatResponse(state=pb.JobState.ValueType(job.state), epoch=job.epoch if job.ran else 0)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.Event]:  # noqa: N802
        try:
            self.engine.check_open()
            job = self.engine.registry.find(self.engine.now(), request.name)
            watcher = self.engine.watchers.add(job.number, job.name)
            try:
                yield pb.Event(at_s=self.engine.now(), state=self._job(job))
                async for event in watcher.events():
                    yield event
            finally:
                self.engine.watchers.remove(job.number, watcher)
        except ControlError as error:
            await context.abort(status_code(error.code), error.text)

    @answered
    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:  # noqa: N802
        registry = self.engine.registry
        ended = [ended_message(ended, self.engine.now()) for ended in reversed(registry.ended)]
        return pb.ListResponse(jobs=[self._job(job) for job in registry.jobs()], ended=ended)

    @answered
    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsResponse:  # noqa: N802
        engine, registry = self.engine, self.engine.registry
        if request.name:
            registry.find(engine.now(), request.name)
        look = await engine.look()
        jobs = [job for job in registry.jobs() if request.name in ("", job.name)]
        return pb.StatsResponse(
            at_s=look.at,
            uptime_s=look.at - engine.started_at,
            driver=engine.driver.name,
            shards=[self._shard_stats(look, index) for index in range(self._shards)],
            jobs=[self._job_stats(look, job) for job in jobs],
        )

    def _shard_stats(self, look: Look, index: int) -> pb.ShardStats:
        registry, counts = self.engine.registry, look.shards[index]
        return pb.ShardStats(
            address=address_message(registry.shards[index].address),
            slots=registry.shards[index].slots,
            slots_leased=registry.pool.shards[index].slots_leased,
            slots_quarantined=registry.slots_quarantined(),
            datagrams_in=counts.datagrams_in,
            bytes_in=counts.bytes_in,
            datagrams_out=counts.datagrams_out,
            bytes_out=counts.bytes_out,
            notices=counts.notices,
            send_refused=counts.send_refused,
            kernel_drops=counts.kernel_drops,
            drops={reason.label: count for reason, count in counts.drops.items()},
            cpu_s=counts.cpu_s,
            faults=counts.faults,
        )

    def _job_stats(self, look: Look, job: Job) -> pb.JobStats:
        counts = look.job(job.number, job.spec.workers)
        by_rank = zip(
            counts.contributions,
            counts.duplicates,
            counts.resends,
            counts.stale,
            counts.bytes_in,
            strict=True,
        )
        workers = [
            pb.WorkerStats(
                rank=rank, contributions=taken, duplicates=duplicates, resends=resends, stale=stale, bytes_in=bytes_in
            )
            for rank, (taken, duplicates, resends, stale, bytes_in) in enumerate(by_rank)
        ]
        waits = look.waits.get(job.number)
        return pb.JobStats(
            job=self._job(job),
            workers=workers,
            results=counts.results,
            invalid_codes=counts.invalid_codes,
            slots_waiting=waits.count if waits is not None else 0,
        )

    @answered
    async def Why(self, request: pb.WhyRequest, context: Context) -> pb.WhyResponse:  # noqa: N802
        engine, registry = self.engine, self.engine.registry
        if request.slots > SLOTS_LISTED_MAX:
            raise ControlError(Code.INVALID_ARGUMENT, f"{request.slots} slots: at most {SLOTS_LISTED_MAX} are listed")
        if request.name not in registry.by_name:
            ended = registry.last_ended(request.name)
            if ended is not None:
                return pb.WhyResponse(
                    ended=ended_message(ended, engine.now()), text=[f"The job is over: {ended.text}."]
                )
        job = registry.find(engine.now(), request.name)
        look = await engine.switch.look([job.number] if job.ran else [], max(request.slots, WAITS_POLLED))
        now = engine.now()
        registry.observe(now, job.number, look.observation(job.number, job.spec.workers))
        waits = look.waits.get(job.number)
        longest = waits.longest if waits is not None else ()
        count = waits.count if waits is not None else None if job.ran else 0
        engine.pump()
        why = explain(job, now, count, longest)
        return pb.WhyResponse(
            job=self._job(job),
            text=why.text,
            missing=job.roster.missing() if job.epoch_started_at is None else (),
            slots_waiting=count or 0,
            slots=[
                pb.SlotWait(
                    shard=shard,
                    slot=wait.slot,
                    generation=wait.generation,
                    missing=wait.missing,
                    waiting_s=wait.waiting_s,
                )
                for shard, wait in longest[: request.slots or SLOTS_LISTED]
            ],
            ranks=[
                pb.RankWait(
                    rank=wait.rank,
                    slots=wait.slots,
                    longest_s=wait.longest_s,
                    silent_s=wait.silent_s,
                    contributions=wait.contributions,
                    last_contribution_s=wait.last_contribution_s,
                )
                for wait in why.ranks
            ],
        )
