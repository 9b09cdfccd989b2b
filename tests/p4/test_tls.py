"""P4Runtime and BF Runtime over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import grpc
import pytest
from tests.p4.bfruntime_server import BfRuntimeServer
from tests.p4.p4runtime_server import P4RuntimeServer
from tests.p4.switch_server import SwitchServer
from tests.switch.service.certificates import Authority, Pair

from inagg_switch.driver import DriverError
from inagg_switch.p4 import grpc_stream
from inagg_switch.p4.bmv2.p4runtime_client import Client as P4RuntimeClient
from inagg_switch.p4.builds import build
from inagg_switch.p4.grpc_stream import StreamClient
from inagg_switch.p4.tofino.bfruntime_client import Client as BfRuntimeClient
from inagg_switch.service.access import Access


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("localhost")


@pytest.fixture(params=["P4Runtime", "BF Runtime"])
def server(request: pytest.FixtureRequest, pair: Pair, authority: Authority) -> Iterator[SwitchServer]:
    """One that wants a certificate of its clients, too."""
    kind = P4RuntimeServer if request.param == "P4Runtime" else BfRuntimeServer
    with pytest.MonkeyPatch.context() as patch:
        key_and_certificate = [(pair.key.read_bytes(), pair.certificate.read_bytes())]
        ca = authority.pair.certificate.read_bytes()
        patch.setattr(kind, "credentials", grpc.ssl_server_credentials(key_and_certificate, ca, True))
        with kind(build("nat8-32")) if kind is P4RuntimeServer else kind() as running:  # type: ignore[call-arg]
            yield running


def client_of(server: SwitchServer, access: Access | None) -> StreamClient:
    if isinstance(server, P4RuntimeServer):
        return P4RuntimeClient(server.target, access=access)
    return BfRuntimeClient(server.target, "inagg", access=access)


def test_who_shows_a_certificate_and_trusts_the_switch_is_served(
    server: SwitchServer, authority: Authority, pair: Pair
) -> None:
    access = Access(True, authority.pair.certificate, pair.certificate, pair.key, server_name="localhost")
    with closing(client_of(server, access)) as client:
        assert client.died() is None


@pytest.mark.parametrize("how", ["without TLS", "without a certificate"])
def test_others_are_told_that_nobody_answers(
    server: SwitchServer, authority: Authority, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_stream, "CONNECT_S", 0.5)
    access = None if how == "without TLS" else Access(True, authority.pair.certificate, server_name="localhost")
    with pytest.raises(DriverError):
        client_of(server, access)
