"""The calls of `inagg.v1.Control`. Each reads its message, asks the controller, and writes the reply.

On `grpc.aio`, since most calls wait: with 32 ranks a job, each with a Join or a Watch open, a thread for each call
would need thousands of threads, and a smaller pool would hang with all its threads in Joins that wait for one that
has no thread left. Only the switch's own calls block, and those have threads of their own (`driver_threads`).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import grpc.aio
import structlog

from inagg_proto import PROTOCOL
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc

from ..control.events import ROOT
from ..control.refusals import Code, ControlError
from ..driver import DriverError, Shard
from ..text import bounded
from .answers import job_now
from .callers import Callers, Context, brought
from .controller import Controller
from .job_messages import (
    epoch_message,
    join_request_from,
    reason_from,
    round_trip_from,
    shard_address,
    spec_from,
)
from .malformed import Malformed, check_message
from .peers import own_host, peer_host
from .questions import Questions
from .refusal_throttle import RefusalThrottle
from .remote_switch import RemoteSwitch
from .tree_messages import HERE_METADATA, PEER_METADATA, SWITCH_METADATA, switch_from

log = structlog.get_logger("inagg.control")

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Service = TypeVar("Service", bound="ControlService")


def status_code(code: Code) -> grpc.StatusCode:
    """gRPC's own name of a code."""
    return grpc.StatusCode[code.name]


def answered(
    method: Callable[[Service, Request, Context], Awaitable[Reply]],
) -> Callable[[Service, Request, Context], Awaitable[Reply]]:
    """Have a call with one message and one reply begin and end as `ControlService.called` says."""

    @functools.wraps(method)
    async def call(self: Service, request: Request, context: Context) -> Reply:
        async with self.called(method.__name__, context):
            check_message(request)
            return await method(self, request, context)
        raise AssertionError("abort raises")

    return call


def _brought(context: Context, key: str) -> str:
    """Metadata that a switch below has added to a call; empty if none has."""
    return brought(context, key) or ""


async def _take_answers(requests: AsyncIterator[pb.AttachRequest | Malformed], remote: RemoteSwitch) -> None:
    try:
        async for request in requests:
            if isinstance(request, Malformed):
                return  # which ends the stream
            remote.answered(request.answer)
    except Exception:  # a bug: the stream ends by it too
        log.exception("answer_failed", switch=remote.name)


class ControlService(control_pb2_grpc.ControlServicer):
    """The service, over a controller that runs."""

    def __init__(self, controller: Controller, callers: Callers, throttle: RefusalThrottle) -> None:
        self.controller = controller
        self.callers = callers
        self.throttle = throttle
        self._questions = Questions(controller)

    async def close(self) -> None:
        """End the questions in progress."""
        await self._questions.close()

    @asynccontextmanager
    async def called(self, call: str, context: Context) -> AsyncIterator[Callable[[], None]]:
        """Where ``call`` is served: it ends with the status that a `ControlError` says, and with INTERNAL after any
        other error, and is timed. A stream calls what it gets here once it is open: from then on it waits for what
        happens, which is no part of what it took."""
        began_s, took_s = time.monotonic(), None

        def opened() -> None:
            nonlocal took_s
            took_s = time.monotonic() - began_s

        try:
            self.callers.check_way(context)
            self.controller.check_open()
            yield opened
        except ControlError as error:
            began_s += await self.throttle.wait(self.callers.throttled(context))  # no part of what it took
            await context.abort(status_code(error.code), bounded(error.text))
        except DriverError as error:
            log.error("driver_failed", call=call, error=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, bounded(f"the switch does not answer: {error}; see its log"))
        except Exception:
            log.exception("call_failed", call=call)
            await context.abort(grpc.StatusCode.INTERNAL, "a mistake in the switch's control plane; see its log")
        finally:
            code: object = context.code()  # 0 if the call went well
            name = code.name if isinstance(code, grpc.StatusCode) else "OK"
            took_s = time.monotonic() - began_s if took_s is None else took_s
            self.controller.call_seconds.labels(call, name).observe(took_s)

    @property
    def _shards(self) -> int:
        return len(self.controller.registry.shards)

    @answered
    async def Create(self, request: pb.CreateRequest, context: Context) -> pb.CreateResponse:  # noqa: N802
        registry = self.controller.registry
        # Workers of a tree join at its leaves, wherever the job was created.
        tree = bool(_brought(context, SWITCH_METADATA) or registry.topology.switches)
        spec = spec_from(request.spec, registry.limits_for(tree=tree), tree=tree)
        job, created = await self.controller.create(spec, self.callers.principal(context))
        return pb.CreateResponse(job=job_now(self.controller, job), created=created)

    @answered
    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:  # noqa: N802
        which = request.WhichOneof("job")
        if which is None:
            raise ControlError(Code.INVALID_ARGUMENT, "no job is named: give its name, or a spec to create it from")
        registry, switch = self.controller.registry, _brought(context, SWITCH_METADATA)
        limits, tree = registry.limits_for(tree=switch != ROOT), switch != ROOT
        spec = spec_from(request.spec, limits, tree=tree) if which == "spec" else request.name
        peer = _brought(context, PEER_METADATA) or context.peer()
        join_request = join_request_from(request, self._shards, peer, switch)
        who = self.callers.principal(context)
        job, epoch = await self.controller.join(spec, join_request, context.time_remaining(), who)
        credit = registry.credit(job, epoch)
        return epoch_message(job, epoch, switch, self._shards_of(switch), credit)

    def _shards_of(self, switch: str) -> tuple[Shard, ...]:
        """The data planes of a switch. Raises `ControlError` if it has gone."""
        topology = self.controller.registry.topology
        if switch != ROOT and switch not in topology.switches:
            raise ControlError(Code.UNAVAILABLE, f"switch {switch!r} has gone: join again, through another")
        return topology.shards(switch)

    @answered
    async def DataPlanes(self, request: pb.DataPlanesRequest, context: Context) -> pb.DataPlanesResponse:  # noqa: N802
        switch = _brought(context, SWITCH_METADATA)
        if switch:
            here = _brought(context, HERE_METADATA)
        else:
            here = own_host(request.host, request.own or peer_host(context.peer()))
        addresses = [shard_address(shard, here) for shard in self._shards_of(switch)]
        return pb.DataPlanesResponse(addresses=addresses, protocol=PROTOCOL)

    async def Attach(  # noqa: N802
        self, requests: AsyncIterator[pb.AttachRequest], context: Context
    ) -> AsyncIterator[pb.AttachOrder]:
        async with self.called("Attach", context) as opened:
            request = await anext(requests, None)
            if request is None:
                return
            check_message(request)
            self.callers.check_operator(context)
            peer = _brought(context, PEER_METADATA) or context.peer()
            remote = self.controller.attach(switch_from(request.hello, _brought(context, SWITCH_METADATA), peer))
            why = "its connection ended"
            answers = asyncio.create_task(_take_answers(requests, remote))
            gone = asyncio.create_task(remote.gone.wait())
            order = asyncio.create_task(remote.orders.get())
            opened()
            try:
                yield pb.AttachOrder(attached=pb.Attached())
                while True:
                    await asyncio.wait((order, answers, gone), return_when=asyncio.FIRST_COMPLETED)
                    if gone.done():
                        why = remote.why_gone
                    if not order.done():
                        return
                    yield order.result()
                    order = asyncio.create_task(remote.orders.get())
            finally:  # also when the connection broke, which ends this at any point
                for task in (order, answers, gone):
                    task.cancel()
                self.controller.detach(remote, why)

    @answered
    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:  # noqa: N802
        reason = reason_from(request.reason)
        job = await self.controller.leave(request.name, request.rank, request.member, end=request.end, reason=reason)
        return pb.LeaveResponse(ended=job.ended is not None)

    @answered
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:  # noqa: N802
        registry = self.controller.registry
        round_trip_s = round_trip_from(request)
        job = registry.heartbeat(self.controller.now(), request.name, request.rank, request.member, round_trip_s)
        state, epoch = pb.JobState.ValueType(job.state), job.epochs.number
        return pb.HeartbeatResponse(state=state, epoch=epoch, credit=registry.credit(job))

    @answered
    async def Evict(self, request: pb.EvictRequest, context: Context) -> pb.EvictResponse:  # noqa: N802
        self.callers.check_operator(context)
        self.controller.evict(request.name, reason_from(request.reason))
        return pb.EvictResponse()

    @answered
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:  # noqa: N802
        self.callers.check_operator(context)
        if request.off:
            self.controller.accept_new()
        else:
            self.controller.refuse_new()
        return pb.DrainResponse(jobs=len(self.controller.registry.jobs))

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.Event]:  # noqa: N802
        async with self.called("Watch", context) as opened:
            check_message(request)
            registry, subscribers = self.controller.registry, self.controller.subscribers
            job = registry.jobs.find(self.controller.now(), request.name, request.member)
            subscriber = subscribers.add(job, self.callers.principal(context), request.member)
            by_us = False
            try:
                if request.member:
                    registry.watched(self.controller.now(), job, request.rank, request.member)
                state = pb.Event(at_s=self.controller.now(), state=job_now(self.controller, job))
                opened()
                yield state
                async for event in subscriber.events():
                    yield event
                by_us = True
            except Exception:  # it did not read what was sent, so it is told to watch again; or a mistake of ours
                by_us = True
                raise
            finally:  # cancelled where it waited for an event, or closed where gRPC sent one
                subscribers.remove(job.number, subscriber)
                if request.member and not by_us and not subscribers.has(job.number, request.member):
                    registry.break_off(self.controller.now(), job, request.rank, request.member)

    @answered
    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:  # noqa: N802
        return await self._questions.list(context)

    @answered
    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsResponse:  # noqa: N802
        return await self._questions.stats(request, context)

    @answered
    async def Why(self, request: pb.WhyRequest, context: Context) -> pb.WhyResponse:  # noqa: N802
        return await self._questions.why(request, context)
