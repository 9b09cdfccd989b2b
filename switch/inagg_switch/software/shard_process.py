"""The parent's end of a shard: a process of its own, which is told what to do through a pipe."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from inagg_link.jit_off import JitOff
from inagg_link.progress import Progress
from inagg_link.signals import Deferred
from inagg_link.spawning import start_deaf

from ..driver import DriverError
from .config import PARENTS_SIGNALS, Compiling, SoftwareConfig, Started

log = logging.getLogger("inagg")

START_S: Final = 120.0
"""Seconds that a shard may say nothing before it serves. While it compiles, it says so."""
ANSWER_S = 10.0
STOP_S: Final = 5.0
SHORT_OF_MEMORY: Final = "was memory short? Look at dmesg, and at the limit of memory of the container or unit"
"""Advice on a process that somebody else has killed: nearly always that is the kernel."""


def _serve(config: SoftwareConfig, shard: int, pipe: Connection) -> None:
    """The process."""
    # Numba imports SciPy where there is one, to look for its BLAS, and CFFI: more than a tenth of a second, and 16 MB,
    # for nothing.
    sys.modules["scipy"] = sys.modules["cffi"] = None  # type: ignore[assignment]
    from . import shard_log

    shard_log.configure(config.log_format, config.log_level)
    try:
        from .shard import serve  # the parent does not need what that imports
    except JitOff as error:
        pipe.send(error)  # nothing of ours is broken, so a traceback would tell nobody anything
        return

    try:
        serve(config, shard, pipe)
    except Exception:  # a bug
        log.exception("shard %d ends", shard)
        os._exit(1)
    # All is closed. To take down the interpreter with what Numba compiled takes another quarter of a second.
    sys.stderr.flush()
    os._exit(0)


def leave_removed_folder() -> None:
    """`multiprocessing` has a process begin in the working directory of this one, and starts none where that was
    removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")  # nothing that is named from where it was can be there any more


class ShardProcess:
    """One shard. It begins to start when this is made; `started` waits until it serves."""

    def __init__(self, config: SoftwareConfig, index: int) -> None:
        # spawn, not fork: the parent has gRPC's threads, which a fork would leave with their locks held.
        context = multiprocessing.get_context("spawn")
        self.config = config
        self._index = index
        self._serves = False
        self._number = 0
        self.waited_for = False
        """Whether it has been asked something and has not answered yet. For any thread, as `messages`."""
        self.messages = 0
        """Number of messages that have come from it."""
        self._killed_because = ""
        self._reaping = threading.Lock()
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(config, index, theirs), name=f"inagg-shard-{index}", daemon=True
        )
        leave_removed_folder()
        start_deaf(self._process, PARENTS_SIGNALS)
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
        self.waited_for = True
        try:
            self._pipe.send((self._number, command, *arguments))
            while True:
                number, answer = self._receive(give_up_at, ANSWER_S)
                if number == self._number:  # else it is late: nobody waits for it any more
                    break
        except OSError as error:
            raise self._dead() from error
        finally:
            self.waited_for = False
        if isinstance(answer, Exception):
            raise DriverError(f"shard {self._index}: {answer}") from answer
        return answer

    def _receive(self, give_up_at: float, timeout_s: float) -> Any:
        try:
            if not self._pipe.poll(max(0.0, give_up_at - time.monotonic())):
                raise DriverError(f"shard {self._index} has not answered for {timeout_s:.0f} s; restart the switch")
            message = self._pipe.recv()
            self.messages += 1
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
        """Sentence on the end of the process, which has closed all that it had."""
        self._reap()
        return self.death() or f"shard {self._index} serves no more"

    def death(self) -> str | None:
        """Sentence on the end of the process; None if it lives."""
        with self._reaping:
            lives = self._process.is_alive()
        return None if lives else f"shard {self._index} has died ({self._exit_text()})"

    def _exit_text(self) -> str:
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"exit code {code}"
        if code == -signal.SIGKILL:
            return f"signal SIGKILL: {self._killed_because or SHORT_OF_MEMORY}"
        return f"signal {signal.Signals(-code).name}"

    def kill(self, because: str) -> None:
        """End the process at once, also one that hangs; ``because`` is part of `death`."""
        with self._reaping:
            if self._process.is_alive():
                self._killed_because = because
                self._process.kill()

    def tell_to_stop(self) -> None:
        """Close the pipe, at which the process stops; one that does not serve yet is ended at once. Told twice it is as
        once."""
        if not self._pipe.closed:
            self._pipe.close()
        if not self._serves:
            self._process.kill()

    def stop(self) -> None:
        """Wait for the process to end, and make it if it does not."""
        self._reap()
        with self._reaping:
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def close(self) -> None:
        """Give back its descriptors, when another is in its place; what still names it keeps none."""
        self._pipe.close()
        self._process.close()


def start_shards(config: SoftwareConfig) -> list[ShardProcess]:
    """Begin to start all shards of a switch. `end_shards` them."""
    shards: list[ShardProcess] = []
    try:
        for index in range(config.shards):
            with Deferred():  # one that has started is among those to end
                shards.append(ShardProcess(config, index))
    except BaseException:
        end_shards(shards)
        raise
    return shards


def end_shards(shards: Sequence[ShardProcess]) -> None:
    """Have all of them stop, and wait for that."""
    for shard in shards:
        shard.tell_to_stop()
    for shard in shards:
        shard.stop()
