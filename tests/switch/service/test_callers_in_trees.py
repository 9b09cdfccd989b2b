"""Who calls a root through the switches below it, where certificates or secrets have names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from tests.switch.background import LoopThread
from tests.switch.control.world import RecordingDriver
from tests.switch.service.certificates import Authority, Pair
from tests.switch.service.member_client import MemberClient
from tests.switch.service.serving import Serving, job_spec

from inagg_proto import bearer
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.control.policy import Policy
from inagg_switch.service import passing_on
from inagg_switch.service.access import Access
from inagg_switch.service.callers import callers_passed_on
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.service.security import Security
from inagg_switch.service.server import LeafServer
from inagg_switch.service.tree_messages import CALLERS_METADATA, PEER_METADATA, SWITCH_METADATA
from inagg_switch.service.uplink_agent import UplinkAgent

Metadata = tuple[tuple[str, str], ...]
StartLeaf = Callable[..., str]

FORGED = [
    ((SWITCH_METADATA, "rack9"), (CALLERS_METADATA, "operator")),
    ((SWITCH_METADATA, "rack9"), (CALLERS_METADATA, "operator,operator")),
    ((SWITCH_METADATA, "rack9"), (CALLERS_METADATA, "operator"), (CALLERS_METADATA, "operator")),
    ((SWITCH_METADATA, "rack9"),),
    ((SWITCH_METADATA, ""), (CALLERS_METADATA, "operator")),
    ((SWITCH_METADATA, ""), (PEER_METADATA, "")),
    ((SWITCH_METADATA, "rack9"), (SWITCH_METADATA, ""), (CALLERS_METADATA, "")),
    ((CALLERS_METADATA, "operator"),),
]  # fmt: skip


@pytest.fixture(scope="module")
def pairs(authority: Authority) -> dict[str, Pair]:
    """By common name."""
    return {name: authority.issue(name) for name in ("operator", "rack", "alice", "bob", "a,b c")}


@pytest.fixture
def shows(authority: Authority, pairs: dict[str, Pair]) -> Callable[[str], Access]:
    """How somebody of that name calls."""
    return lambda name: Access(True, authority.pair.certificate, pairs[name].certificate, pairs[name].key)


@pytest.fixture
def asks(authority: Authority, pairs: dict[str, Pair]) -> Security:
    """Of a switch that asks for certificates."""
    pair = pairs["operator"]
    return Security(pair.certificate, pair.key, client_ca=authority.pair.certificate)


@pytest.fixture
def open_to_all(pairs: dict[str, Pair]) -> Security:
    """Of a switch that asks for none."""
    return Security(pairs["operator"].certificate, pairs["operator"].key)


@pytest.fixture
def root(serve: Callable[..., Serving], asks: Security, shows: Callable[[str], Access]) -> Serving:
    return serve(security=asks, access=shows("operator"), policy=Policy(quota_jobs=1))


@pytest.fixture
def leaf(loop_thread: LoopThread) -> Iterator[StartLeaf]:
    """Starts a switch below another; its address."""
    started: list[tuple[UplinkAgent, LeafServer]] = []

    async def start(parent: str, name: str, access: Access, security: Security | None) -> str:
        agent = UplinkAgent(RecordingDriver(), name, parent, access)
        server = LeafServer(agent, "127.0.0.1:0", security=security)
        started.append((agent, server))
        await server.start()
        return server.address

    def make(parent: str, name: str, access: Access, security: Security | None = None) -> str:
        return loop_thread.run(start(parent, name, access, security), 10)

    yield make
    for agent, server in started:
        loop_thread.run(server.stop(0.0), 5)
        loop_thread.run(agent.close(), 5)


@contextmanager
def stub_at(address: str, access: Access) -> Iterator[control_pb2_grpc.ControlStub]:
    with access.channel(address) as channel:
        yield control_pb2_grpc.ControlStub(channel)


def is_no_operator(address: str, access: Access, *metadata: tuple[str, str]) -> str:
    """That who brings ``metadata`` can neither drain nor evict; what he is told."""
    said = ""
    with stub_at(address, access) as stub:
        for call in (
            lambda: stub.Evict(pb.EvictRequest(name="job"), metadata=metadata, timeout=5),
            lambda: stub.Drain(pb.DrainRequest(), metadata=metadata, timeout=5),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            said = str(caught.value.details())
    return said


def test_who_calls_a_leaf_is_who_he_is_at_the_root(
    root: Serving, leaf: StartLeaf, asks: Security, shows: Callable[[str], Access]
) -> None:
    rack = leaf(root.server.address, "rack0", shows("operator"), asks)
    assert "'bob' is no operator of this switch: call as operator" in is_no_operator(rack, shows("bob"))
    with MemberClient(rack, shows("operator")) as operator:
        assert operator.drain() == 0


def test_quotas_at_a_leaf_are_those_of_who_calls_it(
    root: Serving, leaf: StartLeaf, asks: Security, shows: Callable[[str], Access]
) -> None:
    rack = leaf(root.server.address, "rack0", shows("operator"), asks)
    with MemberClient(rack, shows("alice")) as alice, MemberClient(rack, shows("bob")) as bob:
        alice.create(job_spec("one", lanes=1440))
        bob.create(job_spec("two", lanes=1440))
        with pytest.raises(ControlCallError, match="'alice' may have 1 jobs"):
            alice.create(job_spec("three", lanes=1440))


def test_a_name_may_have_any_characters(
    root: Serving, leaf: StartLeaf, asks: Security, shows: Callable[[str], Access]
) -> None:
    rack = leaf(root.server.address, "rack0", shows("operator"), asks)
    assert "'a,b c' is no operator" in is_no_operator(rack, shows("a,b c"))


def test_the_first_switch_of_two_says_who_calls(
    root: Serving, leaf: StartLeaf, asks: Security, shows: Callable[[str], Access]
) -> None:
    hall = leaf(root.server.address, "hall", shows("operator"), asks)
    rack = leaf(hall, "rack0", shows("operator"), asks)
    assert "'bob' is no operator" in is_no_operator(rack, shows("bob"))
    with MemberClient(rack, shows("operator")) as operator:
        assert operator.drain() == 0


@pytest.mark.parametrize("metadata", FORGED)
@pytest.mark.parametrize("levels", [0, 1, 2])
def test_nobody_forges_what_switches_say(
    root: Serving, leaf: StartLeaf, asks: Security, shows: Callable[[str], Access], levels: int, metadata: Metadata
) -> None:
    address = root.server.address
    for level in range(levels):
        address = leaf(address, f"level{level}", shows("operator"), asks)
    is_no_operator(address, shows("bob"), *metadata)


@pytest.mark.parametrize("callers", ["alice", "alice,operator", "alice,operator,operator"])
def test_who_is_no_operator_is_not_believed_to_be_a_switch(
    root: Serving, shows: Callable[[str], Access], callers: str
) -> None:
    """He would be counted where he is not."""
    metadata = ((SWITCH_METADATA, "rack9"), (PEER_METADATA, "ipv4:10.0.0.9:1"), (CALLERS_METADATA, callers))
    with stub_at(root.server.address, shows("bob")) as stub:
        for call in (
            lambda: stub.List(pb.ListRequest(), metadata=metadata, timeout=5),
            lambda: stub.Create(pb.CreateRequest(spec=job_spec()), metadata=metadata, timeout=5),
            lambda: list(stub.Watch(pb.WatchRequest(name="job"), metadata=metadata, timeout=5)),
        ):
            with pytest.raises(grpc.RpcError, match="through switch 'rack9', and who sent it, 'bob', is no operator"):
                call()


def test_through_a_leaf_that_asks_for_no_certificate_comes_no_operator(
    root: Serving, leaf: StartLeaf, open_to_all: Security, shows: Callable[[str], Access]
) -> None:
    rack = leaf(root.server.address, "rack0", shows("operator"), open_to_all)
    for access in (Access(True, shows("bob").ca), shows("operator")):
        assert "tells no name: it needs --client-ca" in is_no_operator(rack, access)
    with MemberClient(rack, Access(True, shows("bob").ca)) as somebody:
        somebody.create(job_spec(lanes=1440))  # who runs the leaf has let him in


def test_through_a_switch_between_that_asks_for_no_certificate_comes_nobody(
    root: Serving, leaf: StartLeaf, asks: Security, open_to_all: Security, shows: Callable[[str], Access]
) -> None:
    hall = leaf(root.server.address, "hall", shows("operator"), open_to_all)
    rack = leaf(hall, "rack0", shows("operator"), asks)
    assert "those between ask for them" in is_no_operator(rack, shows("operator"))


@pytest.mark.parametrize("old", ["the first", "the second"])
def test_through_a_leaf_of_before_comes_no_operator(
    root: Serving,
    leaf: StartLeaf,
    asks: Security,
    shows: Callable[[str], Access],
    monkeypatch: pytest.MonkeyPatch,
    old: str,
) -> None:
    """Which tells no names, and passes on what it is told of switches by whomever."""

    def metadata(self: passing_on.PassingOn, context: passing_on.Context) -> passing_on.Metadata:
        own = {SWITCH_METADATA: self._name, PEER_METADATA: context.peer()}
        kept = {key: value for key, value in context.invocation_metadata() or () if key in passing_on.KEPT}
        said = own | kept
        if self._name != old:
            said[CALLERS_METADATA] = callers_passed_on(context)
        return tuple(said.items())

    monkeypatch.setattr(passing_on.PassingOn, "_metadata", metadata)
    rack = leaf(leaf(root.server.address, "the first", shows("operator"), asks), "the second", shows("operator"), asks)
    for forged in ((), *FORGED):
        is_no_operator(rack, shows("bob"), *forged)
    with MemberClient(rack, shows("bob")) as bob:
        bob.create(job_spec(lanes=1440))


def test_a_leaf_is_who_it_is_itself(
    serve: Callable[..., Serving], leaf: StartLeaf, asks: Security, shows: Callable[[str], Access]
) -> None:
    """A leaf whose certificate is no operator's passes nothing on."""
    root = serve(security=asks, access=shows("operator"))
    rack = leaf(root.server.address, "rack0", shows("rack"), asks)
    assert "who sent it, 'rack', is no operator" in is_no_operator(rack, shows("operator"))


def test_a_secret_names_its_owner_at_a_leaf_too(serve: Callable[..., Serving], leaf: StartLeaf, tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("operator: o-secret\nbob: b-secret\n")
    security = Security(secret_file=tmp_path / "secrets")
    root = serve(security=security, access=Access(secret="o-secret"))
    rack = leaf(root.server.address, "rack0", Access(secret="o-secret"), security)
    for forged in ((), *FORGED):
        for address in (root.server.address, rack):
            is_no_operator(address, Access(), ("authorization", bearer("b-secret")), *forged)
    with MemberClient(rack, Access(secret="o-secret")) as operator:
        assert operator.drain() == 0


def test_a_secret_with_a_name_counts_more_than_the_certificate_of_the_leaf(
    serve: Callable[..., Serving],
    leaf: StartLeaf,
    authority: Authority,
    pairs: dict[str, Pair],
    shows: Callable[[str], Access],
    tmp_path: Path,
) -> None:
    """Then a leaf may be an operator by its secret, and have a certificate of any name."""
    (tmp_path / "secrets").write_text("operator: o-secret\nbob: b-secret\n")
    pair = pairs["rack"]
    both = Security(pair.certificate, pair.key, client_ca=authority.pair.certificate, secret_file=tmp_path / "secrets")
    root = serve(security=both, access=shows("rack"))
    rack = leaf(root.server.address, "rack0", shows("rack"), both)
    bob = ("authorization", bearer("b-secret"))
    for forged in ((), *FORGED):
        for address in (root.server.address, rack):
            assert "'bob' is no operator" in is_no_operator(address, shows("operator"), bob, *forged)
    with stub_at(rack, shows("alice")) as stub:
        stub.Drain(pb.DrainRequest(), metadata=(("authorization", bearer("o-secret")),), timeout=5)


def test_where_nobody_has_a_name_everybody_is_an_operator_at_a_leaf_too(
    serve: Callable[..., Serving], leaf: StartLeaf
) -> None:
    root = serve()
    rack = leaf(leaf(root.server.address, "hall", Access()), "rack0", Access())
    with MemberClient(rack) as anybody:
        assert anybody.drain() == 0
