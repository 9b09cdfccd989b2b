"""`inagg switch --parent`: data planes that the root of a tree rules, and a control service that passes calls on."""

from __future__ import annotations

import asyncio

import structlog

from ..p4.p4_driver import P4Driver
from ..service.server import LeafServer
from ..service.uplink_agent import UplinkAgent
from .priority import yield_to_shards
from .ready import Urls, announce, facts, leaf_announcement, say_ready, tell_systemd
from .settings import ParentSettings, Settings
from .shard_keeper import ShardKeeper, SwitchDriver
from .signals import EXIT_FAILED, EXIT_STOPPED, hear_signals, ignore_signals

log = structlog.get_logger("inagg.switch")


class Leaf:
    """One run, on an event loop."""

    def __init__(self, settings: Settings, parent: ParentSettings, driver: SwitchDriver) -> None:
        self._settings, self._parent, self._driver = settings, parent, driver
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
        looking = asyncio.create_task(agent.look_now_and_then()) if isinstance(self._driver, P4Driver) else None
        try:
            await asyncio.wait((stopped, attached, running), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running  # raises why
            if not self._stopped.is_set():
                await server.start()  # whoever calls is answered from above
                yield_to_shards()
                self._tell(server)
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
            await agent.close()  # so that the root knows at once
            await server.stop(0.0)
            ignore_signals(loop)
            log.info("switch_stopped", name=parent.name)

    def _tell(self, server: LeafServer) -> None:
        known = {**facts(server.address, self._driver, self._settings, Urls()), "name": self._parent.name}
        known["parent"] = self._parent.address
        if self._settings.announce:
            announce(leaf_announcement(server.address, self._driver, self._settings, self._parent))
        else:
            log.info("switch_serving", **known)
        say_ready(self._settings, known)

    def _lose(self, why: str) -> None:
        self._lost = why
        self._stopped.set()
