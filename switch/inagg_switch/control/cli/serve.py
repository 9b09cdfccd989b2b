"""`inagg switch`: data planes, control service and metrics, from the first line to the last.

Exit status: 0 when it was told to stop (Ctrl-C or SIGTERM, however many), 1 if it could not start or a shard died.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import click
import structlog

from ...driver import DriverError
from ...p4.driver import P4Driver
from ...software import SoftwareDriver
from ..engine import Engine
from ..metrics import MetricsServer
from ..security import SecurityError
from ..server import STOP_GRACE_S, ControlServer, ServerError
from ..text import count_text, seconds_text
from .ready import announcement, buffer_hint, facts, write_ready_file
from .settings import Settings, TofinoSettings

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
AT_ONCE_GRACE_S: Final = 0.25
"""What calls in progress get to be told why they end, when the switch is to stop at once."""
DRAIN_LOOK_S: Final = 0.05
DRAIN_TELL_S: Final = 5.0
"""How often a switch that drains says what it still waits for."""

EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1

SwitchDriver = SoftwareDriver | P4Driver

log = structlog.get_logger("inagg.switch")


class Stopped(BaseException):
    """A signal to stop came while the switch was starting."""


class CannotServe(click.ClickException):
    """The switch could not start; the text says what to do."""

    exit_code = EXIT_FAILED


def serve(settings: Settings) -> int:
    """Run a switch until it is told to stop, or a shard dies; the exit status. Raises `CannotServe`."""
    if settings.ready_file is not None:
        settings.ready_file.unlink(missing_ok=True)  # of an earlier run that was killed
    driver: SwitchDriver | None = None
    with signals_raise():
        try:
            driver = open_driver(settings)
            return asyncio.run(_Switch(settings, driver).run())
        except Stopped:
            log.info("switch_stopped", before="it served")
            return EXIT_STOPPED
        except DriverError as error:
            hint = "; choose another address with --data" if "in use" in str(error) else ""
            raise CannotServe(f"{error}{hint}") from None
        except (ServerError, SecurityError) as error:
            raise CannotServe(str(error)) from None
        finally:
            if driver is not None:
                driver.close()
            if settings.ready_file is not None:
                settings.ready_file.unlink(missing_ok=True)


def open_driver(settings: Settings) -> SwitchDriver:
    """The switch that is to be ruled, started where it is ours to start. Raises `DriverError`."""
    p4 = settings.p4
    if p4 is None:
        return SoftwareDriver(settings.software)
    if isinstance(p4, TofinoSettings):
        from ..bfruntime.plane import PROGRAM, tofino_driver

        return tofino_driver(p4.network, p4.address, program=p4.program or PROGRAM, device=p4.device)
    from ..p4runtime.plane import bmv2_driver

    return bmv2_driver(p4.program, p4.network, p4.address, device=p4.device, thrift=p4.thrift)


@contextmanager
def signals_raise() -> Iterator[None]:
    """Inside, the first signal to stop raises `Stopped`, as long as nobody else listens; then they are ignored, so that
    what was opened is closed in peace. For the main thread, which alone has signals."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Switch:
    """One run, on an event loop."""

    def __init__(self, settings: Settings, driver: SwitchDriver) -> None:
        self._settings = settings
        self._driver = driver
        self._signals = 0
        self._changed = asyncio.Event()
        """Set when a signal has come or a shard has ended."""
        self._server = ControlServer(driver, settings.listen, security=settings.security, policy=settings.policy)

    async def run(self) -> int:
        """Serve; the exit status. Raises `ServerError` or `SecurityError`."""
        loop = asyncio.get_running_loop()
        # asyncio takes the signals over: nothing is raised from here on.
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        for sentinel in self._driver.sentinels:
            loop.add_reader(sentinel, self._on_end_of_shard, sentinel)
        metrics: MetricsServer | None = None
        why: str | None = None
        grace_s = STOP_GRACE_S
        try:
            await self._server.start()
            engine = self._server.engine
            assert engine is not None
            await engine.look()  # so that nobody finds a switch without counters
            metrics = self._start_metrics(engine)
            self._tell(metrics)
            await self._changed.wait()
            if self._driver.died() is None:
                await self._drain(engine)
            why = self._driver.died()
            if why is not None:
                log.error("shard_died", what=why, jobs=[job.name for job in engine.registry.jobs()])
            return EXIT_STOPPED if why is None else EXIT_FAILED
        finally:
            self._tell_of_capture()
            if self._signals > 1:
                grace_s = AT_ONCE_GRACE_S
            await self._server.stop(grace_s, why)
            if metrics is not None:
                metrics.close()
            for sentinel in self._driver.sentinels:
                loop.remove_reader(sentinel)
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)  # the rest is quick
            log.info("switch_stopped", signals=self._signals)

    def _start_metrics(self, engine: Engine) -> MetricsServer | None:
        if self._settings.metrics is None:
            return None
        try:
            return MetricsServer(self._settings.metrics, engine, self._settings.security)
        except OSError as error:
            raise ServerError(
                f"cannot serve metrics on {self._settings.metrics}: {error.strerror}; choose another address with "
                "--metrics"
            ) from None

    def _tell(self, metrics: MetricsServer | None) -> None:
        settings, driver, control = self._settings, self._driver, self._server.address
        known = facts(control, driver, settings, metrics)
        if settings.announce:
            print(announcement(control, driver, settings, metrics), flush=True)
        else:
            log.info("switch_serving", **known)
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
        if isinstance(settings.p4, TofinoSettings):
            log.warning(
                "untried_driver",
                what="this driver has never been tried on a Tofino, nor has the program: watch what it does",
            )
        if settings.ready_file is not None:
            try:
                write_ready_file(settings.ready_file, known)
            except OSError as error:
                raise ServerError(f"cannot write {settings.ready_file}: {error.strerror}") from None

    def _tell_of_capture(self) -> None:
        """A capture that lacks something must not look whole."""
        look = self._server.engine.last_look if self._server.engine is not None else None
        missing = [shard.not_captured for shard in look.shards] if look is not None else []
        if any(missing):
            log.warning("capture_full", not_captured_by_shard=missing, hint="record more with --capture-limit")

    def _on_signal(self) -> None:
        self._signals += 1
        self._changed.set()

    def _on_end_of_shard(self, sentinel: int) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)
        self._changed.set()

    async def _drain(self, engine: Engine) -> None:
        """Wait until all jobs have ended, the time is over, a second signal comes, or a shard dies."""
        await self._server.drain()
        give_up_at = time.monotonic() + self._settings.drain_s
        tell_at = 0.0
        while jobs := engine.registry.jobs():
            now = time.monotonic()
            if self._signals > 1 or self._driver.died() is not None or now >= give_up_at:
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
        left = [job.name for job in engine.registry.jobs()]
        if left:
            log.warning("stopping_with_jobs", jobs=left, their_ranks="join again when a switch is back")
