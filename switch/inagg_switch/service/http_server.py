"""A small HTTP server, for monitoring systems and browsers: who holds a connection holds no thread."""

from __future__ import annotations

import asyncio
import io
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from email.message import Message
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, Self
from urllib.parse import parse_qs

import structlog

from inagg_link.sockopt import WILDCARDS

from ..addresses import join_address, split_address
from .http_connection import HEADER_MAX, Connection
from .refused_callers import RefusedCallers
from .security import Secrets, Security, Served

THREADS: Final = 4
"""Threads that make answers."""
CONNECTIONS_MAX: Final = 64
"""Connections that are open at once; for a further one that which has said nothing for longest is cut."""
OPENED: Final = "fd:"
"""Prefix of the address of a socket that whoever started us has opened: so it can lie in another network namespace."""
PAUSE_S: Final = 0.1
"""Seconds until a connection that could not be taken is tried again."""
HEADER_S: Final = 5.0
"""Seconds from the connection to the last byte of a request's header."""
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


class HttpServer:
    """Answers each GET with what ``answer`` makes of it. One thread has all connections, on an event loop of its own,
    and a few more make answers: so who says nothing, or reads slowly, keeps nobody out. Guarded like the control
    service: with its certificate, if it has one, and mutual TLS; who knows no secret can be told apart by
    `Request.may`."""

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
        self._silent: dict[asyncio.Task[None], None] = {}
        """Connections whose request has not come, the longest there first."""
        self._asked: dict[asyncio.Task[None], None] = {}
        """Connections whose request has come, the first first."""
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=f"inagg-{name}")
        self._listener = listener
        listener.socket.setblocking(False)
        listener.socket.listen(socket.SOMAXCONN)  # one that finds no room there asks again after a second
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"inagg-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving, at once: connections are cut, also those of which no request has come yet. It does not wait for
        the pool: who closes this may run the event loop on which an answer waits. No error if called twice."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks()])
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        runner = asyncio.Runner(loop_factory=lambda: self._loop)
        with self._listener, suppress(asyncio.CancelledError), runner:
            runner.run(self._accept())

    async def _accept(self) -> None:
        while True:
            try:
                plain, client = await self._loop.sock_accept(self._listener.socket)
            except OSError:  # no descriptor is left for it, so it goes on waiting: without a pause this would spin
                await asyncio.sleep(PAUSE_S)
                continue
            self._make_room()
            task = self._loop.create_task(self._serve(plain, client))
            self._silent[task] = None
            task.add_done_callback(partial(self._forget, plain))
            await asyncio.sleep(0)  # else those who ask would wait for a flood of others to end

    def _make_room(self) -> None:
        """Cut the connection that has said nothing for longest, if they are too many, be it that all have asked."""
        if len(self._silent) + len(self._asked) >= CONNECTIONS_MAX:
            waiting = self._silent or self._asked
            task = next(iter(waiting))
            del waiting[task]
            task.cancel()

    def _forget(self, plain: socket.socket, task: asyncio.Task[None]) -> None:
        """A connection is over."""
        self._silent.pop(task, None)
        self._asked.pop(task, None)
        plain.close()  # of a task that was cancelled before it began

    async def _serve(self, plain: socket.socket, client: Any) -> None:
        task, begun_s = asyncio.current_task(), self._loop.time()
        assert task is not None
        try:
            async with asyncio.timeout(HEADER_S) as limit:
                certificates = self._certificates()
                with closing(Connection(plain, certificates.context if certificates else None)) as connection:
                    await self._shake_hands(connection, client)
                    received = await connection.header()
                    self._asked[task] = self._silent.pop(task)
                    limit.reschedule(begun_s + REQUEST_S)
                    exchange = partial(_Exchange, self, received, client)
                    await connection.send((await self._loop.run_in_executor(self._pool, exchange)).sent)
        except OSError as error:  # it hung up, was too slow, or speaks no TLS
            log.debug("http_connection_lost", server=self.name, peer=client[0], why=str(error) or "it was too slow")
        except Exception:  # a bug: the task would keep it to itself
            log.exception("http_request_failed", server=self.name)

    async def _shake_hands(self, connection: Connection, client: Any) -> None:
        """Begin TLS. Raises OSError; who only hangs up, as a probe of the port does, is not told as refused."""
        try:
            await connection.shake_hands()
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise
        except ssl.SSLError as error:
            self.refused.add_connection(self.name, _host(client), _why_no_tls(error))
            raise


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


class _Exchange(BaseHTTPRequestHandler):
    """One GET and its answer, both in memory; or HEAD, which asks for its headers alone (RFC 9110, section 9.3.2)."""

    server_version, sys_version = "inagg", ""

    def __init__(self, server: HttpServer, received: bytes, client: Any) -> None:
        """``received``: the request, to the end of its header; longer than `HEADER_MAX`: it has none; empty: it is not
        answered."""
        self._serves, self.client_address = server, client
        self.rfile, self.wfile = io.BytesIO(received), (sent := io.BytesIO())
        if len(received) > HEADER_MAX:
            self.command = self.requestline = self.request_version = ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self.handle_one_request()
        self.sent = sent.getvalue()
        """The answer, with its headers."""

    def do_GET(self) -> None:
        path, _, query = ABSOLUTE.sub("", self.path).partition("?")
        reply = self._serves.answer(Request(path or "/", parse_qs(query), self.headers, self._may()))
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
            if self.headers.get("Authorization"):  # who brings none is asked for it, as the live view's page is
                self._serves.refused.add_request(self._serves.name, _host(self.client_address))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _may(self) -> bool:
        secrets = self._serves.secrets
        return not secrets.by_name or secrets.who(self.headers.get("Authorization", "").encode()) is not None

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are many."""
