"""A switch below this one, as the root sees it: orders over the stream that it has opened, and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from inagg_proto.v1 import control_pb2 as pb

from ..binding import Binding
from ..driver import Counters, DriverError, SlotWait
from .tree_messages import binding_message, look_from

ANSWER_S: Final = 5.0
"""Seconds that a switch may take to answer; then it counts as gone."""

ShardLook = tuple[Counters, dict[int, tuple[int, list[SlotWait]]]]
"""Counters of a shard, and by job how many slots wait and which the longest."""


class RemoteSwitch:
    """One stream. Its methods raise `DriverError`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.orders: asyncio.Queue[pb.AttachOrder] = asyncio.Queue()
        """Orders to be written to the stream."""
        self.gone = asyncio.Event()
        """Set when its stream is to end."""
        self.why_gone = ""
        """The reason, a clause."""
        self.last: tuple[Counters, ...] = ()
        """Counters of its shards that it has told last."""
        self.answers = True
        """Whether it has told them when it was asked last."""
        self._number = 0
        self._answers: dict[int, asyncio.Future[pb.Answer]] = {}

    async def bind(self, bindings: Sequence[Binding]) -> None:
        """Bind a job on each shard."""
        await self._ask(pb.AttachOrder(bind=pb.BindOrder(shards=[binding_message(b) for b in bindings])))

    async def unbind(self, job: int) -> None:
        """Drop a job on each shard."""
        await self._ask(pb.AttachOrder(unbind=pb.UnbindOrder(job=job)))

    async def look(self, jobs: Iterable[int], limit: int) -> tuple[ShardLook, ...]:
        """A look at each shard; at most ``limit`` slots of each of ``jobs``."""
        answer = await self._ask(pb.AttachOrder(look=pb.LookOrder(jobs=jobs, limit=limit)))
        looks = tuple(look_from(shard) for shard in answer.shards)
        self.last = tuple(counters for counters, _ in looks)
        return looks

    async def _ask(self, order: pb.AttachOrder) -> pb.Answer:
        self._number += 1
        order.number = self._number
        future = self._answers[order.number] = asyncio.get_running_loop().create_future()
        self.orders.put_nowait(order)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer: pb.Answer = await future
        except TimeoutError:
            unanswered = f"has not answered for {ANSWER_S:.0f} s"
            self.end(f"it {unanswered}")
            raise DriverError(f"switch {self.name!r} {unanswered}") from None
        finally:
            del self._answers[order.number]
        if answer.error:
            raise DriverError(f"switch {self.name!r}: {answer.error}")
        return answer

    def answered(self, answer: pb.Answer) -> None:
        """An answer has come."""
        future = self._answers.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)

    def end(self, why: str) -> None:
        """Have its stream end. The first reason counts."""
        if not self.gone.is_set():
            self.why_gone = why
            self.gone.set()

    def close(self) -> None:
        """The stream is over: whoever waits for an answer gets none."""
        for future in self._answers.values():
            if not future.done():
                future.set_exception(DriverError(f"switch {self.name!r} has gone"))
