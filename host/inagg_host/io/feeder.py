"""Feeds the core with codes of values that are on a device, and the device with results: the other side of
`codec.staged`. `Feeder.turn` has operations do what can be done now (`io.flow`); `FeederThread` has a thread wait for
the bell and take turns."""

from __future__ import annotations

import logging
import select
import threading
from collections import deque

from inagg_host.codec.bell import Bell

from .device import Device
from .flow import Flow

log = logging.getLogger("inagg")

LOOK_MS = 500
"""How long to sleep while something is under way: a device that has failed rings no bell."""
CLOSE_S = 10.0
"""How long `FeederThread.close` waits for the device."""


class Feeder:
    """Of one device. Only `submit` and `abandon` are for any thread; after them, and whenever the device or the core
    has rung the bell, `turn` is to be called until it returns False."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.slots = list(device.slots)
        """That no run has."""
        self.shelves = list(range(device.shelves))
        self._news: deque[tuple[Flow, Exception | None]] = deque()
        self._flows: list[Flow] = []  # in the order of the engine
        self._leaving: list[Flow] = []

    def submit(self, flow: Flow) -> None:
        """Begin, in the order in which operations are submitted to the engine."""
        self._news.append((flow, None))

    def abandon(self, flow: Flow, error: Exception) -> None:
        """The engine has given it up, and its thread touches it no more. It ends so, if it has not ended yet."""
        self._news.append((flow, error))

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return not (self._news or self._flows or self._leaving)

    def turn(self) -> bool:
        """Do what can be done now; whether anything could."""
        busy = bool(self._news)
        while self._news:
            flow, error = self._news.popleft()
            if error is None:
                self._flows.append(flow)
                continue
            flow.abandoned = True
            if flow in self._flows:
                self._end(flow, error)
        for flow in list(self._flows):
            try:
                busy |= flow.step(self)
            except Exception as error:  # of the device, whatever it is: the core and the caller must hear of it
                flow.codec.fail(error)
                self._end(flow, error)
            if flow.over and flow in self._flows:
                self._flows.remove(flow)
                self._leaving.append(flow)
        for flow in list(self._leaving):
            try:
                quiet = flow.is_quiet(self)
            except Exception:  # the device is broken, and will not touch the memory again
                log.exception("a device failed at the end of an all-reduce")
                quiet = True
            if quiet:
                self._leaving.remove(flow)
                busy = True
        return busy

    def _end(self, flow: Flow, error: Exception) -> None:
        self._flows.remove(flow)
        self._leaving.append(flow)
        flow.end(error)


class FeederThread:
    """Has a thread take a feeder's turns, until `close`."""

    def __init__(self, feeder: Feeder, bell: Bell) -> None:
        """``bell``: rung by the device and by the core."""
        self._feeder, self._bell, self._closing = feeder, bell, False
        self._lock, self._closed = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="inagg-feeder", daemon=True)
        self._thread.start()

    def submit(self, flow: Flow) -> None:
        """As `Feeder.submit`."""
        self._feeder.submit(flow)
        self._ring()

    def abandon(self, flow: Flow, error: Exception) -> None:
        """As `Feeder.abandon`."""
        self._feeder.abandon(flow, error)
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            if not self._closed:
                self._bell.ring()

    def close(self) -> None:
        """End the thread when nothing is under way any more; the engine must have ended. No error if called twice."""
        self._closing = True
        self._ring()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning("a device has not done within %g s what it was given: is a stream blocked?", CLOSE_S)
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._bell.close()

    def _run(self) -> None:
        self._feeder.device.begin_thread()
        poll = select.poll()
        poll.register(self._bell.descriptor, select.POLLIN)
        while True:
            self._bell.clear()  # before the turn: what rings during it is heard after it
            while self._feeder.turn():
                pass
            if self._closing and self._feeder.idle:
                self._feeder.device.end_thread()
                return
            poll.poll(None if self._feeder.idle else LOOK_MS)
