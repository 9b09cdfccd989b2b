"""A switch that serves jobs, alone or above others: control service, metrics and live view on an event loop, until it
is told to stop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

import structlog

from inagg_link.limits import MORE_FILES

from ..control.events import ROOT
from ..driver import DriverError
from ..service.controller import Controller
from ..service.descriptors import shortage
from ..service.http_server import Listener
from ..service.live.server import LiveServer
from ..service.metrics_server import MetricsServer
from ..service.security import is_local
from ..service.server import STOP_GRACE_S, ControlServer
from ..software.software_driver import SoftwareDriver
from ..text import count_text, seconds_text
from .p4_settings import TofinoSettings
from .priority import yield_to_shards
from .ready import Urls, buffer_hint, join_needs, out_of_reach, reachable, say_ready, serving, tell, tell_systemd
from .settings import Settings
from .shard_keeper import ShardKeeper, SwitchDriver
from .signals import EXIT_FAILED, EXIT_STOPPED, hear_signals, ignore_signals

AT_ONCE_GRACE_S: Final = 0.25
"""Seconds that calls in progress get to be told why they end, when the switch is to stop at once."""
DRAIN_LOOK_S: Final = 0.05
DRAIN_TELL_S: Final = 5.0
"""Seconds after which a switch that drains says again what it still waits for."""

DESCRIPTORS_LOOK_S: Final = 2.0
DESCRIPTORS_TELL_S: Final = 60.0
"""Seconds between looks whether descriptors are short, which say so."""

log = structlog.get_logger("inagg.switch")


@dataclass(frozen=True, slots=True)
class Listeners:
    """Sockets at which HTTP is to be served besides; None: nowhere."""

    metrics: Listener | None
    web: Listener | None


class Root:
    """One run, on an event loop."""

    def __init__(self, settings: Settings, driver: SwitchDriver, http: Listeners) -> None:
        self._settings = settings
        self._driver = driver
        self._http = http
        self._signals = 0
        self._changed = asyncio.Event()
        """Set when a signal has come, or a shard has died for good."""
        self._lost: str | None = None
        """Sentence on a shard that could not be started again."""
        self._server = ControlServer(driver, settings.listen, security=settings.security, policy=settings.policy)

    async def run(self) -> int:
        """Serve; the exit status. Raises `ServerError` or `SecurityError`."""
        loop = asyncio.get_running_loop()
        hear_signals(loop, self._on_signal, self._server)
        keeper = ShardKeeper(self._driver, self._settings.shard_restarts, self._restart, self._jobs, self._lose)
        watching = asyncio.create_task(self._warn_of_descriptors())
        metrics: MetricsServer | None = None
        web: LiveServer | None = None
        why: str | None = None
        grace_s = STOP_GRACE_S
        try:
            await self._server.start()
            yield_to_shards()
            controller = self._server.controller
            assert controller is not None
            await controller.snapshot()  # so that nobody finds a switch without counters
            security, secrets, served = self._settings.security, self._server.secrets, self._server.certificates
            if self._http.metrics is not None:
                with serving("metrics", self._settings.metrics, "--metrics"):
                    metrics = MetricsServer(self._http.metrics, controller, served, secrets)
            if self._http.web is not None:
                about: dict[str, Any] = {
                    "control": reachable(self._server.address),
                    "needs": join_needs(self._settings.security),
                }
                with serving("the live view", self._settings.web, "--web"):
                    web = LiveServer(self._http.web, controller, security, secrets, served, **about)
            self._tell(Urls(metrics.url if metrics is not None else None, web.url if web is not None else None))
            await self._changed.wait()
            if self._lost is None:
                await self._drain(controller)
            why = self._lost
            if why is not None:
                log.error("switch_lost", what=why, jobs=self._jobs())
            return EXIT_STOPPED if why is None else EXIT_FAILED
        finally:
            watching.cancel()
            self._tell_of_capture()
            if self._signals > 1:
                grace_s = AT_ONCE_GRACE_S
            await self._server.stop(grace_s, why)
            for server in (metrics, web):
                if server is not None:
                    server.close()
            keeper.close()
            ignore_signals(loop)
            log.info("switch_stopped", signals=self._signals)

    def _tell(self, urls: Urls) -> None:
        settings, driver, control = self._settings, self._driver, self._server.address
        known = tell(control, driver, settings, urls)
        hint = buffer_hint(driver) if isinstance(driver, SoftwareDriver) else None
        if hint is not None:
            log.warning("small_socket_buffers", hint=hint)
        if settings.software.faults is not None:
            log.warning(
                "faults_injected",
                what="datagrams are harmed ON PURPOSE, in both directions: not for real work",
                faults=known["faults"],
                seed=known["fault_seed"],
                again=f"--fault-seed {known['fault_seed']}",
            )
        security, far = settings.security, not is_local(control)
        if far and not self._server.secrets.by_name and security.client_ca is None:
            log.warning(
                "open_to_all",
                what=f"whoever reaches {control} may use this switch and end jobs",
                hint="give --secret-file, or --client-ca",
            )
        if (split := out_of_reach(control, driver)) is not None:
            log.warning("out_of_reach", **split)
        if isinstance(settings.p4, TofinoSettings):
            log.warning(
                "untried_driver",
                what="this driver has never been tried on a Tofino, nor has the program: watch what it does",
            )
        say_ready(settings, known)

    def _tell_of_capture(self) -> None:
        """A capture that lacks something must not look whole."""
        snapshot = self._server.controller.last_snapshot if self._server.controller is not None else None
        missing = [shard.not_captured for shard in snapshot.shards[ROOT]] if snapshot is not None else []
        if any(missing):
            hint = "record more with --capture-limit, unless an error above says that the disk was full"
            log.warning("capture_full", not_captured_by_shard=missing, hint=hint)

    def _on_signal(self) -> None:
        self._signals += 1
        self._changed.set()

    async def _restart(self, shard: int) -> None:
        controller = self._server.controller
        if controller is None:
            raise DriverError("the switch does not serve yet")
        await controller.restart(shard)

    def _jobs(self) -> list[str]:
        controller = self._server.controller
        return [job.name for job in controller.registry.jobs] if controller is not None else []

    @staticmethod
    async def _warn_of_descriptors() -> None:
        while True:
            await asyncio.sleep(DESCRIPTORS_LOOK_S)
            short = shortage()
            if short is not None:
                hint = f"{MORE_FILES}, or look who connects: further ones are turned away"
                log.warning("descriptors_short", open=short[0], limit=short[1], hint=hint)
                await asyncio.sleep(DESCRIPTORS_TELL_S)

    def _lose(self, why: str) -> None:
        self._lost = why
        self._changed.set()

    async def _drain(self, controller: Controller) -> None:
        """Wait until all jobs have ended, the time is over, a second signal comes, or a shard is lost."""
        tell_systemd("STOPPING=1")
        await self._server.drain()
        give_up_at = time.monotonic() + self._settings.drain_s
        tell_at = 0.0
        while jobs := controller.registry.jobs:
            now = time.monotonic()
            if self._signals > 1 or self._lost is not None or now >= give_up_at:
                break
            if now >= tell_at:
                tell_at = now + DRAIN_TELL_S
                log.warning(
                    "draining",
                    waits_for=f"{count_text(len(jobs), 'job')}: {', '.join(job.name for job in jobs)}",
                    at_most=seconds_text(give_up_at - now),
                    hint="a second Ctrl-C or SIGTERM stops at once",
                )
            self._changed.clear()
            try:
                async with asyncio.timeout(DRAIN_LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue
        left = [job.name for job in controller.registry.jobs]
        if left:
            log.warning("stopping_with_jobs", jobs=left, their_ranks="join again when a switch is back")
