"""Shards that hang, and what the keeper of shards does if it cannot do its part."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from inagg_switch.cli import shard_keeper
from inagg_switch.cli.shard_keeper import SILENT_TICKS, ShardKeeper, Silence
from inagg_switch.driver import DriverError
from inagg_switch.service import driver_threads
from inagg_switch.service.driver_threads import DriverThreads
from inagg_switch.software.config import SoftwareConfig
from inagg_switch.software.software_driver import SoftwareDriver

PATIENCE_S = 60.0


@pytest.fixture
def driver() -> Iterator[SoftwareDriver]:
    driver = SoftwareDriver(SoftwareConfig(slots=4, shards=2))
    yield driver
    driver.close()


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def looks(silence: Silence, count: int, messages: int = 0, waited_for: bool = True, counts: bool = True) -> int:
    """How often a shard is found to hang in so many looks."""
    return sum(silence.hangs(messages, waited_for, counts) for _ in range(count))


def test_a_shard_hangs_that_owes_an_answer_at_every_look() -> None:
    silence = Silence()
    assert looks(silence, SILENT_TICKS - 1) == 0
    assert looks(silence, 1) == 1
    assert looks(silence, SILENT_TICKS - 1) == 0, "it is not ended again at once"


def test_a_shard_does_not_hang_that_answers_now_and_then_or_is_not_asked() -> None:
    silence = Silence()
    for message in range(1, 6):
        assert looks(silence, SILENT_TICKS, messages=message) == 0
    assert looks(silence, 10 * SILENT_TICKS, messages=5, waited_for=False) == 0


def test_looks_of_a_keeper_that_was_stopped_itself_do_not_count() -> None:
    silence = Silence()
    assert looks(silence, SILENT_TICKS - 1) == 0
    assert looks(silence, 10 * SILENT_TICKS, counts=False) == 0
    assert looks(silence, 1) == 1


class Watched:
    """A keeper of real shards, which are asked all the time. On an event loop."""

    def __init__(self, driver: SoftwareDriver, most: int) -> None:
        self._driver = driver
        self.threads = DriverThreads(driver)
        self.lost: list[str] = []
        self.restarted = asyncio.Event()
        self.keeper = ShardKeeper(driver, most, self._restart, list, self.lost.append)
        self._asking = asyncio.create_task(self._ask())

    async def _restart(self, shard: int) -> None:
        await self.threads.restart(shard)
        self.restarted.set()

    async def _ask(self) -> None:
        while True:
            try:
                await self.threads.snapshot([])
            except DriverError:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._asking.cancel()
        self.keeper.close()
        await self.threads.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_keeper, "TICK_S", 0.02)
    monkeypatch.setattr(driver_threads, "LOOK_S", 0.05)
    monkeypatch.setattr(driver_threads, "AGAIN_S", 0.05)


@pytest.mark.usefixtures("soon")
def test_a_shard_that_hangs_is_killed_and_started_again(driver: SoftwareDriver) -> None:
    pids = [driver.pid_of(shard) for shard in range(2)]

    async def main() -> None:
        watched = Watched(driver, 5)
        os.kill(pids[1], signal.SIGSTOP)
        await watched.restarted.wait()
        assert watched.lost == []
        await watched.close()

    with capture_logs() as logs:
        run(main())
    assert driver.pid_of(0) == pids[0]
    assert driver.pid_of(1) != pids[1]
    driver.counters(1)
    (died,) = [line for line in logs if line["event"] == "shard_died"]
    assert died["what"].startswith("shard 1 has died (signal SIGKILL: it had not answered for ")


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("most", "late"), [(0, shard_keeper.LATE_TICKS), (5, 0.0)])
def test_a_shard_that_hangs_is_left_alone_where_none_is_to_be_started_again_or_the_keeper_is_late(
    driver: SoftwareDriver, monkeypatch: pytest.MonkeyPatch, most: int, late: float
) -> None:
    monkeypatch.setattr(shard_keeper, "LATE_TICKS", late)
    pid = driver.pid_of(1)

    async def main() -> None:
        watched = Watched(driver, most)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(3 * SILENT_TICKS * shard_keeper.TICK_S)
        os.kill(pid, signal.SIGCONT)
        await watched.threads.look([], 0)
        assert watched.lost == []
        await watched.close()

    run(main())
    assert driver.died() is None


def test_a_shard_that_died_is_lost_if_there_is_no_thread_to_wait_for_its_end_with(
    driver: SoftwareDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(shard: int) -> str:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(driver, "wait_for_death", fail)

    async def main() -> None:
        watched = Watched(driver, 5)
        os.kill(driver.pid_of(1), signal.SIGKILL)
        while not watched.lost:
            await asyncio.sleep(0.01)
        assert watched.lost == ["shard 1 has died, and could not be started again: can't start new thread"]
        await watched.close()

    with capture_logs() as logs:
        run(main())
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["shard_not_restarted"]


async def port_taken_after_death(driver: SoftwareDriver) -> socket.socket:
    """Kill shard 1, and have another program take its port before it is started again; the socket that does."""
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    os.kill(driver.pid_of(1), signal.SIGKILL)
    await asyncio.to_thread(driver.wait_for_death, 1)
    taken.bind(driver.shards[1].address)
    return taken


def test_a_shard_that_is_started_again_waits_for_its_port(driver: SoftwareDriver) -> None:
    async def main() -> None:
        threads = DriverThreads(driver)
        taken = await port_taken_after_death(driver)
        asyncio.get_running_loop().call_later(1.0, taken.close)
        await threads.restart(1)
        await threads.close()

    with capture_logs() as logs:
        run(main())
    assert driver.started[1].address == driver.shards[1].address
    driver.counters(1)
    port = driver.shards[1].address[1]
    assert [(line["shard"], line["port"]) for line in logs if line["event"] == "port_taken"] == [(1, port)]


def test_a_shard_that_does_not_get_its_port_again_is_given_up_in_the_end(
    driver: SoftwareDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_threads, "PORT_TAKEN_S", 0.3)

    async def main() -> None:
        threads = DriverThreads(driver)
        with closing(await port_taken_after_death(driver)), pytest.raises(DriverError, match="in use"):
            await threads.restart(1)
        await threads.close()

    run(main())


def test_a_switch_that_stops_does_not_wait_for_a_port_that_a_shard_waits_for(
    driver: SoftwareDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_threads, "PORT_TAKEN_S", 30.0)

    async def main() -> float:
        threads = DriverThreads(driver)
        with closing(await port_taken_after_death(driver)):
            begun_s = time.monotonic()
            restart = asyncio.create_task(threads.restart(1))
            await asyncio.sleep(0.3)
            await threads.close()  # before the keeper's task is cancelled, as in a root
            restart.cancel()
            return time.monotonic() - begun_s

    assert asyncio.run(main()) < 2
