"""The transport's loop over a socket while values stream, compiled: no visit to Python, and without its lock.

It does what `Transport._step` and the engine do for the blocks of values of a large tensor, which are almost all there
are. Scales, new epochs, timers that run out, calls that fail: for all of them it stops, says why, and goes on later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from inagg_wire.compiled import jit
from inagg_wire.formats import JobFormat
from inagg_wire.link import MAX_BATCH_BYTES, Address, Batch, Link, UdpLink
from inagg_wire.link.native import AGAIN, FAILED, NO_FATES, clock, receive, send, wait
from inagg_wire.link.port import ERRNO, PEER, SIZE, Port, address_of, key_of
from inagg_wire.scale import FloatType
from inagg_wire.slots import Lease

from .counters import Counters
from .engine import Engine, Epoch, Operation, ShardLease
from .engine import stream as streams
from .engine.epoch import exceeds
from .engine.stream import LATER, NOTHING, Stream, again, end_round_trip, fill, is_scales, take

Array = Any

(
    FINISHED, NEXT, ROUND, TIMER, WOKEN, OTHERS, ELSEWHERE, UNSENT, DRAW, RECEIVE_FAILED, TOO_LARGE, MIXED, EXHAUSTED,
) = range(13)  # fmt: skip
"""Why `pump` returned: the operation has all its sums; the engine can send something; a round trip is over; the timer
ran out; there is other work; the batch in the port's buffer is for the engine, or (`ELSEWHERE`) what `take` has left of
it; a batch was not sent; more fates are to be drawn; a call to receive failed; values exceed their scale; blocks of
several sizes are to be sent again; the generations have run out."""

LENGTH, SIZE_OF, FROM, WHY = range(4)
"""Indices into ``where``: bytes of the batch in hand; if it is to be sent, the bytes of its datagrams, and where it
stands in ``flat``, or negative: in ``gather``. Then why the loop stopped, or negative: it has not begun."""

LOOK_EVERY_S = 0.001
"""How long other work may wait while datagrams keep coming: to look for it costs a system call."""


@jit
def pump(port: Port, st: Stream, flat: Array, gather: Array, where: Array, peer: int, wake: int) -> None:
    """Receive and send until something else is to be done. ``flat``: the window's ring; ``gather``: uint8, room for a
    batch; ``peer``: the shard (`key_of`); ``wake``: a descriptor that is readable when there is other work."""
    where[WHY] = _pump(port, st, flat, gather, where, peer, wake)


@jit
def _pump(port: Port, st: Stream, flat: Array, gather: Array, where: Array, peer: int, wake: int) -> int:
    n, s = st.n, st.s
    now = looked = clock(port)
    while True:
        got = receive(port)
        before, now = now, clock(port)
        s[streams.NETWORK] += now - before
        if got > 0:
            size = port.words[SIZE]
            where[LENGTH] = got
            if port.words[PEER] != peer or got % size != 0:
                return OTHERS
            taken = take(st, port.buffer[:got], size, now)
            before, now = now, clock(port)
            s[streams.DECODING] += now - before
            if not taken:
                return ELSEWHERE
            count = again(st, gather, n[streams.BATCH])
            if count < 0:
                return MIXED
            if count > 0:
                where[LENGTH], where[SIZE_OF], where[FROM] = count * n[streams.SUM_SIZE], n[streams.SUM_SIZE], -1
                if send(port, gather, where[LENGTH], n[streams.SUM_SIZE], peer) != 0:
                    return UNSENT
            if n[streams.HIGHEST] >= n[streams.ROUND_END] and not end_round_trip(st):
                return ROUND
            if n[streams.LEFT] == 0:
                return FINISHED
        elif got == FAILED:
            return RECEIVE_FAILED
        elif got == NO_FATES:
            return DRAW
        while True:
            row, scales = n[streams.NEXT] & (n[streams.SLOTS] - 1), is_scales(st)
            count = fill(st, now)
            if count == NOTHING:
                break
            if count < 0:
                return NEXT if count == LATER else TOO_LARGE
            before, now = now, clock(port)
            s[streams.ENCODING] += now - before
            size = n[streams.MAX_SIZE] if scales else n[streams.SUM_SIZE]
            where[LENGTH], where[SIZE_OF], where[FROM] = count * size, size, row * st.ring.ring.shape[1]
            why = send(port, flat[where[FROM] :], where[LENGTH], size, peer)
            before, now = now, clock(port)
            s[streams.NETWORK] += now - before
            if why != 0:
                return UNSENT
            if n[streams.MORE] and not n[streams.SENDS]:
                return NEXT
        if got == AGAIN:
            timeout_ns: Any = -1  # nothing is out, so no timer runs; the job's time limit and a new epoch ring ``wake``
            if n[streams.LOW] == n[streams.NEXT] == n[streams.END]:
                return EXHAUSTED
            if n[streams.LOW] != n[streams.NEXT]:
                timeout_ns = np.int64((s[streams.PROGRESS] + s[streams.TIMEOUT] - now) * 1e9)
                if timeout_ns <= 0:
                    return TIMER
            ready = wait(port, wake, timeout_ns)
            before, now = now, clock(port)
            s[streams.IDLE] += now - before
            if ready & 2:
                return WOKEN
            if ready == 0:
                return TIMER  # or a signal came, which is for Python
        elif now - looked > LOOK_EVERY_S:
            looked = now
            if wait(port, wake, 0) & 2:
                return WOKEN


class Pump:
    """Runs `pump` for ``engine`` over ``link``."""

    def __init__(self, engine: Engine, link: Link, counters: Counters) -> None:
        self._engine, self._link, self._counters = engine, link, counters
        self._gather, self._where = np.zeros(MAX_BATCH_BYTES, np.uint8), np.zeros(4, np.int64)
        self._pending: tuple[Port, Stream, Address] | None = None
        self.woken = False
        """Whether the last run ended since the descriptor was readable."""
        self.stuck = False
        """Whether it ended since there is something that only the engine can send."""

    def run(self, port: Port, stream: Stream, shard: Address, wake: int) -> tuple[list[Operation], list[Batch]]:
        """Stream until something else is to be done: the operations that are finished, and what was received and is
        for the engine.

        ``shard``: its address; ``wake``: a descriptor that is readable when there is other work. Raises what the
        engine raises, and OSError as the link.
        """
        flat = stream.ring.ring.reshape(-1)
        self._where[WHY] = -1
        self._pending = port, stream, shard
        pump(port, stream, flat, self._gather, self._where, key_of(shard), wake)
        return self.settle()

    @property
    def pending(self) -> bool:
        """Whether a run was interrupted before it was settled: on the main thread, by a signal whose handler raised."""
        return self._pending is not None

    def settle(self) -> tuple[list[Operation], list[Batch]]:
        """The end of a run. May be called again if it was interrupted: the engine takes back the same."""
        if self._pending is None:
            return [], []
        port, stream, shard = self._pending
        length, size, at, why = self._where.tolist()
        if why >= 0:
            self._engine.streaming.end(stream)
        self._pending = None
        self.woken, self.stuck = why == WOKEN, why in (NEXT, TIMER)
        c, seconds = self._counters, stream.s[streams.ENCODING : streams.IDLE + 1].tolist()
        c.encode_s, c.network_s = c.encode_s + seconds[0], c.network_s + seconds[1]
        c.decode_s, c.idle_s = c.decode_s + seconds[2], c.idle_s + seconds[3]
        if why == OTHERS:
            return [], list(_batches(port, length))
        if why == ELSEWHERE:
            return self._engine.streaming.take_rest(stream, port.buffer[:length], int(port.words[SIZE])), []
        if why == UNSENT:
            data = self._gather[:length] if at < 0 else stream.ring.ring.reshape(-1)[at : at + length]
            self._link.send(Batch(data, size, shard))
        elif why == MIXED:
            self._engine.resend(0)
        elif why == RECEIVE_FAILED:
            self._link.receive_failed(int(port.words[ERRNO]))
        elif why == TOO_LARGE:
            raise exceeds(int(stream.n[streams.WRONG]))
        return self._engine.finished(), []


def _batches(port: Port, length: int) -> Iterator[Batch]:
    """What is in the port's buffer; the last datagram may be shorter than the others."""
    size, peer = int(port.words[SIZE]), address_of(int(port.words[PEER]))
    whole = length - length % size
    if whole:
        yield Batch(port.buffer[:whole], size, peer)
    if whole < length:
        yield Batch(port.buffer[whole:length], length - whole, peer)


def warm_up(fmt: JobFormat, workers: int, rank: int, lanes: int, float_type: FloatType) -> None:
    """Compile the loop for a job's values, or load it from the cache, so that no all-reduce has to wait for it."""
    with UdpLink() as link:
        port = link.port()
        if port is None:
            return
        shard = ShardLease(link.address, Lease(0, 4))
        engine = Engine(Epoch(1, 1, 1, fmt, workers, rank, lanes, 0, (shard,)))
        values = np.zeros(1, float_type.dtype)
        engine.submit(values, values, float_type, 0.0)
        stream = engine.streaming.begin(port.buffer)
        assert stream is not None
        stream.n[streams.SENDS] = False
        wake = os.eventfd(1, os.EFD_CLOEXEC)  # there is other work: so it returns at once
        Pump(engine, link, Counters()).run(port, stream, link.address, wake)
        os.close(wake)
