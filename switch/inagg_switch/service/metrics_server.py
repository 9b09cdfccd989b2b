"""Metrics and health over HTTP, for monitoring systems."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from inagg_link.validity import validity_of

from ..version import version_text
from .controller import Controller
from .http_server import HttpServer, Listener, Reply, Request
from .metrics import SwitchCollector
from .security import Secrets, Security, SecurityError, read

CERTIFICATE_ENDS: Final = "inagg_tls_certificate_expiry_seconds"


class MetricsServer:
    """Serves ``http://ADDRESS/metrics`` and ``/healthz``, guarded like the control service: with its certificate if it
    has one, and for those who know its secret, sent as a bearer token; health is open to all."""

    def __init__(self, listener: Listener, controller: Controller, security: Security, secrets: Secrets) -> None:
        """To be called on the controller's event loop."""
        registry = CollectorRegistry()
        registry.register(SwitchCollector(controller, asyncio.get_running_loop()))
        registry.register(controller.call_seconds)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        about = Gauge("inagg_build_info", "1; the labels say what runs.", ("version", "driver"), registry=registry)
        about.labels(version_text(), controller.driver.name).set(1)
        if security.certificate is not None:
            ends = Gauge(
                CERTIFICATE_ENDS, "When the switch's certificate expires, in seconds since 1970.", registry=registry
            )
            ends.set_function(_CertificateEnds(security.certificate, secrets).unix_s)
        self._controller, self._registry = controller, registry
        self._server = HttpServer(listener, "metrics", self._answer, security, secrets)
        self.url = f"{self._server.url}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _answer(self, request: Request) -> Reply:
        if request.path == "/healthz":
            if self._controller.healthy:
                return Reply.text(HTTPStatus.OK, "ok")
            return Reply.text(HTTPStatus.SERVICE_UNAVAILABLE, "unhealthy")
        if request.path != "/metrics":
            return Reply.text(HTTPStatus.NOT_FOUND, "there are /metrics and /healthz")
        if not request.may:
            return Reply.text(HTTPStatus.UNAUTHORIZED, "give the switch's secret, as a bearer token")
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        try:
            return Reply(encode(self._registry), kind)
        except TimeoutError:
            return Reply.text(HTTPStatus.SERVICE_UNAVAILABLE, "the control plane is too busy to answer")


class _CertificateEnds:
    """Expiry of the certificate that was read last: at the start, or with the secrets again."""

    def __init__(self, certificate: Path, secrets: Secrets) -> None:
        self._certificate, self._secrets = certificate, secrets
        self._reloads_seen = secrets.reloads
        self._unix_s = self._read()

    def unix_s(self) -> float:
        """The expiry in seconds since 1970; NaN if that is not known."""
        if self._reloads_seen != self._secrets.reloads:
            self._reloads_seen = self._secrets.reloads
            self._unix_s = self._read()
        return self._unix_s

    def _read(self) -> float:
        with suppress(SecurityError):  # somebody has removed the file since it was read
            if (validity := validity_of(read(self._certificate))) is not None:
                return validity.ends.timestamp()
        return math.nan
