"""Starts shards of the software switch again that have died, or that hang and are killed, unless that happens too
often."""

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
"""Seconds in which shards are started again as often as the settings say; beyond that something is wrong."""

TICK_S: Final = 1.0
"""Seconds between two looks at what shards have answered."""
SILENT_TICKS: Final = 30
"""Looks in a row at a shard that owes an answer before it is killed: three times what an order waits for it
(`shard_process.ANSWER_S`), as one that writes a capture to a slow disk may take some of them."""
LATE_TICKS: Final = 2.0
"""A look that is later than so many intervals does not count: this process was stopped or had no processor, and so may
have been the shards, as with a laptop that sleeps, or all of them in a debugger."""

SwitchDriver = SoftwareDriver | P4Driver

log = structlog.get_logger("inagg.switch")


class Silence:
    """Looks in a row at which one shard has owed an answer. Sans-IO."""

    def __init__(self) -> None:
        self._ticks = 0
        self._messages = 0

    def hangs(self, messages: int, waited_for: bool, counts: bool) -> bool:
        """Whether the shard is to be killed, at a look that ``counts`` or not; then it begins anew. ``messages``: how
        many have come from it so far, ``waited_for``: whether another one is now."""
        if messages != self._messages:
            self._messages, self._ticks = messages, 0
        elif waited_for and counts:
            self._ticks += 1
        if self._ticks < SILENT_TICKS:
            return False
        self._ticks = 0
        return True


class ShardKeeper:
    """The restarts of one driver's shards, on an event loop; `close` it."""

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
        self._watching: asyncio.Task[None] | None = None
        if isinstance(driver, SoftwareDriver) and most > 0:  # else killing it would be the end
            self._watching = asyncio.create_task(self._end_those_that_hang(driver), name="inagg-shards")
        for shard in range(len(driver.sentinels)):
            self._look_after(shard)

    def close(self) -> None:
        """Look no more."""
        if self._watching is not None:
            self._watching.cancel()
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

    async def _end_those_that_hang(self, driver: SoftwareDriver) -> None:
        silences = [Silence() for _ in driver.sentinels]
        before = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            counts, before = now - before <= LATE_TICKS * TICK_S, now
            for shard, silence in enumerate(silences):
                if silence.hangs(*driver.messages_of(shard), counts):
                    why = f"it had not answered for {SILENT_TICKS * TICK_S:g} s"
                    log.error("shard_hangs", shard=shard, pid=driver.pid_of(shard), what=why, then="it is killed")
                    driver.kill(shard, why)

    async def _restart(self, shard: int) -> None:
        try:
            await self._start_again(shard)
        except Exception as error:  # such as that there is no thread to wait with: nobody else would hear of it
            log.exception("shard_not_restarted", shard=shard)
            self._lose(f"shard {shard} has died, and could not be started again: {error}")

    async def _start_again(self, shard: int) -> None:
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
