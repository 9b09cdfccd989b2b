"""A small HTTP server, for monitoring systems and browsers: a few threads, and nobody holds one of them for long."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs

import structlog

from inagg_link.sockopt import WILDCARDS

from ..addresses import join_address, split_address
from .refused_callers import RefusedCallers
from .security import Secrets, Security, Served

THREADS: Final = 4
CONNECTIONS_MAX: Final = 64
"""Connections that are served or wait for it; further ones are closed at once."""
OPENED: Final = "fd:"
"""Prefix of the address of a socket that whoever started us has opened: so it can lie in another network namespace."""
PAUSE_S: Final = 0.1
"""Seconds until a connection that could not be taken is tried again."""
REQUEST_S: Final = 10.0
"""Seconds that a request may take, from the connection to the last byte of its answer."""

ABSOLUTE: Final = re.compile(r"^https?://[^/?]*", re.IGNORECASE)
"""Beginning of a target that a client asks a proxy for, which every server takes (RFC 9112, section 3.2.2)."""

NO_TLS: Final = {
    "HTTP_REQUEST": "it speaks no TLS",
    "WRONG_VERSION_NUMBER": "it speaks no TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
}
"""Meanings of OpenSSL's reasons why a handshake failed, where they are not clear."""

log = structlog.get_logger("inagg.http")


@dataclass(frozen=True, slots=True)
class Request:
    """A GET."""

    path: str
    """The path without the query."""
    query: Mapping[str, list[str]]
    headers: Message[str, str]
    """Headers; their names in any case."""
    may: bool
    """Whether who asks knows a secret of the switch, sent as a bearer token, or it has none."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request."""

    body: bytes
    kind: str
    """The MIME type."""
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, status: HTTPStatus, text: str, **headers: str) -> Reply:
        """A line for people."""
        return cls(f"{text}\n".encode(), "text/plain; charset=utf-8", status, headers)


def check_http_address(address: str, security: Security, what: str) -> None:
    """`Security.check_address`, to serve ``what``. What whoever started us has opened is his matter."""
    if not address.startswith(OPENED):
        security.check_address(address, f"read {what} at {address}")


class Listener:
    """An address that is taken and not served yet; a context manager that gives it back."""

    def __init__(self, address: str) -> None:
        """``address``: host:port, port 0 for any free one; or fd:N, the descriptor of a socket that is bound already.
        The host 0.0.0.0 is all IPv4 addresses, [::] all of both kinds. Raises OSError."""
        if address.startswith(OPENED):
            self.socket = socket.socket(fileno=int(address.removeprefix(OPENED)))
            host = self.socket.getsockname()[0]
        else:
            host, port = split_address(address)
            self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if self.socket.family == socket.AF_INET6:  # so [::] is IPv4, too, however net.ipv6.bindv6only is set
                    self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                self.socket.bind((host, port))
            except BaseException:
                self.close()
                raise
        host = socket.gethostname() if host in WILDCARDS else host
        self.place = join_address(host, self.socket.getsockname()[1])
        """Address for others, host:port."""

    def close(self) -> None:
        """Give the address back. No error if called twice."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class HttpServer(HTTPServer):
    """Answers each GET with what ``answer`` makes of it, on threads of its own: a pool, in the place of one for each
    connection. Guarded like the control service: with its certificate, if it has one, and mutual TLS; who knows no
    secret can be told apart by `Request.may`."""

    request_queue_size = CONNECTIONS_MAX

    def __init__(
        self,
        listener: Listener,
        name: str,
        answer: Callable[[Request], Reply],
        served: Served,
        secrets: Secrets,
        refused: RefusedCallers,
    ) -> None:
        """``listener`` is closed with this. ``name``: of the threads and in the log. ``refused`` is told of those who
        bring a wrong secret, and of those whom TLS refuses."""
        self.answer, self.secrets, self.refused, self.name = answer, secrets, refused, name
        self.url = f"{'http' if served() is None else 'https'}://{listener.place}"
        """URL of its root, without a slash at the end."""
        self._certificates = served
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=f"inagg-{name}")
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._served: set[socket.socket] = set()
        self._closed = False
        super().__init__(listener.socket.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener.socket
        self.server_activate()
        self._thread = threading.Thread(target=self.serve_forever, name=f"inagg-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving, at once: connections are cut, also those of which no request has come yet. It does not wait for
        the pool: who closes this may run the event loop on which an answer waits."""
        self.shutdown()
        self.server_close()
        self._closed = True
        for connection in tuple(self._served):
            _cut(connection)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._thread.join()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Called for each connection."""
        try:
            return super().get_request()
        except OSError:  # no descriptor is left for it, so it goes on waiting: without a pause this would spin
            time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called for each connection."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._pool.submit(self._serve, request, client_address, time.monotonic() + REQUEST_S)

    def _serve(self, connection: socket.socket, client: Any, give_up_at: float) -> None:
        connection.settimeout(REQUEST_S)
        try:
            if (certificates := self._certificates()) is not None:
                # The new socket takes the descriptor over: who has the old one could not cut the connection.
                wrap = certificates.context.wrap_socket
                connection = wrap(connection, server_side=True, do_handshake_on_connect=False)
            with self._cut_when_late(connection, give_up_at):
                if isinstance(connection, ssl.SSLSocket):
                    self._shake_hands(connection, client)
                self.finish_request(connection, client)
        except OSError as error:  # it hung up, was too slow, or speaks no TLS
            log.debug("http_connection_lost", server=self.name, peer=client[0], why=str(error))
        except Exception:  # a bug: the pool would keep it to itself
            log.exception("http_request_failed", server=self.name)
        finally:
            self.shutdown_request(connection)
            self._room.release()

    def _shake_hands(self, connection: ssl.SSLSocket, client: Any) -> None:
        """Begin TLS. Raises OSError; who only hangs up, as a probe of the port does, is not told as refused."""
        try:
            connection.do_handshake()
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise
        except ssl.SSLError as error:
            self.refused.add_connection(self.name, _host(client), _why_no_tls(error))
            raise

    @contextmanager
    def _cut_when_late(self, connection: socket.socket, give_up_at: float) -> Iterator[None]:
        """Inside, it is cut when its time is over, and when the server closes. The time that it waited for a thread
        counts: else those who say nothing could keep others out for as long as all of them together may take."""
        late = threading.Timer(max(0.0, give_up_at - time.monotonic()), _cut, (connection,))
        late.daemon = True
        late.start()
        self._served.add(connection)
        try:
            if self._closed:  # meanwhile
                _cut(connection)
            yield
        finally:
            self._served.discard(connection)
            late.cancel()


def _host(client: Any) -> str:
    """The host of a client, as `socket` names that; one that came over IPv4 to all addresses as it calls itself."""
    host: str = client[0]
    return host.removeprefix("::ffff:") if "." in host else host


def _why_no_tls(error: ssl.SSLError) -> str:
    """Reason why TLS did not begin."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid here: {error.verify_message}"
    reason = error.reason or str(error)
    if "ALERT" in reason:  # of its side
        return f"it refuses this switch: {reason.replace('_', ' ').lower()}"
    return NO_TLS.get(reason, reason.replace("_", " ").lower())


def _cut(connection: socket.socket) -> None:
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # that of ssl.SSLSocket forgets its keys, too
    except OSError as error:
        log.debug("http_connection_gone", why=str(error))


class _Handler(BaseHTTPRequestHandler):
    """One connection, one GET, or HEAD, which asks for its headers alone (RFC 9110, section 9.3.2)."""

    server: HttpServer
    server_version, sys_version = "inagg", ""

    def do_GET(self) -> None:
        path, _, query = ABSOLUTE.sub("", self.path).partition("?")
        reply = self.server.answer(Request(path or "/", parse_qs(query), self.headers, self._may()))
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
            if self.headers.get("Authorization"):  # who brings none is asked for it, as the live view's page is
                self.server.refused.add_request(self.server.name, _host(self.client_address))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _may(self) -> bool:
        secrets = self.server.secrets
        return not secrets.by_name or secrets.who(self.headers.get("Authorization", "").encode()) is not None

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are many."""
