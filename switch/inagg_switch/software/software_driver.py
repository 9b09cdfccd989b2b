"""The software switch as a driver: one process per shard, each with its own socket and slots."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from inagg_link import canonical
from inagg_link.first_start import Progress
from inagg_wire.formats import CHILDREN_MAX, FORMATS

from ..binding import Address, Binding
from ..driver import Counters, DriverError, Limits, Shard, SlotWait
from .process import PARENTS_SIGNALS, Compiling, SoftwareConfig, Started, serve

log = logging.getLogger("inagg")

__all__ = ["SoftwareConfig", "SoftwareDriver", "Started"]

START_S = 120.0
"""How long a shard may say nothing before it serves. While it compiles, it says so."""
ANSWER_S = 10.0
STOP_S = 5.0


class SoftwareDriver:
    """Implements `driver.Driver`. Starts its shards when it is made; raises `DriverError` if it cannot."""

    name = "software"

    def __init__(self, config: SoftwareConfig | None = None) -> None:
        self.config = config = config or SoftwareConfig()
        self.limits = Limits(
            frozenset(FORMATS),
            CHILDREN_MAX,
            config.lanes,
            config.datagram_bytes,
            config.slots,
            trees=True,
            scatters=True,
        )
        self._shards: list[_ShardProcess] = []
        try:
            for index in range(config.shards):
                self._shards.append(_ShardProcess(config, index))
            self.started = tuple(shard.started() for shard in self._shards)
        except BaseException:
            self.close()
            raise
        receive_bytes = min(started.receive_buffer_bytes for started in self.started)
        self.limits = replace(self.limits, receive_bytes=receive_bytes)
        self.shards = tuple(Shard(started.address, config.slots, started.groups) for started in self.started)

    def admit(self, workers: Sequence[tuple[Address, ...]]) -> str | None:
        """See `Driver.admit`. A socket for IPv4 sends nothing to IPv6 addresses, and the other way round."""
        for addresses in workers:
            for shard, (host, _) in zip(self.shards, addresses, strict=True):
                if (":" in host) != (":" in shard.address[0]):  # literal addresses, and no IPv4 in IPv6 form
                    return f"{host} cannot be reached from {shard.address[0]}, where this switch sends from"
        return None

    def bind(self, shard: int, binding: Binding) -> None:
        """See `Driver.bind`."""
        place, children = binding.place, tuple(canonical(address) for address in binding.children)
        if place is not None and place.uplink is not None:
            place = replace(place, uplink=replace(place.uplink, parent=canonical(place.uplink.parent)))
        self._shards[shard].ask("bind", replace(binding, children=children, place=place))

    def unbind(self, shard: int, job: int) -> None:
        """See `Driver.unbind`."""
        self._shards[shard].ask("unbind", job)

    def counters(self, shard: int) -> Counters:
        """See `Driver.counters`."""
        counters: Counters = self._shards[shard].ask("counters")
        return counters

    def waiting(self, shard: int, job: int, limit: int) -> tuple[int, list[SlotWait]]:
        """See `Driver.waiting`."""
        answer: tuple[int, list[SlotWait]] = self._shards[shard].ask("waiting", job, limit)
        return answer

    @property
    def sentinels(self) -> tuple[int, ...]:
        """Descriptors, one per shard, that become readable when the shard has ended. For any thread."""
        return tuple(shard.sentinel for shard in self._shards)

    def died(self) -> str | None:
        """What became of the first shard that has ended though it was not told to; None if all serve. For any
        thread."""
        return next((death for shard in self._shards if (death := shard.death()) is not None), None)

    def restart(self, shard: int) -> None:
        """See `Driver.restart`. Captures and recordings go on in new files."""
        old, (host, port) = self._shards[shard], self.shards[shard].address
        if old.death() is None:
            raise DriverError(f"shard {shard} has not died")
        again = replace(old.config, host=host, port=port - shard, starts=old.config.starts + 1)
        old.stop()
        new = _ShardProcess(again, shard)
        try:
            started = new.started()
        except BaseException:
            new.tell_to_stop()
            new.stop()
            raise
        self._shards[shard] = new
        self.started = (*self.started[:shard], started, *self.started[shard + 1 :])

    def pid_of(self, shard: int) -> int:
        """Of the process that is the shard now."""
        return self.started[shard].pid

    def wait_for_death(self, shard: int) -> str:
        """What became of a shard whose sentinel is readable: its end is known some time after."""
        return self._shards[shard].wait_for_death()

    def close(self) -> None:
        """See `Driver.close`."""
        for shard in self._shards:
            shard.tell_to_stop()
        for shard in self._shards:
            shard.stop()


class _ShardProcess:
    """The parent's end of one shard."""

    def __init__(self, config: SoftwareConfig, index: int) -> None:
        # spawn, not fork: the parent has gRPC's threads, which a fork would leave with their locks held.
        context = multiprocessing.get_context("spawn")
        self.config = config
        self._index = index
        self._serves = False
        self._number = 0
        self._reaping = threading.Lock()
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=serve, args=(config, index, theirs), name=f"inagg-shard-{index}", daemon=True
        )
        # Not among what follows, since it unblocks the signals.
        resource_tracker.ensure_running()
        # A child inherits which signals are blocked, so there is no moment in which one could hit it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    @property
    def sentinel(self) -> int:
        """Readable when the process has ended."""
        return self._process.sentinel

    def started(self) -> Started:
        """Wait until the shard serves; what it says of itself."""
        progress = Progress(log.info, f"shard {self._index}'s loops")
        while isinstance(message := self._receive(time.monotonic() + START_S, START_S), Compiling):
            progress(message.functions)
        started: Started = message
        self._serves = True
        return started

    def ask(self, command: str, *arguments: Any) -> Any:
        """Have the shard do something and return what it says."""
        self._number += 1
        give_up_at = time.monotonic() + ANSWER_S
        try:
            self._pipe.send((self._number, command, *arguments))
        except OSError as error:
            raise self._dead() from error
        while True:
            number, answer = self._receive(give_up_at, ANSWER_S)
            if number == self._number:  # else it is late: nobody waits for it any more
                break
        if isinstance(answer, Exception):
            raise DriverError(f"shard {self._index}: {answer}") from answer
        return answer

    def _receive(self, give_up_at: float, timeout_s: float) -> Any:
        try:
            if not self._pipe.poll(max(0.0, give_up_at - time.monotonic())):
                raise DriverError(f"shard {self._index} has not answered for {timeout_s:.0f} s; restart the switch")
            message = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._dead() from error
        if isinstance(message, Exception):
            raise DriverError(f"shard {self._index}: {message}") from message
        return message

    def _reap(self) -> None:
        """Wait for the end of the process. Of two threads that do so at the same time, one finds it gone before the
        other has noted its exit code (`multiprocessing` takes that for a process that lives): so one by one."""
        if wait([self._process.sentinel], STOP_S):
            with self._reaping:
                self._process.join(STOP_S)

    def _dead(self) -> DriverError:
        self._reap()
        return DriverError(f"shard {self._index} has died ({self._exit_text()})")

    def wait_for_death(self) -> str:
        """What became of the process, which has closed all that it had."""
        self._reap()
        return self.death() or f"shard {self._index} serves no more"

    def death(self) -> str | None:
        """What became of the process, if it has ended; None if it lives."""
        with self._reaping:
            lives = self._process.is_alive()
        return None if lives else f"shard {self._index} has died ({self._exit_text()})"

    def _exit_text(self) -> str:
        code = self._process.exitcode
        return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"

    def tell_to_stop(self) -> None:
        """Close the pipe, at which the process stops; one that does not serve yet is ended at once."""
        self._pipe.close()
        if not self._serves:
            self._process.kill()

    def stop(self) -> None:
        """Wait for the process to end, and make it if it does not."""
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
