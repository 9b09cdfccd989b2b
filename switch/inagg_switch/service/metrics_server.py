"""Metrics and health over HTTP, for monitoring systems: a few threads, and nobody holds one of them for long."""

from __future__ import annotations

import asyncio
import platform
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from .controller import Controller
from .metrics import SwitchCollector
from .security import Secrets, Security, SecurityError, is_local

METRICS_PORT: Final = 47099
DEFAULT_METRICS_ADDRESS: Final = f"127.0.0.1:{METRICS_PORT}"

THREADS: Final = 4
CONNECTIONS_MAX: Final = 64
"""Connections that are served or wait for it; further ones are closed at once."""
REQUEST_S: Final = 10.0
"""How long a request may take, from the connection to the last byte of its answer."""

log = structlog.get_logger("inagg.metrics")


def check_metrics_address(address: str, security: Security) -> None:
    """Raises `SecurityError` if it is not safe to serve metrics on ``address`` and nobody asked for that by name."""
    if not (security.tls or security.insecure_anywhere or is_local(address)):
        raise SecurityError(
            f"other machines could read the metrics at {address}: give --tls-cert and --tls-key, or serve them on "
            "127.0.0.1, or ask for it by name with --insecure"
        )


class MetricsServer:
    """Serves ``http://ADDRESS/metrics`` and ``/healthz``, guarded like the control service: with its certificate if it
    has one, and for those who know its secret, sent as a bearer token; health is open to all."""

    def __init__(self, address: str, controller: Controller, security: Security, secrets: Secrets) -> None:
        """``address``: host:port, port 0 for any free one. On the controller's event loop. Raises `SecurityError`, and
        OSError if it cannot listen."""
        check_metrics_address(address, security)
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry()
        registry.register(SwitchCollector(controller, asyncio.get_running_loop()))
        registry.register(controller.call_seconds)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        about = Gauge("inagg_build_info", "1; the labels say what runs.", ("version", "driver"), registry=registry)
        about.labels(_version(), controller.driver.name).set(1)
        self._server = _Server((host.strip("[]"), int(port)), controller, registry, security, secrets)
        self._thread = threading.Thread(target=self._server.serve_forever, name="inagg-metrics", daemon=True)
        self._thread.start()
        scheme = "https" if security.tls else "http"
        self.url = f"{scheme}://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _version() -> str:
    try:
        return version("inagg")
    except PackageNotFoundError:
        return f"unknown, Python {platform.python_version()}"


class _Server(HTTPServer):
    """A pool of threads in the place of one for each connection."""

    request_queue_size = CONNECTIONS_MAX
    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        controller: Controller,
        registry: CollectorRegistry,
        security: Security,
        secrets: Secrets,
    ) -> None:
        self.controller, self.registry = controller, registry
        self.secrets = secrets
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = _context(security)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="inagg-metrics")
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called for each connection."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._pool.submit(self._serve, request, client_address)

    def _serve(self, connection: socket.socket, client: Any) -> None:
        late = threading.Timer(REQUEST_S, _cut, (connection,))
        late.daemon = True
        late.start()
        try:
            connection.settimeout(REQUEST_S)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self.finish_request(connection, client)
        except OSError as error:  # it hung up, was too slow, or speaks no TLS
            log.debug("metrics_connection_lost", peer=client[0], why=str(error))
        finally:
            late.cancel()
            self.shutdown_request(connection)
            self._room.release()

    def server_close(self) -> None:
        """Stop, when the requests in progress are done."""
        super().server_close()
        self._pool.shutdown(cancel_futures=True)


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("metrics_connection_gone", why=str(error))


def _context(security: Security) -> ssl.SSLContext | None:
    if security.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(security.certificate, security.key)
    if security.client_ca is not None:
        context.load_verify_locations(security.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Handler(BaseHTTPRequestHandler):
    """GET of two paths."""

    server: _Server

    def do_GET(self) -> None:
        """Called by http.server."""
        path = self.path.partition("?")[0]
        if path == "/healthz":
            healthy = self.server.controller.healthy
            self._answer(HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE, "ok" if healthy else "unhealthy")
        elif path != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, "there are /metrics and /healthz")
        elif not self._may():
            self._answer(HTTPStatus.UNAUTHORIZED, "give the switch's secret, as a bearer token")
        else:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            try:
                body = encode(self.server.registry)
            except TimeoutError:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "the control plane is too busy to answer")
            else:
                self._send(HTTPStatus.OK, body, kind)

    def _may(self) -> bool:
        secrets = self.server.secrets
        return not secrets.by_name or secrets.who(self.headers.get("Authorization", "").encode()) is not None

    def _answer(self, status: HTTPStatus, text: str) -> None:
        self._send(status, f"{text}\n".encode(), "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Not each request: those are many."""
