"""The control service as a server: address, TLS, health, reflection, start and graceful stop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from datetime import UTC, datetime
from typing import Final

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from inagg_proto import SERVICE, bearer
from inagg_proto.v1 import control_pb2_grpc

from ..addresses import is_unix, split_address, why_not_bound
from ..control.policy import Policy
from ..defaults import ADDRESS
from ..driver import Driver
from .access import OpenedAccess
from .callers import Callers, SecretInterceptor
from .calls import ControlService
from .controller import Controller
from .descriptors import connections_max
from .malformed import MalformedInterceptor
from .passing_on import PassingOn
from .refusal_throttle import RefusalThrottle
from .refused_callers import RefusedCallers
from .security import Certificates, Secrets, Security
from .uplink_agent import UplinkAgent

MESSAGE_BYTES_MAX: Final = 1 << 20
"""Largest request. A Join for 1024 shards, each with address and position, is some 64 KiB; what a switch below says of
1024 jobs with 32 children each, some 800 KiB."""

CALLS_PENDING_MAX: Final = 65536
"""Calls that have arrived and are not begun: 1024 jobs of 32 ranks that all come back at once, twice."""

CONNECTIONS_MAX: Final = 40_000
"""Connections in all: 1024 jobs of 32 ranks, and operators. Each is a descriptor, see `descriptors`."""

STOP_GRACE_S: Final = 2.0
"""Seconds that calls in progress get to end when the server stops; those that wait are ended at once."""

DATES_LOOK_S: Final = 60.0
"""Seconds between looks at the dates of the certificate."""

OPTIONS: Final = (
    # Else a second switch on the same port would start without an error, and get every other connection.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A worker's machine that vanishes sends no FIN: without pings its Join would count as waiting for ever.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Ranks of many jobs come back at once, and gRPC would cancel some of more than 1000 calls that it has not begun.
    ("grpc.server.max_pending_requests", CALLS_PENDING_MAX),
    ("grpc.server.max_pending_requests_hard_limit", CALLS_PENDING_MAX),
    # Who connects and says nothing, or nothing any more, is cut off.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.http2.max_pings_without_data", 0),  # as many as it takes: a Join can wait for minutes
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
log = structlog.get_logger("inagg.control")


class ServerError(RuntimeError):
    """The server cannot serve; the text says what to do."""


def _is_served(address: str) -> bool:
    """Whether ``address`` is a Unix socket at which somebody listens. gRPC would put its own in the place of that, and
    whoever stops first would remove the other's."""
    kind, _, path = address.partition(":")
    if kind != "unix":
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            return probe.connect_ex(path.removeprefix("//")) in (0, errno.EAGAIN)
        except OSError:  # no path of a socket, which gRPC will say
            return False


def _why_no_socket(path: str) -> OSError | None:
    """`why_not_bound` of a Unix socket."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(path)
        os.unlink(path)
    except OSError as error:
        return error
    return None


def _why_not(address: str) -> str:
    """Reason why gRPC cannot listen on ``address``, which it does not say."""
    kind, _, path = address.partition(":")
    why = _why_no_socket(path.removeprefix("//")) if kind == "unix" else why_not_bound(*split_address(address))
    if why is not None and why.errno != errno.EADDRINUSE:
        return f"{why.strerror}; choose another address with --listen"
    if kind == "unix":
        return "is another switch running there? If so, choose another address with --listen"
    return (
        "is another switch running there? If so, choose another address with --listen. If not, a connection of another "
        "program has this port for a while: try again, and have ports reserved (net.ipv4.ip_local_reserved_ports)"
    )


class GrpcServer:
    """A server with TLS, secrets, bounds, health and reflection, on one address (``host:port``; port 0: any free
    one)."""

    def __init__(self, address: str, security: Security | None, policy: Policy | None) -> None:
        """Raises `SecurityError` if ``address`` may not be served like this."""
        self.security = security or Security()
        self.security.check_address(address)
        self.address = address
        self.secrets = Secrets({})
        self._throttle = RefusalThrottle()
        self.refused = RefusedCallers()
        """The record of callers who are refused for want of the secret."""
        self._certificates: Certificates | None = None
        self._certificates_given: Certificates | None = None
        self._dates: asyncio.Task[None] | None = None
        self._policy = policy or Policy()
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # its stubs lack it

    def _open(self) -> grpc.aio.Server:
        """The server, which does not serve yet; `address` has the port. Raises `ServerError` or `SecurityError`."""
        interceptors: list[grpc.aio.ServerInterceptor] = [MalformedInterceptor()]  # type: ignore[type-arg]
        self.secrets = self.security.secrets()
        if self.secrets.by_name:
            callers = Callers(self.security, self.secrets)
            interceptors.insert(0, SecretInterceptor(self.secrets, callers, self._throttle, self.refused))
        server = grpc.aio.server(
            interceptors=interceptors,
            options=(*OPTIONS, ("grpc.max_allowed_incoming_connections", connections_max(CONNECTIONS_MAX))),
            maximum_concurrent_rpcs=self._policy.calls_max,
        )
        certificates = self._certificates = self._certificates_given = self.security.certificates()
        try:
            if _is_served(self.address):
                raise RuntimeError("somebody answers there")
            if certificates is not None:
                credentials = self.security.credentials(certificates, self._new_certificates)
                port = server.add_secure_port(self.address, credentials)
            else:
                port = server.add_insecure_port(self.address)
        except RuntimeError:  # which says no more than that
            raise ServerError(f"cannot listen on {self.address}: {_why_not(self.address)}") from None
        if not is_unix(self.address):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    async def _serve(self, server: grpc.aio.Server) -> None:
        await server.start()
        self._server = server
        log.info(
            "control_listening",
            address=self.address,
            tls=self.security.tls,
            mutual_tls=self.security.client_ca is not None,
            secret=bool(self.secrets.by_name),
        )
        self._warn_of_files()
        self._dates = asyncio.create_task(self._look_at_dates())

    async def _end(self, server: grpc.aio.Server, grace_s: float) -> None:
        """Stop serving; calls in progress get ``grace_s``."""
        if self._dates is not None:
            self._dates.cancel()
        await server.stop(grace_s)
        self.refused.close()

    def _warn_of_files(self) -> None:
        for event, fields in self.security.file_warnings(self.secrets):
            log.warning(event, **fields)
        self.tell_of_dates(datetime.now(UTC))

    async def _look_at_dates(self) -> None:
        while True:
            await asyncio.sleep(DATES_LOOK_S)
            self.tell_of_dates(datetime.now(UTC))

    def tell_of_dates(self, now: datetime) -> None:
        """Log what is to be said ``now`` of the dates of the certificate that is served (`Certificates.warnings`)."""
        for level, event, fields in self._certificates.warnings(now) if self._certificates is not None else ():
            (log.error if level == "error" else log.warning)(event, **fields)

    async def set_health(self, serving: bool) -> None:
        """Say by the health service whether it is good to call."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)

    def reload(self) -> None:
        """Read secrets and certificates again. Raises `SecurityError`; then all stays as it was. What is read here is
        served from now on, whatever becomes of the files."""
        certificates = self.security.certificates()
        self.secrets.reload()
        self._certificates = certificates
        self._warn_of_files()

    def certificates(self) -> Certificates | None:
        """Return the certificates that are served now; None: no TLS."""
        return self._certificates

    def _new_certificates(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what is to be served from now on, None: as before. gRPC asks with each connection, on threads of its
        own."""
        certificates = self._certificates
        if certificates is None or certificates is self._certificates_given:
            return None
        self._certificates_given = certificates
        return certificates.configuration


class ControlServer(GrpcServer):
    """The control service of one switch.

    The driver stays its owner's: it is open before `start` and is closed after `stop`.
    """

    def __init__(
        self,
        driver: Driver,
        address: str = ADDRESS,
        *,
        security: Security | None = None,
        policy: Policy | None = None,
    ) -> None:
        """Raises `SecurityError` if ``address`` may not be served like this."""
        super().__init__(address, security, policy)
        self._driver = driver
        self._service: ControlService | None = None
        self.controller: Controller | None = None
        """The controller of the jobs; None before `start`."""

    async def start(self) -> None:
        """Begin to serve; `address` then has the port. Raises `ServerError` or `SecurityError`."""
        server = self._open()
        self.controller = Controller(self._driver, self._policy, self.set_health, self.refused)
        self._service = ControlService(self.controller, Callers(self.security, self.secrets), self._throttle)
        control_pb2_grpc.add_ControlServicer_to_server(self._service, server)
        await self.controller.start()
        await self.set_health(True)
        await self._serve(server)

    async def drain(self) -> None:
        """Take no new jobs, and say by the health service that it is better to go elsewhere; the others go on."""
        if self.controller is not None:
            await self._health.enter_graceful_shutdown()
            self.controller.refuse_new(ends=True)

    async def stop(self, grace_s: float = STOP_GRACE_S, why: str | None = None) -> None:
        """Stop serving: waiting Joins and Watches end with UNAVAILABLE and a sentence that begins with ``why``; other
        calls in progress get ``grace_s``."""
        if self._server is None or self.controller is None:
            return
        server, self._server = self._server, None
        await self._health.enter_graceful_shutdown()
        await self.controller.stop(why)
        await self._end(server, grace_s)
        if self._service is not None:
            await self._service.close()
        log.info("control_stopped", address=self.address)


class LeafServer(GrpcServer):
    """The control service of a switch that has a parent: see `passing_on`. The agent is its owner's."""

    def __init__(
        self, agent: UplinkAgent, address: str, *, security: Security | None = None, policy: Policy | None = None
    ) -> None:
        """Raises `SecurityError` if ``address`` may not be served like this."""
        super().__init__(address, security, policy)
        self._agent = agent
        self._own_known = False
        """Whether one of the secrets was ever that of this switch for its parent."""

    def reload(self) -> None:
        """Read secrets and certificates again, those for the parent too. Raises `SecurityError`; then all stays as it
        was."""
        access = self._agent.read()
        super().reload()
        self._agent.renew(access)
        self._warn_of_own_secret(access)

    def _warn_of_own_secret(self, access: OpenedAccess) -> None:
        if access.secret is None:
            return
        if self.secrets.who(bearer(access.secret).encode()) is not None:
            self._own_known = True
        elif self._own_known:
            shown, file = self._agent.shown, self.security.secret_file
            log.warning(
                "own_secret_unknown",
                what=f"the secret of {shown} is none of the secrets in {file} any more: if the switch above has the "
                "same ones, it refuses this one when their connection has ended",
                hint=f"put the new one into the file of {shown}, too, and send SIGHUP"
                if shown.startswith("--")
                else f"start this switch again with the new one, or with --parent-secret-file in the place of {shown}, "
                "which is read again at SIGHUP",
            )

    async def start(self) -> None:
        """Begin to serve; `address` then has the port. Raises `ServerError` or `SecurityError`."""
        server = self._open()
        self._warn_of_own_secret(self._agent.uplink.access)
        server.add_generic_rpc_handlers((PassingOn(self._agent),))
        await self.set_health(True)
        await self._serve(server)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stop serving; calls in progress get ``grace_s``."""
        if self._server is not None:
            server, self._server = self._server, None
            await self._health.enter_graceful_shutdown()
            await self._end(server, grace_s)
            log.info("control_stopped", address=self.address)
