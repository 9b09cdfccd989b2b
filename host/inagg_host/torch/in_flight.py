"""One operation whose sums a device brings: what is kept until the device has done with it, and who is told its end.

Two things happen beside each other, on two threads: the device is told of the operation, by who submits it, and the
network does its part. When both are over, and the device has passed all that was launched, so is the operation. Its
memory stays until then, whatever is raised in between, Ctrl-C too: the device knows nothing of exceptions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.closed import ignore
from inagg_host.codec.staging import Codec
from inagg_host.io.futures import Work
from inagg_host.io.serial_executor import SerialExecutor
from inagg_host.io.watchdog import Watchdog

from .gpu.stream import Event

_lost = list[object]()
"""Memory of which nobody knows whether a device still uses it."""
_keeping = SerialExecutor("inagg-keep")
"""Keeper of what a device may still use, of operations that were not submitted. The interpreter's end waits for it."""


class InFlight:
    """See above. `follow` when it is submitted; `launched`, or `lost`, when the device has been told all."""

    def __init__(
        self, codec: Codec, watchdog: Watchdog, arrays: AllReduce, finish: Callable[[], None], used: object
    ) -> None:
        """``arrays``: the job. ``finish`` is called when the device has done all; ``used`` is to be kept until then."""
        self.done = Future[None]()
        """When all is over, or what went wrong."""
        self.done.set_running_or_notify_cancel()
        self._codec: Codec | None = codec
        self._watchdog, self._arrays, self._finish = watchdog, arrays, finish
        self._used: object = used
        self._events: Sequence[Event] = ()
        self._failures = list[BaseException]()
        self._work: Work | None = None
        self._told = False  # the device was told all
        self._claims = itertools.count()

    def follow(self, work: Work) -> None:
        """It was submitted. The device is let go as soon as ``work`` is over, though much may be left to launch: a
        large operation fills the device's queues, and then waits for what is in them."""
        assert self._codec is not None
        self._watchdog.add(self._codec)
        work.add_done_callback(self._is_over)

    def fail(self, error: BaseException) -> None:
        """The device does not bring the sums: all ranks are to hear of it. For any thread; no error if it is over."""
        codec = self._codec
        if codec is not None:
            self._failures.append(error)
            codec.fail(error)

    def launched(self, events: Sequence[Event]) -> None:
        """When the device has passed these, it has done with the memory."""
        self._events, self._told = events, True
        self._meet()

    def lost(self) -> None:
        """Nobody knows what the device has still to do: the memory is kept for good."""
        _lost.append(self._used)
        self._told = True
        self._meet()

    def dropped(self, events: Sequence[Event], error: BaseException) -> None:
        """It was not submitted, as far as is known, and ``error`` says why; what was launched before ends at
        ``events``. If it was submitted, all ranks hear of it."""
        if self._codec is not None:
            self.fail(error)
            self._watchdog.remove(self._codec)
        used = self._used, self._codec
        try:
            _keeping.submit(_keep, events, used)
        except RuntimeError:  # there are no more threads
            _lost.append(used)
        self._forget()
        self.done.set_exception(error)

    # --- the network's part is over ---

    def _is_over(self, work: Work) -> None:
        self._let_go(work)
        self._work = work
        if self._is_mine():
            self._complete()

    def _let_go(self, work: Work) -> None:
        codec = self._codec
        if codec is None:  # it was dropped
            return
        self._watchdog.remove(codec)
        if codec.error is not None:
            self._failures.append(codec.error)
        if work.exception() is not None:
            try:
                codec.release()
            except Exception as error:  # of the device, on the way to the host
                self._failures.append(error)

    def _meet(self) -> None:
        if not self._is_mine():
            return
        try:  # elsewhere, as who submits does not wait for the device
            self._arrays.later(self._complete)
        except BaseException as error:
            self._complete()  # else nobody would
            if not isinstance(error, RuntimeError):
                raise

    def _is_mine(self) -> bool:
        """Whether both are over, and it is the caller who is to complete it. Without a lock, so that a handler of a
        signal may interrupt who submits here and wait for the job's end."""
        return self._told and self._work is not None and next(self._claims) == 0

    def _complete(self) -> None:
        assert self._work is not None
        error, of_device = self._work.exception(), None
        try:
            wait_for(self._events)
            self._finish()
        except BaseException as raised:  # it belongs to whoever waits for the work
            of_device = raised
        late = error is None and bool(self._failures)  # the sums had come before the codec was known to have failed
        if late:
            error = AllReduceError(f"the device did not bring the sums: {self._failures[0]}")
        self._forget()
        if error is None and of_device is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error or of_device)
        if late:  # last: it waits for callbacks, and these may wait for what is done here
            self._arrays.close(str(error), end=True)

    def _forget(self) -> None:
        """Give away what is dear: a future keeps its callbacks, and an exception frames of who was told."""
        self._work, self._codec, self._used, self._events, self._finish = None, None, None, (), ignore


def wait_for(events: Sequence[Event]) -> None:
    """Wait until a device has passed them. Raises what went wrong on it."""
    for event in events:
        event.synchronize()


def _keep(events: Sequence[Event], _used: object) -> None:
    with suppress(Exception):  # of the device, which does nothing more then
        wait_for(events)
