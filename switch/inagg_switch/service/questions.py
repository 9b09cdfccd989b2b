"""Calls that only read, List, Stats and Why: those who ask the same at the same time share one reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar, cast

from inagg_proto.v1 import control_pb2 as pb

from ..control.refusals import Code, ControlError
from ..control.stall_detector import WAITS_POLLED
from .answers import list_answer, stats_answer, why_answer
from .callers import Context
from .coalesced import Coalesced
from .controller import Controller
from .job_messages import ended_message

SLOTS_LISTED: int = 16
SLOTS_LISTED_MAX: int = 1024
"""Slots that Why lists if nothing else is asked for, and at most."""

Reply = TypeVar("Reply")


class Questions:
    """Replies to calls that only read, from a controller that runs. Methods raise `ControlError` and `DriverError`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._replies: Coalesced[object] = Coalesced(controller.policy.read_interval_s)
        self._reads = 0

    async def close(self) -> None:
        """End those in progress."""
        await self._replies.close()

    async def list(self, context: Context) -> pb.ListResponse:
        """The jobs."""
        return await self._shared(context, "List", self._list)

    async def stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsResponse:
        """The answer to Stats: what was counted."""
        return await self._shared(context, ("Stats", request.name), lambda: self._stats(request))

    async def why(self, request: pb.WhyRequest, context: Context) -> pb.WhyResponse:
        """The answer to Why: what a job waits for."""
        return await self._shared(context, ("Why", request.name, request.slots), lambda: self._why(request))

    async def _shared(self, context: Context, question: Hashable, make: Callable[[], Awaitable[Reply]]) -> Reply:
        """The reply to a call that only reads. Whoever asks the same ``question`` at the same time shares it, and there
        is a bound on how many such calls are under way until their replies have been taken."""
        most = self._controller.policy.reads_max
        if self._reads >= most:
            raise ControlError(
                Code.RESOURCE_EXHAUSTED, f"{most} calls of Stats, Why or List are in progress already: ask again later"
            )
        self._reads += 1

        def over(ctx: object) -> None:
            self._reads -= 1

        context.add_done_callback(over)  # type: ignore[arg-type]  # any callable will do; also if its client goes, or never reads
        return cast(Reply, await self._replies.get(question, make))

    async def _list(self) -> pb.ListResponse:
        return list_answer(self._controller)

    async def _stats(self, request: pb.StatsRequest) -> pb.StatsResponse:
        controller, registry = self._controller, self._controller.registry
        if request.name:
            registry.jobs.find(controller.now(), request.name)
        snapshot = await controller.snapshot()
        jobs = [job for job in registry.jobs if request.name in ("", job.name)]
        return stats_answer(controller, snapshot, jobs, everywhere=not request.name)

    async def _why(self, request: pb.WhyRequest) -> pb.WhyResponse:
        controller, registry = self._controller, self._controller.registry
        if request.slots > SLOTS_LISTED_MAX:
            raise ControlError(Code.INVALID_ARGUMENT, f"{request.slots} slots: at most {SLOTS_LISTED_MAX} are listed")
        if request.name not in registry.jobs.by_name:
            ended = registry.jobs.past.last(request.name)
            if ended is not None:
                return pb.WhyResponse(
                    ended=ended_message(ended, controller.now()), text=[f"The job is over: {ended.text}."]
                )
        job = registry.jobs.find(controller.now(), request.name)
        snapshot = await controller.tree.look([job] if job.epochs.ran else [], max(request.slots, WAITS_POLLED))
        registry.observe(controller.now(), job.number, snapshot.observation(job.number, job.spec.workers))
        controller.pump()
        return why_answer(controller, snapshot, job, request.slots or SLOTS_LISTED)
