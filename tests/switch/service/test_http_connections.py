"""Connections to the HTTP server: whoever says nothing, or little, or reads slowly, keeps nobody else out."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus

import pytest
import structlog
from tests.switch.service.certificates import Authority

from inagg_switch.service import http_connection, http_server
from inagg_switch.service.http_server import HttpServer, Listener, Reply, Request
from inagg_switch.service.refused_callers import RefusedCallers
from inagg_switch.service.security import Security

PATIENCE_S = 60.0
"""Seconds that a client waits for anything."""
BIG = bytes(16 << 20)
"""An answer that is more than buffers of sockets hold."""
ASK = b"GET / HTTP/1.1\r\n\r\n"
HELLO_BEGINS = bytes.fromhex("16 03 01 02 00")
"""Header of the record of a TLS handshake whose message does not come."""


def answer(request: Request) -> Reply:
    """A big answer to who asks for it, else a small one."""
    return Reply(BIG if request.path == "/big" else b"ok", "text/plain")


@contextmanager
def serving(security: Security | None = None, answer: Callable[[Request], Reply] = answer) -> Iterator[HttpServer]:
    guard = security or Security()
    server = HttpServer(Listener("127.0.0.1:0"), "page", answer, guard.certificates, guard.secrets(), RefusedCallers())
    try:
        yield server
    finally:
        server.close()


def connect(server: HttpServer, said: bytes = b"") -> socket.socket:
    """A connection on which so much has been said."""
    host, _, port = server.url.split("/")[2].rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.sendall(said)
    return connection


def connected(stack: ExitStack, server: HttpServer, count: int, said: bytes = b"") -> list[socket.socket]:
    return [stack.enter_context(connect(server, said)) for _ in range(count)]


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server ends."""
    return b"".join(iter(lambda: connection.recv(1 << 20), b""))


def is_cut_after(connection: socket.socket, said: bytes) -> bool:
    """Whether the server has ended, a little after that was sent."""
    connection.settimeout(0.05)
    try:
        connection.sendall(said)
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def get(server: HttpServer, authority: Authority | None = None, path: str = "/") -> tuple[int, bytes]:
    trust = ssl.create_default_context(cafile=authority.pair.certificate) if authority else None
    try:
        with urllib.request.urlopen(server.url + path, timeout=PATIENCE_S, context=trust) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose limits come later than clients lose their patience."""
    monkeypatch.setattr(http_server, "HEADER_S", 10 * PATIENCE_S)
    monkeypatch.setattr(http_server, "REQUEST_S", 10 * PATIENCE_S)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("count", [http_server.THREADS, http_server.CONNECTIONS_MAX + http_server.THREADS])
@pytest.mark.parametrize("said", [b"", b"GET /met"])
def test_connections_that_do_not_ask_keep_nobody_out(count: int, said: bytes) -> None:
    with serving() as server, ExitStack() as stack:
        connected(stack, server, count, said)
        assert get(server) == (200, b"ok")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("count", [http_server.THREADS, http_server.CONNECTIONS_MAX + http_server.THREADS])
@pytest.mark.parametrize("said", [b"", HELLO_BEGINS])
def test_handshakes_that_do_not_go_on_keep_nobody_out(authority: Authority, count: int, said: bytes) -> None:
    pair = authority.issue("own")
    with serving(Security(pair.certificate, pair.key)) as server, ExitStack() as stack:
        connected(stack, server, count, said)
        assert get(server, authority) == (200, b"ok")


@pytest.mark.usefixtures("patient")
def test_the_connection_that_is_silent_for_longest_makes_room_for_a_new_one() -> None:
    with serving() as server, ExitStack() as stack:
        oldest, *others = connected(stack, server, http_server.CONNECTIONS_MAX)
        newest = stack.enter_context(connect(server, ASK))
        assert oldest.recv(1) == b""
        assert all_of(newest).endswith(b"ok")
        for other in others:
            other.sendall(ASK)
        assert all(all_of(other).endswith(b"ok") for other in others)


@pytest.mark.usefixtures("patient")
def test_who_reads_slowly_keeps_nobody_out_and_gets_all() -> None:
    with serving() as server, ExitStack() as stack:
        slow = connected(stack, server, http_server.THREADS + 1, b"GET /big HTTP/1.1\r\n\r\n")
        assert all(connection.recv(4) == b"HTTP" for connection in slow)  # so they are answered
        assert get(server) == (200, b"ok")
        assert all_of(slow[-1]).endswith(BIG)


@pytest.mark.usefixtures("patient")
def test_as_many_slow_readers_as_there_may_be_make_room_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", http_server.THREADS + 1)
    with serving() as server, ExitStack() as stack:
        slow = connected(stack, server, http_server.CONNECTIONS_MAX, b"GET /big HTTP/1.1\r\n\r\n")
        assert all(connection.recv(4) == b"HTTP" for connection in slow)
        assert get(server) == (200, b"ok")


@pytest.mark.parametrize("tls", [False, True])
def test_a_header_that_comes_byte_by_byte_is_cut(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    """Each byte begins the time of a read anew, but not that of the header."""
    monkeypatch.setattr(http_server, "REQUEST_S", 10 * PATIENCE_S)
    monkeypatch.setattr(http_server, "HEADER_S", 0.3)
    pair = authority.issue("own")
    with serving(Security(pair.certificate, pair.key) if tls else None) as server, ExitStack() as stack:
        slow = stack.enter_context(connect(server))
        if tls:
            trust = ssl.create_default_context(cafile=authority.pair.certificate)
            slow = stack.enter_context(trust.wrap_socket(slow, server_hostname="127.0.0.1"))
        assert any(is_cut_after(slow, b"G") for _ in range(200))


def test_who_does_not_read_the_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.3)
    monkeypatch.setattr(http_server, "HEADER_S", 0.3)
    cut = threading.Event()
    monkeypatch.setattr(http_server.log, "debug", lambda *_, **__: cut.set())
    with serving() as server, connect(server, b"GET /big HTTP/1.1\r\n\r\n") as slow:
        assert cut.wait(PATIENCE_S)
        assert len(all_of(slow)) < len(BIG)


def test_an_answer_may_take_longer_than_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(request: Request) -> Reply:
        time.sleep(2 * http_server.HEADER_S)
        return answer(request)

    monkeypatch.setattr(http_server, "REQUEST_S", PATIENCE_S)
    monkeypatch.setattr(http_server, "HEADER_S", 0.5)
    with serving(answer=slow) as server:
        assert get(server) == (200, b"ok")


@pytest.mark.usefixtures("patient")
def test_a_header_that_is_too_long_is_refused() -> None:
    """Each of its lines is not, and they are not too many."""
    header = b"GET / HTTP/1.1\r\n" + (b"X: " + b"x" * 1000 + b"\r\n") * 99
    with serving() as server, connect(server, header[: http_connection.HEADER_MAX + 1]) as long:
        assert all_of(long).startswith(b"HTTP/1.0 431 ")
        assert get(server) == (200, b"ok")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n"])
def test_a_header_ends_with_an_empty_line_however_it_comes(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(http_connection, "READ_MAX", 1)
    with serving() as server, connect(server, b"GET / HTTP/1.0" + end) as asks:
        assert all_of(asks).endswith(b"ok")


@pytest.mark.usefixtures("patient")
def test_who_sends_no_more_has_asked() -> None:
    with serving() as server, connect(server, b"GET / HTTP/1.0\r\n") as asks:
        asks.shutdown(socket.SHUT_WR)
        assert all_of(asks).endswith(b"ok")


@pytest.mark.usefixtures("patient")
def test_a_connection_of_which_nothing_comes_does_not_delay_the_end() -> None:
    """Browsers open some ahead."""
    with serving() as server, connect(server) as idle:
        assert get(server) == (200, b"ok")  # so the one before has been taken
        server.close()
        assert idle.recv(1) == b""


def test_a_bug_in_an_answer_is_in_the_log() -> None:
    def broken(request: object) -> Reply:
        raise ZeroDivisionError

    with structlog.testing.capture_logs() as log, serving(answer=broken) as server, connect(server, ASK) as asks:
        assert asks.recv(1) == b""
    assert [(entry["event"], entry["server"], entry["exc_info"]) for entry in log] == [
        ("http_request_failed", "page", True)
    ]


def test_a_connection_for_which_no_descriptor_is_left_takes_no_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    again = threading.Event()

    def no_descriptor(_: socket.socket) -> None:
        nonlocal tried
        tried += 1
        again.set()
        raise OSError(errno.EMFILE, "Too many open files")

    with serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", no_descriptor)
            with connect(server):
                assert again.wait(PATIENCE_S)
                time.sleep(0.3)
            assert tried <= 5
        assert get(server)[0] == HTTPStatus.OK
