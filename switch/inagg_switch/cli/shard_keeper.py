"""Starts shards of the software switch again that have died, unless that happens too often."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from ..driver import DriverError
from ..p4.p4_driver import P4Driver
from ..software.software_driver import SoftwareDriver

RESTARTS_S: Final = 60.0
"""In that time shards are started again so often as the settings say: then something is wrong."""

SwitchDriver = SoftwareDriver | P4Driver

log = structlog.get_logger("inagg.switch")


class ShardKeeper:
    """For one driver, on an event loop; `close` it."""

    def __init__(
        self,
        driver: SwitchDriver,
        most: int,
        restart: Callable[[int], Awaitable[None]],
        jobs: Callable[[], list[str]],
        lose: Callable[[str], None],
    ) -> None:
        """``most``: restarts in a minute; ``restart`` starts a shard again, or raises `DriverError`; ``jobs``: their
        names, for the log; ``lose`` is told what became of a shard that stays dead."""
        self._driver, self._most, self._restart_shard, self._jobs, self._lose = driver, most, restart, jobs, lose
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self._restarted_at: deque[float] = deque(maxlen=most)
        for shard in range(len(driver.sentinels)):
            self._look_after(shard)

    def close(self) -> None:
        """Look no more."""
        for task in self._restarts.values():
            task.cancel()
        for sentinel in self._driver.sentinels:
            asyncio.get_running_loop().remove_reader(sentinel)

    def _look_after(self, shard: int) -> None:
        """Have the shard started again, should it die."""
        sentinel = self._driver.sentinels[shard]
        asyncio.get_running_loop().add_reader(sentinel, self._on_end_of_shard, shard, sentinel)

    def _on_end_of_shard(self, shard: int, sentinel: int) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)
        self._restarts[shard] = asyncio.create_task(self._restart(shard))

    async def _restart(self, shard: int) -> None:
        """Start a shard again, unless that has happened too often lately."""
        now = time.monotonic()
        why = await asyncio.to_thread(self._driver.wait_for_death, shard)
        often = len(self._restarted_at) == self._most and (self._most == 0 or now - self._restarted_at[0] < RESTARTS_S)
        if isinstance(self._driver, P4Driver):  # whose switch is not ours to start
            self._lose(why)
            return
        if often:
            self._lose(f"{why}, as often before")
            return
        self._restarted_at.append(now)
        log.error("shard_died", what=why, jobs=self._jobs(), then="it is started again, and its jobs get a new epoch")
        try:
            await self._restart_shard(shard)
        except DriverError as error:
            self._lose(f"{why}, and could not be started again: {error}")
            return
        log.warning(
            "shard_restarted", shard=shard, pid=self._driver.pid_of(shard), after_s=round(time.monotonic() - now, 3)
        )
        self._look_after(shard)
