"""A data plane's loop over a socket, compiled: batches in, `receive`, batches out, without a visit to Python.

What is not the usual case, such as a call that fails, goes back to the caller: `Pump` then lets the link deal with it,
and goes on where the loop stopped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.base import Batch, Link
from inagg_link.jit import inline, jit
from inagg_link.native import AGAIN, FAILED, NO_FAULT_MASKS, send
from inagg_link.native import receive as receive_batch
from inagg_link.port import ERRNO, PEER, SIZE, Port, address_of
from inagg_link.waiting import AWAKE_S, clock, give_way, may_stay_awake, wait

from ..aggregation.aggregator import Aggregator
from ..aggregation.kernels import Array
from ..aggregation.peers import row_of
from ..aggregation.receive import take_batch
from ..aggregation.state import Out, Tables

COMMAND, RECEIVE_FAILED, UNSENT, DRAW = range(4)
"""Reasons why `serve` returned: something is to be read from the commands; a call to receive failed; so did one to
send; more masks must be drawn."""

CURSOR = np.dtype(
    [(name, np.int64) for name in ("start", "size", "taken", "total", "rest", "source")]
    + [(name, np.int64) for name in ("run", "runs", "at", "to", "filled")]
)
"""Progress of the loop with the batch in the port's buffer: ``total`` datagrams of ``size`` bytes from ``start`` on,
of which ``taken`` are taken; the bytes of a shorter one, ``rest``, that comes after them; the row of their ``source``
in `Peers.ranks`. And with what is to be sent, see `Out`: ``run`` of ``runs`` is being sent, and begins ``at`` a byte of
the buffer; its destination number ``to`` comes next. The buffer is ``filled`` with so many bytes."""

LOOK_EVERY_S = 0.001
"""Seconds that commands may wait while datagrams keep coming: to look for one costs a system call."""


@inline
def send_runs(port: Port, c: Any, t: Tables) -> int:
    """Send what is in ``t.out`` and not sent yet. Returns 0, or what `send` says if it fails. ``c``: a `CURSOR`."""
    while c.run < c.runs:
        run = t.out.runs[c.run]
        length = run.count * run.size
        while c.to < run.copies:
            peer = t.out.to[c.run, c.to]
            why: int = send(port, t.out.buffer[c.at :], length, run.size, peer)
            if why != 0:
                return why
            c.to += 1
        c.at += length
        c.run += 1
        c.to = 0
    return 0


@inline
def take(port: Port, c: Any, now: float, t: Tables) -> None:
    """Take the datagrams of the batch, as far as there is room in ``t.out`` for what they cause. ``c``: a `CURSOR`."""
    start, size, before, runs = c.start, c.size, c.taken, c.runs
    data = port.buffer[start : start + c.total * size]
    out = Out(t.out.buffer[c.filled :], t.out.runs[runs:], t.out.to[runs:], t.out.most)
    taken, more = take_batch(data, size, before, now, c.source, t, out)
    c.taken, c.runs = taken, runs + more
    for run in out.runs[:more]:
        c.filled += run.count * run.size


@jit
def serve(port: Port, cursor: Array, t: Tables, commands: int) -> int:
    """Go on from ``cursor``, `CURSOR`, (1,), until something is to be done in Python. ``commands``: a descriptor.

    It sends when nothing more has come, or the room for it is full: a worker that waits is then woken once for several
    batches. (Measured, 64 MiB between four workers on two cores: a tenth less of the switch's processor time, and of
    the workers', than if it sends after each batch.)
    """
    c = cursor[0]
    now = looked = heard = clock(port)
    due, idle = True, False
    while True:
        if due:
            why = send_runs(port, c, t)
            if why != 0:
                return UNSENT if why == FAILED else DRAW
            c.run, c.runs, c.at, c.to, c.filled = 0, 0, 0, 0, 0
            due = False
        if idle:
            now = looked = clock(port)
            if now - heard < AWAKE_S and may_stay_awake(port, now):
                give_way(port)
                came = wait(port, commands, 0)
                if came == 0:
                    continue
            else:
                came = wait(port, commands, -1)
                now = looked = clock(port)
            if came != 1:
                return COMMAND
            idle = False
        if c.taken < c.total:
            take(port, c, now, t)
            due = c.taken < c.total
            continue
        if c.rest != 0:
            c.start += c.total * c.size
            c.size, c.taken, c.total, c.rest = c.rest, 0, 1, 0
            continue
        if now - looked > LOOK_EVERY_S:
            if c.runs != 0:
                due = True
                continue
            looked = now
            if wait(port, commands, 0) & 2:
                return COMMAND
        got = receive_batch(port)
        if got == FAILED:
            return RECEIVE_FAILED
        if got == NO_FAULT_MASKS:
            return DRAW
        if got == AGAIN:
            due = idle = True
            continue
        now = heard = clock(port)
        if got > 0:
            size = port.words[SIZE]
            c.start, c.size, c.taken, c.total, c.rest = 0, size, 0, got // size, got % size
            c.source = row_of(t.peers.keys, t.peers.rows, port.words[PEER])


class Pump:
    """Runs `serve` for a data plane whose link has a port."""

    def __init__(self, link: Link, aggregator: Aggregator) -> None:
        self._link, self._aggregator = link, aggregator
        self._cursor = np.zeros(1, CURSOR)
        self.unsent = 0
        """Datagrams that no socket took."""

    def run(self, port: Port, commands: int) -> None:
        """Serve until there may be something to read from ``commands``, a descriptor. No datagram is in hand then, so
        jobs may come and go. Raises OSError as `Link.receive` and `Link.send`."""
        self._aggregator.register(port)
        while True:
            why = serve(port, self._cursor, self._aggregator.tables, commands)
            if why == COMMAND:
                return
            if why == RECEIVE_FAILED:
                self._link.receive_failed(int(port.words[ERRNO]))
            elif why == UNSENT:
                self._send(port)
            else:
                self._link.port()

    def _send(self, port: Port) -> None:
        """Have the link send what the loop could not: it knows whether to try again."""
        c, t = self._cursor[0], self._aggregator.tables
        run = t.out.runs[c["run"]]
        start, length, count = c["at"], run["count"] * run["size"], int(run["count"])
        peer = address_of(int(t.out.to[c["run"], c["to"]]), port)
        self.unsent += count - self._link.send(Batch(t.out.buffer[start : start + length], int(run["size"]), peer))
        c["to"] += 1
