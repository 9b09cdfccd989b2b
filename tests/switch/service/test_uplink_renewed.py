"""A switch below another whose certificate, authority or secret for its parent is another one after SIGHUP."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import structlog
from tests.switch.background import LoopThread
from tests.switch.control.world import RecordingDriver
from tests.switch.service.certificates import Authority, Pair
from tests.switch.service.serving import Serving
from tests.switch.service.test_uplink import Parent

from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.service import uplink_agent
from inagg_switch.service.access import Access, OpenedAccess
from inagg_switch.service.callers import common_name
from inagg_switch.service.control_client import ControlCallError, ControlClient
from inagg_switch.service.security import Security, SecurityError
from inagg_switch.service.server import LeafServer
from inagg_switch.service.tls_trouble import tls_trouble
from inagg_switch.service.uplink_agent import UplinkAgent

PATIENCE_S = 20.0


def put(pair: Pair, folder: Path) -> None:
    """Have the leaf's files be those of a pair."""
    shutil.copy(pair.certificate, folder / "pem")
    shutil.copy(pair.key, folder / "key")


def until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come about in time"
        time.sleep(0.005)


class StrictParent(Parent):
    """Asks for certificates, notes who calls what, and takes switches in until it is told to end their streams."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._server: grpc.aio.Server | None = None
        self._over = asyncio.Event()
        self.seen: list[tuple[str, str]] = []
        self.address = "127.0.0.1:0"

    async def start(self, client_ca: Authority) -> None:
        """Serve those whose certificates ``client_ca`` has signed; where it served before."""
        server = self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        control_pb2_grpc.add_ControlServicer_to_server(self, server)
        own = self._pair.key.read_bytes(), self._pair.certificate.read_bytes()
        credentials = grpc.ssl_server_credentials([own], client_ca.pair.certificate.read_bytes(), True)
        self.address = f"127.0.0.1:{server.add_secure_port(self.address, credentials)}"
        await server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def end_streams(self) -> None:
        """End those that there are."""
        self._over.set()
        self._over = asyncio.Event()

    async def DataPlanes(self, request: pb.DataPlanesRequest, context: Any) -> pb.DataPlanesResponse:  # noqa: N802
        self.seen.append(("DataPlanes", common_name(context)))
        return await super().DataPlanes(request, context)

    async def List(self, request: pb.ListRequest, context: Any) -> pb.ListResponse:  # noqa: N802
        self.seen.append(("List", common_name(context)))
        return pb.ListResponse()

    async def Attach(  # noqa: N802  # gRPC's name
        self, requests: AsyncIterator[pb.AttachRequest], context: Any
    ) -> AsyncIterator[pb.AttachOrder]:
        await anext(requests)
        over = self._over
        self.seen.append(("Attach", common_name(context)))
        yield pb.AttachOrder(attached=pb.Attached())
        await over.wait()


class Leaf:
    """A leaf on another thread's event loop."""

    def __init__(self, loop: LoopThread, parent: str, access: Access, security: Security | None = None) -> None:
        self._loop = loop
        self.agent, self.server, self._running = loop.run(self._start(parent, access, security), 10)

    @staticmethod
    async def _start(
        parent: str, access: Access, security: Security | None
    ) -> tuple[UplinkAgent, LeafServer, asyncio.Task[None]]:
        agent = UplinkAgent(RecordingDriver(), "rack1", parent, access)
        server = LeafServer(agent, "127.0.0.1:0", security=security)
        running = asyncio.create_task(agent.run())
        async with asyncio.timeout(PATIENCE_S):
            await agent.attached.wait()
        await server.start()
        return agent, server, running

    def list_jobs(self, access: Access | None = None) -> None:
        """Ask it what its parent is to answer."""
        with ControlClient(self.server.address, access) as client:
            client.list(PATIENCE_S)

    def close(self) -> None:
        async def end() -> None:
            self._running.cancel()
            await self.server.stop(0.0)
            await self.agent.close()

        self._loop.run(end(), 10)


@pytest.fixture
def parent(loop_thread: LoopThread, authority: Authority) -> Iterator[StrictParent]:
    async def make() -> StrictParent:
        parent = StrictParent(authority.issue("root"))  # type: ignore[abstract]  # it is asked for nothing else
        await parent.start(authority)
        return parent

    parent = loop_thread.run(make(), 10)
    yield parent
    loop_thread.run(parent.stop(), 10)


@pytest.fixture
def leaf(
    loop_thread: LoopThread, parent: StrictParent, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Leaf]:
    """Attached with a certificate for `before`."""
    monkeypatch.setattr(uplink_agent, "RETRY_S", 0.01)
    put(authority.issue("before"), tmp_path)
    access = Access(True, authority.pair.certificate, tmp_path / "pem", tmp_path / "key")
    leaf = Leaf(loop_thread, parent.address, access)
    yield leaf
    leaf.close()


def logged(log: list[Any], event: str) -> list[dict[str, Any]]:
    return [one for one in log if one["event"] == event]


def test_after_a_reload_calls_show_the_new_certificate_and_the_stream_stands(
    leaf: Leaf, parent: StrictParent, loop_thread: LoopThread, authority: Authority, tmp_path: Path
) -> None:
    before = leaf.agent.uplink
    put(authority.issue("after"), tmp_path)
    with structlog.testing.capture_logs() as log:
        leaf.server.reload()
        until(lambda: leaf.agent.uplink is not before)
        leaf.list_jobs()
        assert logged(log, "parent_access_renewed")
    assert parent.seen[-1] == ("List", "after")
    assert [who for what, who in parent.seen if what == "Attach"] == ["before"]
    assert leaf.agent.attached.is_set()
    assert not before.closed, "its stream stands"
    loop_thread.run(parent.end_streams(), 5)
    until(lambda: ("Attach", "after") in parent.seen)
    until(lambda: before.closed)
    leaf.list_jobs()


def test_the_old_channel_stays_for_as_long_as_a_call_uses_it(
    leaf: Leaf, loop_thread: LoopThread, authority: Authority, tmp_path: Path
) -> None:
    async def use_it() -> bool:
        uplink = leaf.agent.uplink
        with uplink.used(), uplink.used():
            uplink.retire()
        return uplink.closed  # the stream uses it, too

    assert not loop_thread.run(use_it(), 5)
    leaf.list_jobs()


def test_a_reload_without_another_file_keeps_the_channel(leaf: Leaf, loop_thread: LoopThread) -> None:
    async def nothing() -> None:
        """What was to be called on the loop has been."""

    before = leaf.agent.uplink
    leaf.server.reload()
    loop_thread.run(nothing(), 5)
    assert leaf.agent.uplink is before
    assert leaf.agent._uplinks.next is None


def test_a_new_certificate_that_the_parent_refuses_harms_no_call_and_is_told_once(
    leaf: Leaf,
    parent: StrictParent,
    authority: Authority,
    stranger: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str | None] = []

    def look(address: str, access: OpenedAccess, said: str | None) -> str | None:
        looks.append(said)
        return tls_trouble(address, access, said)

    monkeypatch.setattr(uplink_agent, "RENEW_RETRY_S", 0.01)
    monkeypatch.setattr(uplink_agent, "tls_trouble", look)
    before = leaf.agent.uplink
    with structlog.testing.capture_logs() as log:
        put(stranger.issue("nobody"), tmp_path)
        leaf.server.reload()
        until(lambda: len(looks) > 3)
        (told,) = logged(log, "parent_access_not_renewed")
        assert "it refuses the certificate that it is shown" in told["why"]
        leaf.list_jobs()
        assert leaf.agent.uplink is before
        put(authority.issue("after"), tmp_path)
        leaf.server.reload()
        until(lambda: leaf.agent.uplink is not before)
        leaf.list_jobs()
    assert parent.seen[-1] == ("List", "after")


def test_a_new_certificate_that_the_parent_refused_counts_when_the_stream_has_ended(
    leaf: Leaf,
    loop_thread: LoopThread,
    parent: StrictParent,
    stranger: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as where the root is to have another authority, and is started again for it."""
    monkeypatch.setattr(uplink_agent, "RENEW_RETRY_S", 1000.0)

    async def start_again() -> None:
        await parent.stop()
        await parent.start(stranger)

    with structlog.testing.capture_logs() as log:
        put(stranger.issue("after"), tmp_path)
        leaf.server.reload()
        until(lambda: logged(log, "parent_access_not_renewed"))
        loop_thread.run(start_again(), 10)
        until(lambda: ("Attach", "after") in parent.seen)


def test_a_leaf_that_was_attached_says_why_tls_fails_by_what_it_shows_and_not_by_its_files(
    leaf: Leaf, loop_thread: LoopThread, parent: StrictParent, stranger: Authority, tmp_path: Path
) -> None:
    async def start_again() -> None:
        await parent.stop()
        await parent.start(stranger)

    why = (
        "it refuses the certificate that it is shown (its --client-ca has not signed it, as it seems): give --tls-cert "
        "and --tls-key of another (this switch reads its files again at SIGHUP)"
    )
    put(stranger.issue("after"), tmp_path)  # with which all would be well
    with structlog.testing.capture_logs() as log:
        loop_thread.run(start_again(), 10)
        until(lambda: leaf.agent.no_tls is not None)
        with pytest.raises(ControlCallError) as caught:
            leaf.list_jobs()
        assert [one["why"] for one in logged(log, "parent_lost")][-1] == why
        assert str(caught.value) == f"switch 'rack1' does not reach its parent at {parent.address}: {why}"
        assert caught.value.unreachable
        leaf.server.reload()
        until(lambda: ("Attach", "after") in parent.seen)
        until(leaf.agent.attached.is_set)
    assert leaf.agent.no_tls is None
    leaf.list_jobs()


def test_a_reload_with_a_file_that_is_none_changes_nothing_and_the_next_one_does(
    leaf: Leaf, authority: Authority, tmp_path: Path
) -> None:
    before, served = leaf.agent.uplink, leaf.server.certificates()
    (tmp_path / "pem").write_text("nothing")
    with pytest.raises(SecurityError, match="holds no certificate in PEM"):
        leaf.server.reload()
    assert leaf.server.certificates() is served
    leaf.list_jobs()
    assert leaf.agent.uplink is before
    put(authority.issue("after"), tmp_path)
    leaf.server.reload()
    until(lambda: leaf.agent.uplink is not before)


# --- secrets ---


def test_the_secret_for_the_parent_is_read_again_and_taken_when_the_parent_knows_it(
    serve: Callable[..., Serving], loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink_agent, "RENEW_RETRY_S", 0.05)
    known, own = tmp_path / "secrets", tmp_path / "own"
    known.write_text("operator: old-secret\n")
    own.write_text("old-secret\n")
    root = serve(security=Security(secret_file=known))
    security = Security(secret_file=known)
    leaf = Leaf(loop_thread, root.server.address, Access(secret_file=own), security)
    before = leaf.agent.uplink
    try:
        with structlog.testing.capture_logs() as log:
            own.write_text("# ours\noperator: new-secret\n")
            leaf.server.reload()
            until(lambda: logged(log, "parent_access_not_renewed"))
            assert "the shared secret is wrong" in logged(log, "parent_access_not_renewed")[0]["why"]
            leaf.list_jobs(Access(secret="old-secret"))
            known.write_text("operator: new-secret\n")
            root.server.reload()
            until(lambda: leaf.agent.uplink is not before)
            leaf.server.reload()
            leaf.list_jobs(Access(secret="new-secret"))
            assert len(logged(log, "parent_access_not_renewed")) == 1
    finally:
        leaf.close()


@pytest.mark.parametrize("how", ["INAGG_SECRET", "--parent-secret-file"])
def test_a_leaf_whose_own_secret_is_in_its_file_no_more_says_so(
    serve: Callable[..., Serving], loop_thread: LoopThread, tmp_path: Path, how: str
) -> None:
    known, own = tmp_path / "secrets", tmp_path / "own"
    known.write_text("operator: old-secret\n")
    own.write_text("old-secret\n")
    root = serve(security=Security(secret="old-secret"))
    access = Access(secret="old-secret") if how == "INAGG_SECRET" else Access(secret_file=own)
    with structlog.testing.capture_logs() as log:
        leaf = Leaf(loop_thread, root.server.address, access, Security(secret_file=known))
        leaf.server.reload()
        assert not logged(log, "own_secret_unknown")
        known.write_text("operator: new-secret\n")
        leaf.server.reload()
        (told,) = logged(log, "own_secret_unknown")
        leaf.close()
    assert how in told["what"]
    assert str(known) in told["what"]
    assert ("start this switch again" in told["hint"]) is (how == "INAGG_SECRET")
    assert "old-secret" not in str(told)


def test_a_leaf_whose_file_never_had_its_own_secret_has_nothing_to_say_of_that(
    serve: Callable[..., Serving], loop_thread: LoopThread, tmp_path: Path
) -> None:
    """The root alone may know it."""
    known = tmp_path / "secrets"
    known.write_text("alice: a-secret\n")
    root = serve(security=Security(secret="o-secret"))
    with structlog.testing.capture_logs() as log:
        leaf = Leaf(loop_thread, root.server.address, Access(secret="o-secret"), Security(secret_file=known))
        leaf.server.reload()
        leaf.close()
    assert not logged(log, "own_secret_unknown")


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: x\nb: y\n", "has 2 secrets: give a file with your own alone"), ("", "no secret")],
)
def test_the_file_of_ones_own_secret_has_one(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "own").write_text(text)
    with pytest.raises(SecurityError, match=words):
        Access(secret_file=tmp_path / "own").now()


def test_what_an_access_was_made_of_shows_no_secret_in_a_log() -> None:
    assert "s3cret" not in repr(OpenedAccess(key=b"s3cret", secret="s3cret"))
