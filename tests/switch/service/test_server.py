"""Start and stop, health, reflection, and a client that meets no switch."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.switch.background import BackgroundServer, LoopThread
from tests.switch.control.world import LIMITS, RecordingDriver
from tests.switch.service.serving import Call, Serving, job_spec, join_request

from inagg_proto import SERVICE
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.control import events as ev
from inagg_switch.control.policy import Policy
from inagg_switch.control.refusals import ControlError
from inagg_switch.control.topology import AttachedSwitch
from inagg_switch.driver import Shard
from inagg_switch.service import orders
from inagg_switch.service.control_client import ControlCallError, ControlClient, NotASwitch, UnlikeSwitch
from inagg_switch.service.security import Security
from inagg_switch.service.server import ControlServer, ServerError
from inagg_switch.service.subscribers import Subscriber
from inagg_switch.service.tree_messages import PEER_METADATA, SWITCH_METADATA


def test_stopping_ends_open_calls_at_once_and_says_what_to_do(switch: Serving) -> None:
    switch.client.create(job_spec())
    streams = [switch.client.watch("job") for _ in range(8)]
    for stream in streams:
        next(stream)
    joins = [switch.join_later(rank, job_spec("other", workers=32)) for rank in range(8)]
    switch.waiting(*range(8), name="other")
    switch.stop(grace_s=1000.0)  # in which those that are open may end
    calls: list[Call[Any]] = [*joins, *(Call(partial(list, stream)) for stream in streams)]
    for call in calls:
        with pytest.raises(ControlCallError, match="the switch is stopping: join again") as caught:
            call.result()
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE


def test_stopping_twice_is_no_error(switch: Serving) -> None:
    switch.stop()
    switch.stop()


def test_stopping_leaves_the_driver_to_its_owner(switch: Serving) -> None:
    switch.join_all()
    switch.stop()
    assert switch.driver.calls == ["bind 0 1"]


def test_two_switches_cannot_share_a_port(switch: Serving, serve: Callable[..., Serving]) -> None:
    with pytest.raises(ServerError, match=r"cannot listen on 127\.0\.0\.1:\d+: is another switch running there\?"):
        serve(address=switch.server.address)


def test_a_server_on_a_unix_socket(serve: Callable[..., Serving], tmp_path: Path) -> None:
    serving = serve(address=f"unix:{tmp_path}/control")
    assert serving.client.healthy()
    with pytest.raises(ControlCallError, match="'' is no IP address"):
        serving.client.join(join_request(0, addresses=[pb.Address(port=1)]))


@pytest.mark.parametrize("form", ["unix:{}", "unix://{}"])
def test_two_switches_cannot_share_a_unix_socket(serve: Callable[..., Serving], tmp_path: Path, form: str) -> None:
    """The second would take it from the first, and the first would remove it when it stops."""
    address = form.format(tmp_path / "control")
    first = serve(address=address)
    with pytest.raises(ServerError, match=r"cannot listen on unix:.*/control: is another switch running there\?"):
        serve(address=address)
    assert first.client.healthy()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("unix:{}/none/control", "No such file or directory"),
        ("unix:{}", "is another switch running there"),
        ("192.0.2.77:0", "Cannot assign requested address"),
    ],
)
def test_why_a_switch_cannot_listen_is_said(
    serve: Callable[..., Serving], tmp_path: Path, address: str, why: str
) -> None:
    with pytest.raises(ServerError, match=f"cannot listen on .*: {why}.*choose another address with --listen$"):
        serve(address=address.format(tmp_path), security=Security(insecure_anywhere=True))


def test_a_unix_socket_that_a_killed_switch_has_left_is_taken(serve: Callable[..., Serving], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "control"))
    assert serve(address=f"unix:{tmp_path}/control").client.healthy()


def test_what_has_a_port_may_be_no_switch(serve: Callable[..., Serving]) -> None:
    """Most ports of ours lie among those that connections get."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ServerError, match=r"If not, a connection of another program .*ip_local_reserved_ports\)$"):
            serve(address=f"127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_all_addresses_are_those_of_both_families(serve: Callable[..., Serving], host: str) -> None:
    """As `--help` says of --listen."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    port = serve(address=f"{host}:0", security=Security(insecure_anywhere=True)).server.address.rpartition(":")[2]
    for caller in ("127.0.0.1", "[::1]"):
        with ControlClient(f"{caller}:{port}") as client:
            assert client.healthy()


def test_a_server_on_ipv6(serve: Callable[..., Serving]) -> None:
    try:
        serving = serve(address="[::1]:0")
    except ServerError:
        pytest.skip("this machine has no IPv6")
    serving.client.join(join_request(0, job_spec(workers=1), addresses=[pb.Address(port=9)]))
    assert serving.driver.bound[0, 1].children == (("::1", 9),)


def test_a_server_in_the_background_of_a_program_without_an_event_loop() -> None:
    server = BackgroundServer(ControlServer(RecordingDriver(), "127.0.0.1:0"))
    server.start()
    with ControlClient(server.address) as client:
        assert client.healthy()
    server.stop()
    server.stop()  # no error
    with ControlClient(server.address) as client, pytest.raises(ControlCallError):
        client.healthy()


def test_a_background_server_that_cannot_start_says_so(switch: Serving) -> None:
    with pytest.raises(ServerError):
        BackgroundServer(ControlServer(RecordingDriver(), switch.server.address)).start()


# ---------------------------------------------------------------------------------------- health, reflection


@pytest.mark.parametrize("service", ["", SERVICE])
def test_the_standard_health_service_answers(switch: Serving, service: str) -> None:
    with grpc.insecure_channel(switch.server.address) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_health_follows_the_switch(switch: Serving) -> None:
    switch.driver.look_error = "no reply"
    switch.until(lambda: not switch.client.healthy())
    switch.driver.look_error = ""
    switch.until(switch.client.healthy)


def test_reflection_describes_the_service(switch: Serving) -> None:
    with grpc.insecure_channel(switch.server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) == {
            SERVICE,
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        service = DescriptorPool(database).FindServiceByName(SERVICE)
    assert [method.name for method in service.methods] == [
        method.name for method in pb.DESCRIPTOR.services_by_name["Control"].methods
    ]


# ---------------------------------------------------------------------------------------- clients


def test_a_client_that_finds_no_switch_says_where_and_what_to_look_at() -> None:
    with ControlClient("127.0.0.1:1") as client, pytest.raises(ControlCallError) as caught:
        client.list()
    assert caught.value.text.startswith(
        "cannot reach the switch at 127.0.0.1:1: is `inagg switch` running there, without TLS? ("
    )


@pytest.fixture
def other(loop_thread: LoopThread) -> Iterator[Callable[[str | None], ControlClient]]:
    """Start a gRPC server that knows no call of ours, and give a client of it. Its health service says that the service
    of this name is served; None: it has none."""
    with ExitStack() as stack:

        async def start(service: str | None) -> tuple[grpc.aio.Server, int]:
            server = grpc.aio.server()
            if service is not None:
                well = health.aio.HealthServicer()  # type: ignore[attr-defined]  # its stubs lack it
                await well.set(service, health_pb2.HealthCheckResponse.SERVING)
                health_pb2_grpc.add_HealthServicer_to_server(well, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            return server, port

        def client(service: str | None) -> ControlClient:
            server, port = loop_thread.run(start(service))
            stack.callback(lambda: loop_thread.run(server.stop(0)))
            made: ControlClient = stack.enter_context(ControlClient(f"127.0.0.1:{port}"))
            return made

        yield client


@pytest.mark.parametrize("service", [None, "another.Service"])
def test_a_client_that_meets_another_grpc_server_says_so(
    service: str | None, other: Callable[[str | None], ControlClient]
) -> None:
    with pytest.raises(NotASwitch, match="is no inagg switch, but another gRPC service"):
        other(service).list()


@pytest.mark.parametrize("service", [None, "another.Service"])
def test_another_grpc_server_is_told_by_its_health_already(
    service: str | None, other: Callable[[str | None], ControlClient]
) -> None:
    with pytest.raises(NotASwitch, match="is no inagg switch, but another gRPC service"):
        other(service).healthy()


def test_a_client_that_meets_a_switch_without_the_call_says_that_it_is_older(
    other: Callable[[str | None], ControlClient],
) -> None:
    client = other(SERVICE)
    with pytest.raises(UnlikeSwitch) as caught:
        client.list()
    assert caught.value.text == (
        f"the switch at {client.address} does not know this call, as it has an older inagg than this command: install "
        "the same on both"
    )


def test_a_proxy_of_the_environment_is_not_asked(switch: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with ControlClient(switch.server.address) as client:
        assert client.healthy()


# ---------------------------------------------------------------------------------------- bounded things


def test_a_watcher_keeps_no_more_events_than_its_limit() -> None:
    async def overrun() -> Subscriber:
        subscriber = Subscriber(4)
        for _ in range(1000):
            subscriber.put(pb.Event())
        return subscriber

    assert len(asyncio.run(overrun())._events) == 0


def test_a_large_request_is_refused(switch: Serving) -> None:
    with pytest.raises(ControlCallError) as caught:
        switch.client.create(job_spec("x" * (1 << 20)))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_call_waits_for_room_that_a_job_gives_back_just_now(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is evicted, which, unlike a rank's `leave`, does not wait until the switch has dropped it."""
    refused = threading.Event()

    class Slow(RecordingDriver):
        def unbind(self, shard: int, job: int) -> None:
            assert refused.wait(10)
            super().unbind(shard, job)

    serving = serve(Slow(slots=32), policy=Policy(poll_interval_s=100))
    serving.join_all(job_spec("a"))
    controller = serving.server.controller
    assert controller is not None
    create = controller.registry.create

    def noted(*arguments: Any) -> Any:
        try:
            return create(*arguments)
        except ControlError:
            refused.set()
            raise

    monkeypatch.setattr(controller.registry, "create", noted)
    serving.client.evict("a")
    serving.client.create(job_spec("b"))
    assert refused.is_set()


def test_a_bug_while_a_job_is_bound_is_an_error_of_that_job(switch: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = switch.server.controller
    assert controller is not None
    bind = controller.tree.bind

    async def broken(order: ev.Bind) -> None:
        if order.job == 1:
            raise ZeroDivisionError("of all things")
        await bind(order)

    monkeypatch.setattr(controller.tree, "bind", broken)
    with pytest.raises(ControlCallError, match=r"it: a bug \(ZeroDivisionError: of all things\), of which the switch"):
        switch.join_all(job_spec("a"))
    switch.join_all(job_spec("b"))
    switch.until(lambda: "unbind 0 1" in switch.driver.calls)


def test_a_job_whose_shard_dies_while_it_is_bound_runs_when_that_is_back(switch: Serving) -> None:
    controller = switch.server.controller
    assert controller is not None
    switch.driver.bind_error = switch.driver.dead = "shard 0 has died"
    joins = [switch.join_later(rank) for rank in range(2)]
    switch.until(lambda: "bind 0 1" in switch.driver.calls)
    switch.until(lambda: not controller._orders._carrying)
    switch.driver.bind_error = ""
    switch.loop.run(controller.restart(0), 5)
    assert len({join.result().token for join in joins}) == 1


def test_a_job_whose_leaf_goes_while_it_is_bound_does_not_end(switch: Serving) -> None:
    controller = switch.server.controller
    assert controller is not None
    planes = (Shard(("127.0.0.1", 5555), 1024),)

    async def attach() -> None:
        """Just as if it had gone again, and that were not known yet."""
        controller.registry.topology.attach(AttachedSwitch("rack0", "", planes, LIMITS))

    switch.loop.run(attach(), 5)
    came_by = ((SWITCH_METADATA, "rack0"), (PEER_METADATA, "ipv4:127.0.0.1:1"))
    with grpc.insecure_channel(switch.server.address) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        join = stub.Join.future(join_request(0, job_spec(workers=1, lanes=1440)), metadata=came_by, timeout=10)
        switch.until(lambda: controller.registry.jobs.by_number)
        switch.until(lambda: not controller._orders._carrying)
        assert switch.job().state == pb.JOB_STATE_BINDING
        join.cancel()  # type: ignore[no-untyped-call]


def test_who_ends_a_job_that_the_switch_fails_to_drop_does_not_wait_for_that(
    switch: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "ROOM_WAIT_S", 60.0)
    switch.join_all()
    switch.driver.unbind_error = "timeout"
    assert switch.leave(0, end=True).ended


def test_slots_that_a_bug_keeps_from_being_dropped_are_dropped_later(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = serve(RecordingDriver(slots=32), policy=Policy(tick_interval_s=0.05, unbind_retry_s=0.05))
    controller = serving.server.controller
    assert controller is not None
    unbind, tries = controller.tree.unbind, list[int]()

    async def broken(order: ev.Unbind) -> None:
        tries.append(order.job)
        if len(tries) == 1:
            raise ZeroDivisionError
        await unbind(order)

    monkeypatch.setattr(controller.tree, "unbind", broken)
    serving.join_all(job_spec("a"))
    serving.leave(0, "a", end=True)
    serving.until(lambda: "unbind 0 1" in serving.driver.calls)
    serving.join_all(job_spec("b"))


def test_ranks_of_many_jobs_can_come_back_all_at_once(serve: Callable[..., Serving]) -> None:
    serving = serve(RecordingDriver(slots=1 << 11))
    with grpc.insecure_channel(serving.server.address, (("grpc.enable_http_proxy", 0),)) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        calls = [
            stub.Join.future(join_request(rank, job_spec(f"job{job}", workers=32)), timeout=20)
            for rank in range(32)
            for job in range(64)
        ]
        assert {call.result().epoch for call in calls} == {1}
