"""`inagg switch --parent`: data planes that the root of a tree rules, and a control service that passes calls on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from inagg_link.tls import TlsFault

from ..p4.p4_driver import P4Driver
from ..service.http_server import Listener
from ..service.metrics_server import SwitchMetrics
from ..service.security import is_local
from ..service.server import LeafServer
from ..service.tls_trouble import find
from ..service.uplink_agent import UplinkAgent
from .priority import yield_to_shards
from .ready import Urls, out_of_reach, say_ready, serving, tell, tell_systemd
from .settings import ParentSettings, Settings
from .shard_keeper import ShardKeeper, SwitchDriver
from .signals import EXIT_FAILED, EXIT_STOPPED, hear_signals, ignore_signals

log = structlog.get_logger("inagg.switch")


class Leaf:
    """One run, on an event loop."""

    def __init__(
        self, settings: Settings, parent: ParentSettings, driver: SwitchDriver, metrics: Listener | None
    ) -> None:
        """``metrics``: the socket at which those of this switch alone are to be served; None: nowhere."""
        self._settings, self._parent, self._driver, self._listener = settings, parent, driver, metrics
        self._stopped = asyncio.Event()
        self._lost: str | None = None

    async def run(self) -> int:
        """Serve; the exit status. Raises `ServerError`, `SecurityError` or `UplinkError`."""
        loop, settings, parent = asyncio.get_running_loop(), self._settings, self._parent
        agent = UplinkAgent(self._driver, parent.name, parent.address, parent.access)
        server = LeafServer(agent, settings.listen, security=settings.security, policy=settings.policy)
        hear_signals(loop, self._stopped.set, server)
        keeper = ShardKeeper(self._driver, settings.shard_restarts, agent.restart, list, self._lose)
        stopped = asyncio.create_task(self._stopped.wait())
        attached = asyncio.create_task(agent.attached.wait())
        running = asyncio.create_task(agent.run())
        metrics: SwitchMetrics | None = None
        looking = asyncio.create_task(agent.look_now_and_then()) if isinstance(self._driver, P4Driver) else None
        try:
            await asyncio.wait((stopped, attached, running), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running  # raises why
            if not self._stopped.is_set():
                await server.start()  # whoever calls is answered from above
                yield_to_shards()
                await self._warn(server)
                metrics = self._metrics(agent, server)
                urls = Urls(metrics.url if metrics is not None else None)
                say_ready(settings, tell(server.address, self._driver, settings, urls))
                await asyncio.wait((stopped, running), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
            if self._lost is not None:
                log.error("switch_lost", what=self._lost)
            return EXIT_STOPPED if self._lost is None else EXIT_FAILED
        finally:
            tell_systemd("STOPPING=1")
            keeper.close()
            for task in (stopped, attached, running, *([looking] if looking is not None else [])):
                task.cancel()
            await server.stop(0.0)  # first: no call is to be passed on over a channel that is closed
            await agent.close()
            if metrics is not None:
                metrics.close()
            ignore_signals(loop)
            log.info("switch_stopped", name=parent.name)

    def _metrics(self, agent: UplinkAgent, server: LeafServer) -> SwitchMetrics | None:
        """Serve what the root does not know: the certificate of this switch, and whom it has refused."""
        if self._listener is None:
            return None
        healthy, guards = lambda: agent.looks_answered, (server.certificates, server.secrets)
        with serving("metrics", self._settings.metrics, "--metrics"):
            return SwitchMetrics(self._listener, self._driver.name, healthy, server.refused, *guards)

    async def _warn(self, server: LeafServer) -> None:
        """Whoever calls is answered by the root, which knows of him what this switch tells."""
        security, control, access = self._settings.security, server.address, self._parent.access
        if security.client_ca is None and not security.named(server.secrets):
            if access.certificate is not None and await asyncio.to_thread(wants_certificate, self._parent):
                log.warning(
                    "callers_without_names",
                    what=f"{self._parent.address} knows callers by their certificates, and this switch asks for none: "
                    "who calls it has no name, and is no operator",
                    hint="give --client-ca",
                )
            if not is_local(control) and not server.secrets.by_name:
                log.warning(
                    "open_to_all",
                    what=f"whoever reaches {control} may use this tree of switches",
                    hint="give --secret-file, or --client-ca",
                )
        if (split := out_of_reach(control, self._driver)) is not None:
            log.warning("out_of_reach", **split)

    def _lose(self, why: str) -> None:
        self._lost = why
        self._stopped.set()


def wants_certificate(parent: ParentSettings) -> bool:
    """Whether the switch above asks callers for a certificate. Connects to it once more."""
    found = find(parent.address, replace(parent.access, certificate=None, key=None))
    return found is not None and found.fault is TlsFault.CERTIFICATE_WANTED
