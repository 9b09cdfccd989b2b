"""What is said of a server with which TLS fails."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.switch.service.certificates import Authority, Pair

from inagg_link import tls
from inagg_link.tls import OwnFileError, TlsClient, TlsFault, check_files, find_tls_trouble, may_be_tls


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


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture
def ends() -> Iterator[int]:
    """The port of a server that ends each connection when something is said on it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.recv(1 << 16)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_server_that_ends_the_connection_is_not_said_to_be_without_tls(ends: int) -> None:
    """Who believes it turns his own off."""
    assert find_tls_trouble("127.0.0.1", ends, TlsClient()) is None


def _garbage(folder: Path) -> Path:
    path = folder / "garbage"
    path.write_text("garbage")
    return path


def _der(folder: Path, pair: Pair) -> Path:
    path = folder / "certificate.der"
    path.write_bytes(ssl.PEM_cert_to_DER_cert(pair.certificate.read_text()))
    return path


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (lambda pair, other, folder: (_garbage(folder), None, None), "garbage holds no certificate in PEM"),
        (lambda pair, other, folder: (pair.key, None, None), "own.key holds a key, and no certificate"),
        (lambda pair, other, folder: (_der(folder, pair), None, None), "certificate.der is not in PEM, but in DER"),
        (lambda pair, other, folder: (folder / "none", None, None), "cannot read .*none: No such file"),
        (lambda pair, other, folder: (folder, None, None), "cannot read .*: Is a directory"),
        (lambda pair, other, folder: (None, _garbage(folder), pair.key), "garbage holds no certificate in PEM"),
        (lambda pair, other, folder: (None, pair.key, pair.key), "own.key holds a key, and no certificate"),
        (lambda pair, other, folder: (None, pair.certificate, _garbage(folder)), "garbage holds no key in PEM"),
        (lambda pair, other, folder: (None, pair.certificate, pair.certificate), "own.pem holds a certificate, and no"),
        (
            lambda pair, other, folder: (None, pair.certificate, other.key),
            "other.key is not the key of the cert.*own.p",
        ),
    ],
)
def test_a_file_of_ones_own_that_is_not_what_it_should_be_is_named_before_anybody_is_called(
    files: Callable[[Pair, Pair, Path], tuple[Path | None, Path | None, Path | None]],
    said: str,
    authority: Authority,
    answers: int,
    tmp_path: Path,
) -> None:
    client = TlsClient(*files(authority.issue("own"), authority.issue("other"), tmp_path))
    with pytest.raises(OwnFileError, match=said):
        check_files(client)
    found = find_tls_trouble("127.0.0.1", answers, client)
    assert found is not None
    assert found.fault is TlsFault.OWN_FILE, "and not that the server serves no TLS"
    assert re.search(said, found.what)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(authority: Authority) -> None:
    pair = authority.issue("locked", passphrase=b"x")
    with pytest.raises(OwnFileError, match=r"locked\.key is encrypted: give a key without a passphrase"):
        check_files(TlsClient(None, pair.certificate, pair.key))


def test_files_that_are_in_order_are_not_complained_of(authority: Authority) -> None:
    pair = authority.issue("own")
    check_files(TlsClient(authority.pair.certificate, pair.certificate, pair.key))


@pytest.mark.parametrize(
    ("said", "host", "may"),
    [
        ("Socket closed", "10.0.0.1", True),
        ("Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification", "10.0.0.1", True),
        ("Failed to connect to remote host: Connection refused", "10.0.0.1", False),
        ("Failed to connect to remote host: Connection refused", "localhost", True),  # by ::1, perhaps
        ("Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL", "10.0.0.1", True),
        ("tcp handshaker shutdown", "10.0.0.1", False),  # of a filter, where each look takes its whole limit
    ],
)
def test_what_may_come_of_tls_is_looked_at(said: str, host: str, may: bool) -> None:
    assert may_be_tls(said, host) is may
