"""Runs `serve` for an engine over its link: what of the loop over a socket is in Python."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from inagg_host.codec.ordered import load_word, store_word
from inagg_host.core import Engine, Epoch, OutOfGenerations, ShardLease
from inagg_host.core.operation import Request
from inagg_host.core.send import deadline
from inagg_link.addresses import Address
from inagg_link.base import Batch, Link
from inagg_link.port import ERRNO, Port, register
from inagg_link.udp import UdpLink
from inagg_link.waiting import let_run
from inagg_wire.formats import job_format
from inagg_wire.slots import Lease

from . import serve as s
from .phases import Phase

Array = Any


class Loop:
    """Runs `serve` for ``engine`` over ``link``."""

    def __init__(
        self,
        engine: Engine,
        link: Link,
        trace: Callable[[Phase | None], None],
    ) -> None:
        """``trace`` is called with a phase to show, now and then, if that is asked for (None: outside of the loop)."""
        self._engine, self._link, self._trace = engine, link, trace
        self._record = np.zeros(1, s.LOOP)
        self._at: int = self._record.ctypes.data
        phases = (*Phase,)

        def begin(phase: int, _a: int, _b: int, _c: int, _d: int) -> int:
            trace(phases[phase])
            return 0

        self._callback = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(begin)
        self._callback_address = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self.phases: Array = self._record["phases"][0]
        """Seconds of each phase, in their order: of the loop, and of what else whoever has the turn does."""
        self._unshown = np.zeros(len(Phase))
        """Seconds of each phase that a profiler is still to be shown."""
        self._port: Port | None = None
        self._shards: Sequence[Address] = ()
        self._peers = np.zeros(0, np.int64)
        self.woken = self.awaited = False
        """Whether the last run ended since there was work for Python; since a device waits, and a guest ran it."""

    @property
    def strangers(self) -> int:
        """Datagrams that came from somewhere else than a shard."""
        return int(self._record["strangers"][0])

    @property
    def python_requested(self) -> bool:
        """Whether there is work for Python, which the next ring of ``wake`` is about. For any thread."""
        return bool(load_word(self._at + s.PYTHON_REQUESTED_AT))

    @python_requested.setter
    def python_requested(self, requested: bool) -> None:
        store_word(self._at + s.PYTHON_REQUESTED_AT, requested)

    def stay(self) -> None:
        """Have it return for nothing that is finished, until Python is asked for. For any thread."""
        store_word(self._at + s.STAYS_AT, 1)

    @property
    def serves(self) -> int:
        """The operations, as `Engine.submitted` counts them, up to which no end needs Python; 0: it does not run, or by
        a guest. For any thread."""
        return int(load_word(self._at + s.SERVES_AT))

    def run(self, port: Port, shards: Sequence[Address], wake: int, bell: int, traced: bool, guest: bool) -> None:
        """Serve until something else is to be done: operations are finished, perhaps, or the engine has gone wrong.

        ``shards``: their addresses; ``wake``: a non-blocking eventfd, rung when there is something to look at;
        ``bell``: an eventfd that is rung when operations are finished and this goes on; ``traced``: whether to tell
        ``trace`` of phases; ``guest``: whether to return where a device waits. Raises `OutOfGenerations`, and OSError
        as the link.
        """
        record, state = self._record[0], self._engine.state
        record["trace"], record["shown_at_s"] = self._callback_address if traced else 0, time.monotonic()
        record["bell"], record["guest"] = bell, guest
        if traced:
            record["shown"] = self.phases - self._unshown
        if port is not self._port or shards is not self._shards:
            self._port, self._shards = port, shards
            self._peers = np.array([register(port, address) for address in shards], np.int64)
        why = s.serve(port, state, self._peers, self._record, wake)
        if traced:
            self._trace(None)
            self._unshown = self.phases - record["shown"]
        self.woken, self.awaited = why == s.WOKEN, why == s.AWAITED
        if why == s.UNSENT:
            for start, count, size, shard in state.pieces[int(record["piece"]) : int(record["pieces"])].tolist():
                self._link.send(Batch(state.memory[start : start + count * size], size, shards[shard]))
        elif why == s.RECEIVE_FAILED:
            self._link.receive_failed(int(port.words[ERRNO]))
        elif why == s.EXHAUSTED:
            raise OutOfGenerations


def warm_up() -> None:
    """Compile the loop, or load it from the cache, so that no all-reduce has to wait for it. It is the same for all
    formats, and here it takes maxima, for which there are no kernels to compile."""
    fmt = job_format("nat8")
    with UdpLink() as link:
        port = link.port()
        if port is None:
            return
        shard = ShardLease(link.address, Lease(0, 4))
        engine = Engine(Epoch(1, 1, 1, fmt, 1, 0, fmt.min_lanes, 0, (shard,)))
        values = np.zeros(1, np.uint8)
        engine.submit(Request(values, values, None), 0.0)
        wake = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop = Loop(engine, link, lambda phase: None)
        loop.python_requested = True  # so it returns at once
        loop.run(port, [link.address], wake, wake, False, False)
        engine.finished()  # this, and the next two, `transport` calls
        let_run()
        deadline(engine.state)
        os.close(wake)
