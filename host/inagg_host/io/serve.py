"""The loop over a socket, compiled: receive, `on_batch`, `next_batch`, send, wait. It knows nothing else, and visits
Python only when an operation is finished or something is not as usual.

In a job whose operations a device waits for (it ``stays``) it does not even visit Python for what is finished, but
rings a bell. For to go on in Python it would need the interpreter's lock, and some other thread may have that and wait
in the device's driver for room in its queues, where nothing moves until the device has its sums: Inductor's launcher of
kernels does not give the lock away (torch 2.13), nor does whoever gives memory back. There it waits for the next
operation, too, so that who submits that need not wait for it to come back from Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_host.codec.calls import call
from inagg_host.codec.ordered import load, offset_of, store
from inagg_host.core.draft import draft_ahead
from inagg_host.core.receive import FAILED as JOB_FAILED
from inagg_host.core.receive import FINISHED as OPERATION_FINISHED
from inagg_host.core.receive import is_awaited, loaded, on_batch
from inagg_host.core.send import deadline, exhausted, next_batch
from inagg_host.core.state import State
from inagg_host.io.phases import Phase
from inagg_link.jit import inline, jit
from inagg_link.native import AGAIN, FAILED, NO_FAULT_MASKS, had_no_room, receive, send
from inagg_link.port import BLOCKED, PEER, SIZE, Port
from inagg_link.waiting import AWAKE_S, clock, give_way, let_run, may_stay_awake, ring, silence, wait, wait_for

Array = Any

FINISHED, ERROR, WOKEN, TIMEOUT, UNSENT, DRAW, RECEIVE_FAILED, EXHAUSTED, AWAITED = range(9)
"""Why `serve` returned: an operation has all its sums; the engine knows what went wrong; there is other work; nothing
came for a while, or a signal did, for a guest; a piece was not sent; more masks are to be drawn; a call to receive
failed; the generations have run out; a device waits, which is no work for a guest."""

LOOP = np.dtype(
    [
        (name, np.int64)
        for name in ("piece", "pieces", "strangers", "trace", "guest", "bell", "asked", "stays", "serves")
    ]
    + [
        ("told_s", np.float64),
        ("telling_s", np.float64),
        ("phases", np.float64, len(Phase)),
        ("shown", np.float64, len(Phase)),
    ]
)
"""``piece`` of ``pieces`` is to be sent next; datagrams that came from somewhere else than a shard; what
is told which phase to show, 0 if nobody is, when it was told last, and how long that took; seconds of each phase,
measured and shown. ``guest``: whether who runs it has other things to do; ``bell``: an eventfd that is rung where
operations are finished and it does not return. Three words: ``asked``, others set it when there is work for Python;
``stays``, whether it returns for nothing else, unless it is a guest's; ``serves``, the counter up to which operations
are served, so that their end needs no Python."""
ASKED_AT, STAYS_AT, SERVES_AT = (offset_of(LOOP, name) for name in ("asked", "stays", "serves"))
ENCODE, NETWORK, DECODE, IDLE = map(int, Phase)

LOOK_EVERY_S = 0.001
"""How long other work may wait while there is something to do here: to look for it costs a system call."""

LINGER_S = 0.00005
"""How long to stay awake when nothing has come and nothing is left to draft, and let others run: who sleeps may be
woken onto a processor that is taken while another one is free. (Measured on two cores, two workers: 1 KiB in 6 % less
time than with nothing; 64 MiB, where ranks that wait draft, in the same.) Where a processor is to spare, `AWAKE_S`."""

SHOWN_S, SHOWN_TIMES, TELLING_MOST_S = 0.001, 50, 1e-4
"""How long a profiler is shown a phase at least, and how many times as long as it took to tell it. Tens of thousands
begin in a second, and to begin a range takes some microseconds, or fifty where memory has run through the caches: a
profiler that is shown each of them halves the rate. So what is shown is the phase that lags most behind what the loop
has measured, and the sums agree. What takes longer than the last of these was interrupted, and tells nothing."""


@inline
def _show(port: Port, st: State, lp: Any, now: float) -> None:
    """If there is a profiler, and it is time, show it a phase."""
    if lp.trace == 0 or is_awaited(st) or now - lp.told_s < max(SHOWN_S, SHOWN_TIMES * lp.telling_s):
        return
    most = 0
    for phase in range(len(lp.phases)):
        if lp.phases[phase] - lp.shown[phase] > lp.phases[most] - lp.shown[most]:
            most = phase
    call(lp.trace, most, 0, 0, 0, 0)
    lp.shown[most] += now - lp.told_s
    lp.told_s, lp.telling_s = now, min(clock(port) - now, TELLING_MOST_S)


@jit
def serve(port: Port, st: State, peers: Array, loop: Array, wake: int) -> int:
    """Receive and send until something else is to be done; why. ``peers``: int64, (shards,), keys of their addresses;
    ``loop``: `LOOP`, (1,); ``wake``: a non-blocking eventfd that is rung when there is something to look at, which if
    ``asked`` needs Python."""
    why = _serve(port, st, peers, loop, wake)
    store(loop.ctypes.data + SERVES_AT, 0)
    return why


@jit
def _serve(port: Port, st: State, peers: Array, loop: Array, wake: int) -> int:
    lp = loop[0]
    finished = False
    now = looked = heard = clock(port)
    while True:
        if lp.guest == 0:
            if stays(loop) and is_idle(st):
                if not _rest(port, st, loop, wake):
                    return WOKEN
                now = looked = heard = clock(port)
            store(loop.ctypes.data + SERVES_AT, loaded(st))
        elif is_awaited(st):
            return AWAITED
        _show(port, st, lp, now)
        got = receive(port)
        before, now = now, clock(port)
        lp.phases[NETWORK] += now - before
        if got != AGAIN:
            heard = now
        if got > 0:
            news = _take(port, st, peers, lp, got, now)
            before, now = now, clock(port)
            lp.phases[DECODE] += now - before
            if news == JOB_FAILED:
                return ERROR
            finished = finished or news == OPERATION_FINISHED
        elif got == FAILED:
            return RECEIVE_FAILED
        elif got == NO_FAULT_MASKS:
            return DRAW
        while True:
            count = next_batch(st, now)
            before, now = now, clock(port)
            lp.phases[ENCODE] += now - before
            if count < 0:
                return ERROR
            if count == 0:
                break
            lp.piece, lp.pieces = 0, count
            if not send_pieces(port, st, peers, loop):
                return UNSENT
            before, now = now, clock(port)
            lp.phases[NETWORK] += now - before
        if finished:  # what this makes room for has been sent: so the others need not wait for Python
            if not stays(loop):
                return FINISHED
            finished = False
            ring(port, lp.bell)
        if got == AGAIN:
            if exhausted(st):
                return EXHAUSTED
            left_s = deadline(st) - now
            if left_s <= 0:
                continue
            if draft_ahead(st):
                before, now = now, clock(port)
                lp.phases[ENCODE] += now - before
            elif now - heard >= LINGER_S and (now - heard >= AWAKE_S or not may_stay_awake(port, now)):
                # Where nothing is out no timer runs; the job's time limit and a new epoch ring ``wake``.
                timeout_ns: Any = np.int64(left_s * 1e9) if left_s < np.inf else -1
                ready = wait(port, wake, timeout_ns)
                before, now = now, clock(port)
                lp.phases[IDLE] += now - before
                if ready & 2 and _is_asked(port, loop, wake):
                    return WOKEN
                if ready == 0 and lp.guest != 0 and (st.job[0].look_s == np.inf or now < before + 1e-9 * timeout_ns):
                    return TIMEOUT
                continue
            give_way(port)
            before, now = now, clock(port)
            lp.phases[IDLE] += now - before
            if now - heard >= LINGER_S and wait(port, wake, 0) & 2 and _is_asked(port, loop, wake):
                return WOKEN
        if now - looked > LOOK_EVERY_S:
            looked = now
            if wait(port, wake, 0) & 2 and _is_asked(port, loop, wake):
                return WOKEN


@inline
def stays(loop: Array) -> bool:
    """Whether it does not return for what is finished."""
    return bool(loop[0].guest == 0 and load(loop.ctypes.data + STAYS_AT) != 0)


@inline
def is_idle(st: State) -> bool:
    """Whether all operations are finished."""
    return bool(st.job[0].oldest == loaded(st))


@inline
def _rest(port: Port, st: State, loop: Array, wake: int) -> bool:
    """Nothing is under way, and nothing that comes is needed: wait until there is an operation; False: Python is asked
    for. It stays awake for as long as in the midst of one, from the last ring of ``wake`` on."""
    now = began = clock(port)
    while is_idle(st):
        store(loop.ctypes.data + SERVES_AT, loaded(st))
        if load(loop.ctypes.data + ASKED_AT) != 0:
            return False
        if now - began < LINGER_S or (now - began < AWAKE_S and may_stay_awake(port, now)):
            let_run()
        else:
            wait_for(port, wake)
            if _is_asked(port, loop, wake):
                return False
            began = clock(port)
        now = clock(port)
    return True


@inline
def _is_asked(port: Port, loop: Array, wake: int) -> bool:
    """Whether the ring of ``wake`` is for Python. Else it has been heard: what is to be looked at will be."""
    if loop[0].guest == 0 and load(loop.ctypes.data + ASKED_AT) == 0:
        silence(port, wake)
        return bool(load(loop.ctypes.data + ASKED_AT) != 0)  # rung for between the two
    return True


@inline
def _take(port: Port, st: State, peers: Array, lp: Any, got: int, now: float) -> int:
    """Take what is in the port's buffer, of which the last datagram may be shorter than the others."""
    size, shard = port.words[SIZE], shard_of(peers, port.words[PEER])
    if shard == len(peers):
        lp.strangers += (got + size - 1) // size
        return 0
    whole = got - got % size
    news = 0
    if whole > 0:
        news = on_batch(st, shard, port.buffer[:whole], size, now)
    if whole < got and news != JOB_FAILED:
        news = max(on_batch(st, shard, port.buffer[whole:got], got - whole, now), news)
    return int(news)


@inline
def send_pieces(port: Port, st: State, peers: Array, loop: Array) -> bool:
    """Send what `next_batch` has found, from ``piece`` on; whether all was sent. Python would try once more to send
    what the kernel has no room for; where it is not to be visited, that is as lost as on the way."""
    lp = loop[0]
    while lp.piece < lp.pieces:
        p = st.pieces[lp.piece]
        failed = send(port, st.memory[p.start :], p.count * p.size, p.size, peers[p.shard])
        if failed == FAILED and had_no_room(port) and stays(loop):
            port.words[BLOCKED] += p.count
        elif failed != 0:
            return False
        lp.piece += 1
    return True


@inline
def shard_of(peers: Array, peer: int) -> int:
    """The shard of an address; as many as there are, if it is none's."""
    for shard in range(len(peers)):
        if peers[shard] == peer:
            return shard
    return len(peers)
