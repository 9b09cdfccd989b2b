"""Lets a device go that has waited too long for sums when nobody else can.

Sums come without Python (see `serve`), but if the network breaks only Python can end the job; and a thread that waits
in the device's driver, for sums that will not come now, may keep the interpreter's lock. So a thread that is in
compiled code all its life looks after that: what has waited for longer than the time limit, while no thread could run
Python for as long as `PATIENCE_S`, is given up. Its sums become NaN, the device goes on, whoever waited in the driver
comes back, and Python does the rest. (NCCL's watchdog is a thread of C++ for the same reason.)
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Final

import numpy as np

from inagg_host.codec.ordered import exchange, load, offset_of, store, store_word
from inagg_host.codec.staged import DUE, FOLLOWING, give_up
from inagg_host.codec.staging import Codec
from inagg_link.jit import jit
from inagg_link.waiting import CLOCK_MONOTONIC, clock_gettime, let_run, ppoll

from ..config import TIME_MAX_S

PATIENCE_S: Final = 5.0
"""A thread of Python has its turn more often, if any has."""
CHECKS: Final = 10
"""How often it looks in that time."""

WATCH: Final = np.dtype(
    [(name, np.int64) for name in ("lock", "first", "alive_ns", "patience_ns", "event", "seconds", "nanoseconds")]
)
"""A lock (1: taken); the address of the first codec that is watched, and each says which one follows; when Python ran
last; how long it may not; the poll(2) structure of what ends this; room for a timespec(3)."""
_LOCK, _FIRST, _ALIVE, _PATIENCE, _EVENT, _TIME = (
    offset_of(WATCH, name) for name in ("lock", "first", "alive_ns", "patience_ns", "event", "seconds")
)


@jit
def _take(watch: int) -> None:
    while exchange(watch + _LOCK, 1) != 0:
        let_run()


@jit
def _add(watch: int, codec: int) -> None:
    _take(watch)
    store(codec + FOLLOWING, load(watch + _FIRST))
    store(watch + _FIRST, codec)
    store(watch + _LOCK, 0)


@jit
def _remove(watch: int, codec: int) -> None:
    _take(watch)
    before = watch + _FIRST
    while load(before) != 0 and load(before) != codec:
        before = load(before) + FOLLOWING
    if load(before) != 0:
        store(before, load(codec + FOLLOWING))
    store(watch + _LOCK, 0)


@jit
def _run(watch: int) -> None:
    every_ns = load(watch + _PATIENCE) // CHECKS
    while True:
        store(watch + _TIME, every_ns // 1000000000)
        store(watch + _TIME + 8, every_ns % 1000000000)
        if ppoll(watch + _EVENT, 1, watch + _TIME, 0) > 0:
            return
        clock_gettime(CLOCK_MONOTONIC, watch + _TIME)
        now_ns = load(watch + _TIME) * 1000000000 + load(watch + _TIME + 8)
        if now_ns - load(watch + _ALIVE) < load(watch + _PATIENCE):
            continue
        _take(watch)
        before = watch + _FIRST
        while load(before) != 0:
            codec = load(before)
            if now_ns >= load(codec + DUE) and give_up(codec):
                store(before, load(codec + FOLLOWING))
            else:
                before = codec + FOLLOWING
        store(watch + _LOCK, 0)


class Watchdog:
    """A watchdog of the operations of one device."""

    def __init__(self, limit_s: float, patience_s: float = PATIENCE_S) -> None:
        """``limit_s``: how long sums are waited for, up to `config.TIME_MAX_S`."""
        self.limit_s = limit_s
        """The same, of what is added from now on; it may be changed at any time."""
        self._event = os.eventfd(0, os.EFD_CLOEXEC)
        self._record = np.zeros(1, WATCH)
        self._at: int = self._record.ctypes.data
        self._record["patience_ns"], self._record["event"] = patience_s * 1e9, self._event | select.POLLIN << 32
        self._watched = set[Codec]()  # whose memory is there
        self._closed = threading.Event()
        self._every_s = patience_s / CHECKS
        self._alive()
        self._threads = list[threading.Thread]()
        try:
            for target, name in ((self._pulse, "inagg-pulse"), (self._watch, "inagg-watchdog")):
                thread = threading.Thread(target=target, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:  # there are no more threads
            self.close()
            raise

    def add(self, codec: Codec) -> None:
        """Watch what a device waits for, from now on, and keep its memory."""
        self._watched.add(codec)
        codec.record["due_ns"] = time.monotonic_ns() + int(self.limit_s * 1e9)
        _add(self._at, codec.address)

    def remove(self, codec: Codec) -> None:
        """Watch it no more. No error if it was not watched, or was given up."""
        _remove(self._at, codec.address)
        self._watched.discard(codec)

    def close(self) -> None:
        """End its threads. No error if called twice."""
        if not self._closed.is_set():
            self._closed.set()
            os.eventfd_write(self._event, 1)
            for thread in self._threads:
                thread.join()
            os.close(self._event)

    def _pulse(self) -> None:
        while not self._closed.wait(self._every_s):
            self._alive()

    def _alive(self) -> None:
        store_word(self._at + _ALIVE, time.monotonic_ns())

    def _watch(self) -> None:
        _run(self._at)


def warm_up() -> None:
    """Compile all of this, or load it, so that no operation has to wait for it."""
    watchdog, codec = Watchdog(TIME_MAX_S), Codec(lambda: None)  # it has no memory to give up
    watchdog.add(codec)
    watchdog.remove(codec)
    watchdog.close()
