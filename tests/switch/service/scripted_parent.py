"""A parent that does as a test says, and a switch below it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio
from tests.switch.control.world import RecordingDriver

from inagg_proto import PROTOCOL
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.service.access import Access
from inagg_switch.service.uplink_agent import UplinkAgent

PATIENCE_S = 10.0


class ScriptedParent(control_pb2_grpc.ControlServicer):
    """Takes a switch in, as often as it comes, and gives it ``orders``; None among them ends the stream."""

    def __init__(self) -> None:
        self.protocol = PROTOCOL
        self.planes = [pb.Address(host="127.0.0.1", port=5000)]
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        """How it refuses to take the switch in."""
        self.held_s = 0.0
        """Time that it takes to say where its data planes are."""
        self.questions: list[pb.DataPlanesRequest] = []
        self.hellos: list[pb.AttachedSwitch] = []
        self.orders: asyncio.Queue[pb.AttachOrder | None] = asyncio.Queue()
        self.answers: asyncio.Queue[pb.Answer] = asyncio.Queue()

    async def DataPlanes(self, request: pb.DataPlanesRequest, context: object) -> pb.DataPlanesResponse:  # noqa: N802
        self.questions.append(request)
        await asyncio.sleep(self.held_s)
        return pb.DataPlanesResponse(addresses=self.planes, protocol=self.protocol)

    async def Attach(  # noqa: N802  # gRPC's name
        self,
        requests: AsyncIterator[pb.AttachRequest],
        context: grpc.aio.ServicerContext[pb.AttachRequest, pb.AttachOrder],
    ) -> AsyncIterator[pb.AttachOrder]:
        self.hellos.append((await anext(requests)).hello)
        if self.refusal is not None:
            await context.abort(*self.refusal)
        yield pb.AttachOrder(attached=pb.Attached())
        taking = asyncio.create_task(self._take(requests))
        try:
            while (order := await self.orders.get()) is not None:
                yield order
        finally:
            taking.cancel()

    async def _take(self, requests: AsyncIterator[pb.AttachRequest]) -> None:
        async for request in requests:
            self.answers.put_nowait(request.answer)

    async def end_stream(self) -> None:
        """End the one that there is."""
        await self.orders.put(None)

    async def order(self, order: pb.AttachOrder) -> pb.Answer:
        """The answer to an order."""
        await self.orders.put(order)
        async with asyncio.timeout(PATIENCE_S):
            return await self.answers.get()


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


Below = tuple[ScriptedParent, UplinkAgent, asyncio.Task[None]]


@asynccontextmanager
async def below(driver: RecordingDriver, access: Access | None = None) -> AsyncIterator[Below]:
    """A switch, rack1, below a parent that has not answered yet; and the task that keeps its stream."""
    parent, server = ScriptedParent(), grpc.aio.server()  # type: ignore[abstract]  # it is asked for nothing else
    control_pb2_grpc.add_ControlServicer_to_server(parent, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    agent = UplinkAgent(driver, "rack1", address, access or Access())
    running = asyncio.create_task(agent.run())
    try:
        yield parent, agent, running
    finally:
        running.cancel()
        await asyncio.wait((running,))
        await agent.close()
        await server.stop(None)
