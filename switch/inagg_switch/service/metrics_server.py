"""Metrics and health over HTTP, for monitoring systems."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ..version import version_text
from .controller import Controller
from .http_server import HttpServer, Listener, Reply, Request
from .metrics import RefusedCollector, SwitchCollector
from .refused_callers import RefusedCallers
from .security import Secrets, Served

CERTIFICATE_ENDS: Final = "inagg_tls_certificate_expiry_seconds"


class SwitchMetrics:
    """Serves ``http://ADDRESS/metrics`` and ``/healthz``, guarded like the control service: with its certificate if it
    has one, and for those who know its secret, sent as a bearer token; health is open to all."""

    def __init__(
        self,
        listener: Listener,
        driver: str,
        healthy: Callable[[], bool],
        refused: RefusedCallers,
        served: Served,
        secrets: Secrets,
        *collectors: Collector,
    ) -> None:
        """``driver``: its name. ``collectors`` come before what every switch has."""
        registry = CollectorRegistry()
        for collector in (*collectors, RefusedCollector(refused)):
            registry.register(collector)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        about = Gauge("inagg_build_info", "1; the labels say what runs.", ("version", "driver"), registry=registry)
        about.labels(version_text(), driver).set(1)
        if served() is not None:
            ends = Gauge(
                CERTIFICATE_ENDS, "When the switch's certificate expires, in seconds since 1970.", registry=registry
            )
            ends.set_function(partial(_ends_unix_s, served))
        self._healthy, self._registry = healthy, registry
        self._server = HttpServer(listener, "metrics", self._answer, served, secrets, refused)
        self.url = f"{self._server.url}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _answer(self, request: Request) -> Reply:
        if request.path == "/healthz":
            if self._healthy():
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


class MetricsServer(SwitchMetrics):
    """Metrics of a switch that has the registry, alone or as the root of a tree: of all its switches."""

    def __init__(self, listener: Listener, controller: Controller, served: Served, secrets: Secrets) -> None:
        """To be called on the controller's event loop."""
        own = SwitchCollector(controller, asyncio.get_running_loop()), controller.call_seconds
        name, refused = controller.driver.name, controller.refused
        super().__init__(listener, name, lambda: controller.healthy, refused, served, secrets, *own)


def _ends_unix_s(served: Served) -> float:
    """When the certificate that is served expires, in seconds since 1970; NaN if that is not known."""
    certificates = served()
    ends = None if certificates is None else certificates.ends
    return math.nan if ends is None else ends.timestamp()
