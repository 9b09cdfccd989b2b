"""What is said of a server with which TLS fails."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from inagg_link import tls
from inagg_link.tls import TlsClient, TlsFault, find_tls_trouble


@pytest.fixture
def answers() -> Iterator[int]:
    """The port of a server that answers whatever comes with text."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.recv(1)
                        connection.sendall(b"this is no TLS\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_server_without_tls_is_one_for_who_speaks_it(answers: int) -> None:
    found = find_tls_trouble("127.0.0.1", answers, TlsClient())
    assert found is not None
    assert found.fault is TlsFault.NOT_SERVED


def test_a_server_without_tls_is_in_order_for_who_speaks_none(answers: int) -> None:
    assert find_tls_trouble("127.0.0.1", answers, None) is None


@pytest.mark.parametrize("client", [None, TlsClient()])
def test_of_a_server_that_says_nothing_and_of_none_nothing_is_known(
    client: TlsClient | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LIMIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert find_tls_trouble("127.0.0.1", port, client) is None
    assert find_tls_trouble("127.0.0.1", port, client) is None
