"""A switch below another, as its parent and those who ask it see it, without data planes."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio
import pytest
import structlog
from tests.switch.background import LoopThread
from tests.switch.control.world import LIMITS, RecordingDriver
from tests.switch.service.member_client import MemberClient
from tests.switch.service.serving import Serving, job_spec, join_request

from inagg_proto import PROTOCOL
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.control.policy import Policy
from inagg_switch.control.topology import AttachedSwitch
from inagg_switch.driver import Counters, DriverError, JobCounters, Shard
from inagg_switch.service import remote_switch, uplink_agent
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError, ControlClient
from inagg_switch.service.remote_switch import RemoteSwitch
from inagg_switch.service.server import LeafServer
from inagg_switch.service.tree_messages import PEER_METADATA, SWITCH_METADATA, hello_message
from inagg_switch.service.uplink import Uplinks
from inagg_switch.service.uplink_agent import UplinkAgent, UplinkError

NOBODY = "127.0.0.1:1"
PLANE = Shard(("127.0.0.1", 5555), 1024)


class SlowDriver(RecordingDriver):
    """Takes its time to look, as one whose process stood still."""

    def counters(self, shard: int) -> Counters:
        time.sleep(0.3)
        return super().counters(shard)


class RestartingDriver(RecordingDriver):
    """Whose shard takes a moment to start again."""

    def restart(self, shard: int) -> None:
        time.sleep(0.05)


class Parent(control_pb2_grpc.ControlServicer):
    """Has one data plane."""

    async def DataPlanes(self, request: pb.DataPlanesRequest, context: object) -> pb.DataPlanesResponse:  # noqa: N802
        return pb.DataPlanesResponse(addresses=[pb.Address(host="127.0.0.1", port=5000)], protocol=PROTOCOL)


class PatientParent(Parent):
    """Takes a switch in, as often as it comes."""

    def __init__(self) -> None:
        self.attached: asyncio.Queue[None] = asyncio.Queue()

    async def Attach(  # noqa: N802  # gRPC's name
        self, requests: AsyncIterator[pb.AttachRequest], context: object
    ) -> AsyncIterator[pb.AttachOrder]:
        await anext(requests)
        yield pb.AttachOrder(attached=pb.Attached())
        self.attached.put_nowait(None)
        await asyncio.Event().wait()


class HastyParent(Parent):
    """Takes a switch in, orders a look, and has gone before it can be answered; the second time it stays."""

    def __init__(self) -> None:
        self.attached = 0
        self.again = asyncio.Event()

    async def Attach(  # noqa: N802  # gRPC's name
        self, requests: AsyncIterator[pb.AttachRequest], context: object
    ) -> AsyncIterator[pb.AttachOrder]:
        await anext(requests)
        self.attached += 1
        yield pb.AttachOrder(attached=pb.Attached())
        if self.attached == 1:
            yield pb.AttachOrder(number=1, look=pb.LookOrder())
            return
        self.again.set()
        await asyncio.Event().wait()


def test_an_order_that_can_be_answered_no_more_does_not_end_the_switch(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink_agent, "RETRY_S", 0.01)

    async def attach_twice() -> None:
        parent, server = HastyParent(), grpc.aio.server()  # type: ignore[abstract]  # it is asked for nothing else
        control_pb2_grpc.add_ControlServicer_to_server(parent, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        agent = UplinkAgent(SlowDriver(), "rack1", address, Access())
        running = asyncio.create_task(agent.run())
        again = asyncio.create_task(parent.again.wait())
        await asyncio.wait((running, again), timeout=5, return_when=asyncio.FIRST_COMPLETED)
        ended = running.exception() if running.done() else None
        running.cancel()
        again.cancel()
        await agent.close()
        await server.stop(None)
        assert ended is None
        assert parent.attached == 2

    loop_thread.run(attach_twice(), 10)


def test_a_shard_that_is_started_again_ends_the_stream_and_not_the_switch(loop_thread: LoopThread) -> None:
    async def restart() -> None:
        parent, server = PatientParent(), grpc.aio.server()  # type: ignore[abstract]  # it is asked for nothing else
        control_pb2_grpc.add_ControlServicer_to_server(parent, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        agent = UplinkAgent(RestartingDriver(), "rack1", address, Access())
        running = asyncio.create_task(agent.run())
        for _ in range(3):
            async with asyncio.timeout(5):
                await parent.attached.get()
                await agent.attached.wait()
            await agent.restart(0)
            assert not running.done()
        restarting = asyncio.create_task(agent.restart(0))
        await asyncio.sleep(0)
        running.cancel()  # also then
        await asyncio.wait((running,), timeout=5)
        await restarting
        await agent.close()
        await server.stop(None)
        assert running.cancelled()

    loop_thread.run(restart(), 20)


class BrokenDriver(RecordingDriver):
    """Whose shard cannot be started again."""

    def restart(self, shard: int) -> None:
        raise DriverError("it does not start")


def test_a_shard_that_cannot_be_started_again_keeps_no_stream_from_beginning(loop_thread: LoopThread) -> None:
    async def restart() -> None:
        parent, server = PatientParent(), grpc.aio.server()  # type: ignore[abstract]  # it is asked for nothing else
        control_pb2_grpc.add_ControlServicer_to_server(parent, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        agent = UplinkAgent(BrokenDriver(), "rack1", address, Access())
        with pytest.raises(DriverError, match="it does not start"):
            await agent.restart(0)
        running = asyncio.create_task(agent.run())
        async with asyncio.timeout(5):
            await parent.attached.get()
        running.cancel()
        await asyncio.wait((running,), timeout=5)
        await agent.close()
        await server.stop(None)

    loop_thread.run(restart(), 10)


class OlderParent(Parent):
    """Says of itself what one did that knew no protocol."""

    async def DataPlanes(self, request: pb.DataPlanesRequest, context: object) -> pb.DataPlanesResponse:  # noqa: N802
        return pb.DataPlanesResponse(addresses=[pb.Address(host="127.0.0.1", port=5000)])


class OldestParent(control_pb2_grpc.ControlServicer):
    """Does not say where its data goes."""


@pytest.mark.parametrize("kind", [OlderParent, OldestParent])
def test_a_switch_below_an_older_one_ends_and_says_why(
    loop_thread: LoopThread, kind: type[control_pb2_grpc.ControlServicer]
) -> None:
    async def attach() -> None:
        server = grpc.aio.server()
        control_pb2_grpc.add_ControlServicer_to_server(kind(), server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        agent = UplinkAgent(SlowDriver(), "rack1", address, Access())
        with pytest.raises(UplinkError, match=f"the switch at {address} has an older inagg than this switch"):
            await agent.run()
        await agent.close()
        await server.stop(None)

    loop_thread.run(attach(), 10)


def test_the_end_of_a_stream_that_went_with_its_parent_does_not_end_the_next(switch: Serving) -> None:
    controller = switch.server.controller
    assert controller is not None

    async def come_and_go() -> RemoteSwitch:
        hall, rack = (AttachedSwitch(name, above, (PLANE,), LIMITS) for name, above in (("hall", ""), ("rack", "hall")))
        above, old = controller.attach(hall), controller.attach(rack)
        controller.detach(above, "its connection ended")
        controller.attach(hall)
        new = controller.attach(rack)
        controller.detach(old, "its connection ended")
        assert old.why_gone == "switch 'hall', above it, has gone"
        return new

    new = switch.loop.run(come_and_go(), 5)
    assert not new.gone.is_set()
    assert set(controller.registry.topology.switches) == {"hall", "rack"}


def test_a_switch_of_another_protocol_is_not_taken_in(switch: Serving) -> None:
    hello = hello_message("rack1", (Shard(("10.0.0.1", 5000), 1024),), LIMITS, "10.0.0.1")
    hello.protocol = 0
    stream: Any = switch.client._stub.Attach(iter([pb.AttachRequest(hello=hello)]), metadata=switch.client._metadata)
    with pytest.raises(grpc.RpcError, match="switch 'rack1' has an older inagg than its parent"):
        next(stream)


@contextmanager
def stream_below(root: Serving) -> Iterator[tuple[Any, queue.SimpleQueue[pb.AttachRequest | None]]]:
    """The stream of a switch, rack1, that answers nothing, and what more it is to send; None ends it."""
    sends: queue.SimpleQueue[pb.AttachRequest | None] = queue.SimpleQueue()
    sends.put(pb.AttachRequest(hello=hello_message("rack1", (Shard(("10.0.0.1", 5000), 1024),), LIMITS, "10.0.0.1")))
    stream: Any = root.client._stub.Attach(iter(sends.get, None), metadata=root.client._metadata)
    assert next(stream).HasField("attached")
    try:
        yield stream, sends
    finally:
        stream.cancel()
        sends.put(None)


def test_a_switch_below_that_goes_leaves_no_task_behind(switch: Serving) -> None:
    """Python would log an error of it."""
    with stream_below(switch):
        pass

    async def wait_for_orders() -> list[str]:
        controller = switch.server.controller
        assert controller is not None
        async with asyncio.timeout(5):
            while controller.registry.topology.switches:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # what is cancelled runs once more
        return [task for task in map(repr, asyncio.all_tasks()) if "coro=<Queue.get" in task]

    assert switch.loop.run(wait_for_orders(), 10) == []


def lost(log: list[Any]) -> list[tuple[str, str]]:
    """How loud the log is on switches that have gone, and for which reasons they have."""
    return [(entry["log_level"], entry["why"]) for entry in log if entry["event"] == "switch_lost"]


def test_a_switch_below_that_does_not_answer_has_gone_for_that_reason(
    switch: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = switch.server.controller
    assert controller is not None
    monkeypatch.setattr(remote_switch, "ANSWER_S", 0.6)
    with structlog.testing.capture_logs() as log, stream_below(switch):
        switch.until(lambda: lost(log))
    assert lost(log) == [("warning", "it has not answered for 1 s")]


def test_a_root_that_stops_warns_of_no_switch_below(switch: Serving) -> None:
    with structlog.testing.capture_logs() as log, stream_below(switch):
        switch.stop()
    assert lost(log) == [("info", "the root stops")]


@pytest.mark.parametrize("bug", [False, True])
def test_a_bug_in_what_is_done_with_an_answer_is_in_the_log_and_an_end_of_the_stream_is_not(
    switch: Serving, monkeypatch: pytest.MonkeyPatch, bug: bool
) -> None:
    def answered(self: RemoteSwitch, answer: pb.Answer) -> None:
        if bug:
            raise ZeroDivisionError

    monkeypatch.setattr(RemoteSwitch, "answered", answered)
    controller = switch.server.controller
    assert controller is not None
    with structlog.testing.capture_logs() as log, stream_below(switch) as (stream, sends):
        sends.put(pb.AttachRequest(answer=pb.Answer()))
        if not bug:
            stream.cancel()
        switch.until(lambda: not controller.registry.topology.switches)
    assert [entry["event"] for entry in log if entry["log_level"] == "error"] == ["answer_failed"] * bug


def test_why_says_which_leaf_the_ranks_joined_at_that_are_not_heard_since_it_has_gone(switch: Serving) -> None:
    with leaf_below(switch, RecordingDriver()) as client:
        client.join(join_request(0, job_spec(workers=1, lanes=1440, heartbeat_limit_s=0.2)), timeout_s=5)
    switch.until(lambda: "Cut off: rank 0, who joined at switch 'rack1'" in " ".join(switch.client.why("job").text))


@contextmanager
def leaf_below(root: Serving, driver: RecordingDriver) -> Iterator[MemberClient]:
    """A leaf, rack1, and a client of it."""

    async def start() -> tuple[UplinkAgent, LeafServer, asyncio.Task[None]]:
        agent = UplinkAgent(driver, "rack1", root.server.address, Access())
        leaf = LeafServer(agent, "127.0.0.1:0")
        await leaf.start()
        running = asyncio.create_task(agent.run())
        async with asyncio.timeout(5):
            await agent.attached.wait()
        return agent, leaf, running

    async def end() -> None:
        running.cancel()
        await leaf.stop(0.0)
        await agent.close()

    agent, leaf, running = root.loop.run(start(), 10)
    try:
        with MemberClient(leaf.address) as client:
            yield client
    finally:
        root.loop.run(end(), 10)


def test_a_leaf_that_is_silent_keeps_its_counters_and_is_said_to_be_so_once(serve: Callable[..., Serving]) -> None:
    """Else they would fall to 0 and come back, which counts as so many more in a moment."""
    root, driver = serve(policy=Policy(tick_interval_s=0.02, poll_interval_s=0.02)), RecordingDriver()
    driver.job_counters[1] = JobCounters([50], [0], [0], [0], [900], 50)

    def silent(looks: int) -> None:
        """Have the leaf fail so many looks."""
        driver.look_error, before = "it is stuck", driver.looks
        root.until(lambda: driver.looks >= before + looks and root.client.stats().silent)

    with leaf_below(root, driver) as client, structlog.testing.capture_logs() as log:
        client.join(join_request(0, job_spec(workers=1, lanes=1440)), timeout_s=5)
        root.until(lambda: root.client.stats().jobs[0].results == 50)
        silent(5)
        stats = root.client.stats()
        driver.look_error = ""
        root.until(lambda: not root.client.stats().silent)
        silent(2)
    assert (stats.jobs[0].results, stats.jobs[0].workers[0].bytes_in) == (50, 900)
    assert [shard.datagrams_in for shard in stats.shards if shard.switch] == [7]
    told = [entry["event"] for entry in log if entry["event"] in ("switch_silent", "order_failed")]
    assert sorted(told) == ["order_failed"] * 2 + ["switch_silent"] * 2, "twice it fell silent"


def test_the_totals_of_a_job_whose_leaf_is_silent_are_not_known(serve: Callable[..., Serving]) -> None:
    root, driver = serve(policy=Policy(tick_interval_s=0.02, poll_interval_s=100)), RecordingDriver()

    with leaf_below(root, driver) as client, structlog.testing.capture_logs() as log:
        client.join(join_request(0, job_spec(workers=1, lanes=1440)), timeout_s=5)
        driver.look_error = "it is stuck"
        root.client.evict("job", "enough")
        root.until(lambda: any(entry["event"] == "totals_unknown" for entry in log))
        assert not root.client.list().ended[0].HasField("totals")


def test_a_job_whose_leaf_does_not_answer_while_it_is_bound_does_not_end(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks join through another, or again: the leaf counts as gone."""
    monkeypatch.setattr(remote_switch, "ANSWER_S", 0.2)
    root = serve(policy=Policy(tick_interval_s=0.02, poll_interval_s=100))
    came_by = ((SWITCH_METADATA, "rack1"), (PEER_METADATA, "ipv4:127.0.0.1:1"))
    with structlog.testing.capture_logs() as log, stream_below(root):
        join = root.client._stub.Join.future(join_request(0, job_spec(workers=1, lanes=1440)), metadata=came_by)
        with pytest.raises(grpc.RpcError, match="switch 'rack1', where rank 0 joined, has gone: it has not answered"):
            join.result(5)
    assert lost(log) == [("warning", "it has not answered for 0 s")]
    assert not [entry for entry in log if entry["event"] == "job_ended" and entry["cause"] == "switch_error"]


def test_a_leaf_that_does_not_reach_its_parent_is_not_said_to_be_out_of_reach_itself(loop_thread: LoopThread) -> None:
    async def start() -> tuple[UplinkAgent, LeafServer]:
        agent = UplinkAgent(RecordingDriver(), "rack1", NOBODY, Access())
        leaf = LeafServer(agent, "127.0.0.1:0")
        await leaf.start()
        return agent, leaf

    agent, leaf = loop_thread.run(start(), 5)
    with ControlClient(leaf.address) as client, pytest.raises(ControlCallError) as caught:
        client.list()
    loop_thread.run(leaf.stop(0.0), 5)
    loop_thread.run(agent.close(), 5)
    assert str(caught.value).startswith(f"switch 'rack1' does not reach its parent at {NOBODY}: ")
    assert caught.value.unreachable


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused", True),
        ("Socket closed", True),
        ("ping timeout", True),
        ("GOAWAY received", True),
        ("transport closed", True),
        ("switch 'rack1' does not reach its parent at 127.0.0.1:1: Failed to connect to remote host", False),
        ("the switch is stopping: join again, bringing what you had, when it is back", False),
    ],
)
def test_what_a_parent_says_itself_is_no_lost_connection(text: str, lost: bool) -> None:
    assert uplink_agent.connection_lost(text) is lost


def test_a_leaf_that_its_parent_takes_back_no_more_says_why(
    serve: Callable[..., Serving], loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the root was started again with another number of shards."""
    monkeypatch.setattr(uplink_agent, "RETRY_S", 0.01)
    root, again = serve(RecordingDriver()), serve(RecordingDriver(shard_count=2))

    async def start() -> tuple[UplinkAgent, LeafServer, asyncio.Task[None]]:
        agent = UplinkAgent(RecordingDriver(shard_count=2), "rack1", root.server.address, Access())
        agent._ever = True
        leaf = LeafServer(agent, "127.0.0.1:0")
        await leaf.start()
        running = asyncio.create_task(agent.run())
        async with asyncio.timeout(5):
            while agent.trouble is None:
                await asyncio.sleep(0.01)
        return agent, leaf, running

    async def attach(agent: UplinkAgent, running: asyncio.Task[None]) -> str | None:
        before, agent._uplinks = agent._uplinks, Uplinks(again.server.address, agent.read())
        async with asyncio.timeout(5):
            await agent.attached.wait()
        running.cancel()
        await asyncio.wait((running,))
        await before.close()
        return agent.trouble

    agent, leaf, running = loop_thread.run(start(), 10)
    with ControlClient(leaf.address) as client, pytest.raises(ControlCallError) as caught:
        client.data_planes()
    assert loop_thread.run(attach(agent, running), 10) is None
    loop_thread.run(leaf.stop(0.0), 5)
    loop_thread.run(agent.close(), 5)
    assert str(caught.value) == (
        "switch 'rack1' cannot be part of this tree: it has 2 shards, and the root 1: start it with --shards 1"
    )
    assert caught.value.unreachable
