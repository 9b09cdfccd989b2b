"""The transport's loop over a socket while values stream, compiled: no visit to Python, and without its lock.

It does what `Transport._step` and the engine do for the blocks of values of a large tensor, which are almost all there
are. Scales, new epochs, timers that run out, calls that fail: for all of them it stops, says why, and goes on later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from inagg_wire.compiled import jit
from inagg_wire.formats import JobFormat
from inagg_wire.link import MAX_BATCH_BYTES, Address, Batch, Link, UdpLink
from inagg_wire.link.native import AGAIN, FAILED, NO_FATES, clock, give_way, receive, send, wait
from inagg_wire.link.port import ERRNO, PEER, SIZE, Port, address_of, key_of
from inagg_wire.scale import FloatType
from inagg_wire.slots import Lease

from .counters import Counters
from .engine import Engine, Epoch, Operation, ShardLease
from .engine import stream as streams
from .engine.epoch import exceeds
from .engine.filling import LATER, NOTHING, again, draft_ahead, fill, is_scales
from .engine.stream import Stream
from .engine.taking import end_round_trip, exhausted, take, time_left

Array = Any

(
    FINISHED, NEXT, ROUND, TIMER, WOKEN, OTHERS, ELSEWHERE, UNSENT, DRAW, RECEIVE_FAILED, TOO_LARGE, EXHAUSTED,
) = range(12)  # fmt: skip
"""Why `pump` returned: the operation has all its sums; the engine can send something; a round trip is over; the timer
ran out; there is other work; the batch in the port's buffer is for the engine, or (`ELSEWHERE`) what `take` has left of
it; a batch was not sent; more fates are to be drawn; a call to receive failed; values exceed their scale; the
generations have run out."""

LENGTH, SIZE_OF, PIECE, SHARD = range(4)
"""Indices into ``where``: bytes of the batch in hand and of its datagrams; which of the stream's pieces is to be sent,
or negative: it is in ``gather``; its shard."""

LOOK_EVERY_S = 0.001
"""How long other work may wait while there is something to do here: to look for it costs a system call."""

LINGER_S = 0.00005
"""How long to stay awake when nothing has come and nothing is left to draft, and let others run: who sleeps may be
woken onto a processor that is taken while another one is free. (Measured on two cores, two workers: 1 KiB in 6 % less
time than with nothing; 64 MiB, where ranks that wait draft, in the same.)"""


@jit
def pump(port: Port, st: Stream, flat: Array, gather: Array, where: Array, wake: int) -> int:
    """Receive and send until something else is to be done; why. ``flat``: the windows' rings; ``gather``: uint8, room
    for a batch; ``where``: int64, see the indices; ``wake``: a descriptor that is readable when there is other work."""
    n, spent = st.n, st.spent
    now = looked = heard = clock(port)
    while True:
        got = receive(port)
        before, now = now, clock(port)
        spent[streams.NETWORK] += now - before
        if got != AGAIN:
            heard = now
        if got > 0:
            size, shard = port.words[SIZE], shard_of(st.peers, port.words[PEER])
            where[LENGTH], where[SIZE_OF], where[SHARD] = got, size, shard
            if shard == len(st.peers) or got % size != 0:
                return OTHERS
            taken = take(st, shard, port.buffer[:got], size, now)
            before, now = now, clock(port)
            spent[streams.DECODING] += now - before
            if not taken:
                return ELSEWHERE
            while True:
                count, size = again(st, shard, gather, n[streams.BATCH])
                if count == 0:
                    break
                where[LENGTH], where[SIZE_OF], where[PIECE] = count * size, size, -1
                if send(port, gather, count * size, size, st.peers[shard]) != 0:
                    return UNSENT
            if not end_round_trip(st, shard):
                return ROUND
            if n[streams.LEFT] == 0:
                return FINISHED
        elif got == FAILED:
            return RECEIVE_FAILED
        elif got == NO_FATES:
            return DRAW
        while True:
            scales = is_scales(st)
            count = fill(st, now)
            if count == NOTHING:
                break
            if count < 0:
                return NEXT if count == LATER else TOO_LARGE
            before, now = now, clock(port)
            spent[streams.ENCODING] += now - before
            size = n[streams.MAX_SIZE] if scales else n[streams.SUM_SIZE]
            for piece in range(n[streams.PIECES]):
                where[PIECE], where[SIZE_OF] = piece, size
                of = st.pieces[piece]
                peer = st.peers[of[streams.SHARD]]
                if send(port, flat[of[streams.START] :], of[streams.LENGTH], size, peer) != 0:
                    return UNSENT
            before, now = now, clock(port)
            spent[streams.NETWORK] += now - before
            if n[streams.MORE] and not n[streams.SENDS]:
                return NEXT
        if got == AGAIN:
            if exhausted(st):
                return EXHAUSTED
            left_s = time_left(st, now)
            if left_s <= 0:
                return TIMER
            drafts = draft_ahead(st)
            if drafts:
                before, now = now, clock(port)
                spent[streams.ENCODING] += now - before
            if drafts or now - heard < LINGER_S:
                give_way(port)
                before, now = now, clock(port)
                spent[streams.IDLE] += now - before
            else:
                # Where nothing is out no timer runs; the job's time limit and a new epoch ring ``wake``.
                timeout_ns: Any = np.int64(left_s * 1e9) if left_s < np.inf else -1
                ready = wait(port, wake, timeout_ns)
                before, now = now, clock(port)
                spent[streams.IDLE] += now - before
                if ready & 2:
                    return WOKEN
                if ready == 0:
                    return TIMER  # or a signal came, which is for Python
                continue
        if now - looked > LOOK_EVERY_S:
            looked = now
            if wait(port, wake, 0) & 2:
                return WOKEN


@jit
def shard_of(peers: Array, peer: int) -> int:
    """The shard of an address; as many as there are, if it is none's."""
    for shard in range(len(peers)):
        if peers[shard] == peer:
            return shard
    return len(peers)


class Pump:
    """Runs `pump` for ``engine`` over ``link``."""

    def __init__(self, engine: Engine, link: Link, counters: Counters) -> None:
        self._engine, self._link, self._counters = engine, link, counters
        self._gather, self._where = np.zeros(MAX_BATCH_BYTES, np.uint8), np.zeros(SHARD + 1, np.int64)
        self.woken = False
        """Whether the last run ended since the descriptor was readable."""
        self.stuck = False
        """Whether it ended since there is something that only the engine can send."""

    def run(
        self, port: Port, stream: Stream, shards: Sequence[Address], wake: int
    ) -> tuple[list[Operation], list[Batch]]:
        """Stream until something else is to be done: the operations that are finished, and what was received and is
        for the engine.

        ``shards``: their addresses; ``wake``: a descriptor that is readable when there is other work. Raises what the
        engine raises, and OSError as the link.
        """
        flat = stream.memory.ring.reshape(-1)
        stream.peers[:] = [key_of(address) for address in shards]
        why = pump(port, stream, flat, self._gather, self._where, wake)
        self._engine.streaming.end(stream)
        length, size, piece, shard = self._where.tolist()
        self.woken, self.stuck = why == WOKEN, why in (NEXT, TIMER)
        c, seconds = self._counters, stream.spent.tolist()
        c.encode_s, c.network_s = c.encode_s + seconds[streams.ENCODING], c.network_s + seconds[streams.NETWORK]
        c.decode_s, c.idle_s = c.decode_s + seconds[streams.DECODING], c.idle_s + seconds[streams.IDLE]
        if why == OTHERS:
            return [], list(_batches(port, length))
        if why == ELSEWHERE:
            return self._engine.streaming.take_rest(stream, shard, port.buffer[:length], size), []
        if why == UNSENT and piece < 0:
            self._link.send(Batch(self._gather[:length], size, shards[shard]))
        elif why == UNSENT:
            for start, length, to in stream.pieces[piece : stream.n[streams.PIECES]].tolist():
                self._link.send(Batch(flat[start : start + length], size, shards[to]))
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
        Pump(engine, link, Counters()).run(port, stream, [link.address], wake)
        os.close(wake)
