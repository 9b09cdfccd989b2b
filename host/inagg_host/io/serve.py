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
GOES_ON, AT_ONCE, NOTHING_CAME = -1, -2, -3
"""Results inside of `serve`: it goes on; it begins its next round at once; nothing has come, and it goes on."""

LOOP = np.dtype(
    [
        (name, np.int64)
        for name in (
            # What is to be sent next: ``piece`` of ``pieces``. Datagrams that came from somewhere else than a shard.
            "piece", "pieces", "strangers",
            # The address of a function to call with a phase to show (0: none). Whether who runs the loop has other
            # things to do. An eventfd that is rung where operations are finished and the loop does not return. Whether
            # some are, and it has neither rung nor returned since.
            "trace", "guest", "bell", "finished",
            # Words that other threads read or write: they set the first when there is work for Python; the second, if
            # the loop is to return for nothing else, unless it is a guest's; the third is the counter up to which
            # operations are served, so that their end needs no Python.
            "python_requested", "stays", "serves",
        )
    ]
    + [
        (name, np.float64)
        for name in (
            # When the last lap ended; when something came last; when ``wake`` was looked at last.
            "now_s", "heard_s", "checked_s",
            # When a profiler was shown a phase last, and how long that took.
            "shown_at_s", "showing_s",
        )
    ]
    # Seconds of each phase: measured, and shown.
    + [("phases", np.float64, len(Phase)), ("shown", np.float64, len(Phase))]
)  # fmt: skip
"""The memory of `serve` from one call to the next."""
PYTHON_REQUESTED_AT, STAYS_AT, SERVES_AT = (offset_of(LOOP, name) for name in ("python_requested", "stays", "serves"))
ENCODE, NETWORK, DECODE, IDLE = map(int, Phase)

CHECK_EVERY_S = 0.001
"""How long other work may wait while there is something to do here: to look for it costs a system call."""

LINGER_S = 0.00005
"""How long to stay awake when nothing has come and nothing is left to draft, and let others run: who sleeps may be
woken onto a processor that is taken while another one is free. (Measured on two cores, two workers: 1 KiB in 6 % less
time than with nothing; 64 MiB, where ranks that wait draft, in the same.) Where a processor is to spare, `AWAKE_S`."""

SHOWN_S, SHOWN_TIMES, SHOWING_MOST_S = 0.001, 50, 1e-4
"""How long a profiler is shown a phase at least, and how many times as long as it took to tell it. Tens of thousands
begin in a second, and to begin a range takes some microseconds, or fifty where memory has run through the caches: a
profiler that is shown each of them halves the rate. So what is shown is the phase that lags most behind what the loop
has measured, and the sums agree. What takes longer than the last of these was interrupted, and tells nothing."""


@inline
def _show(port: Port, st: State, lp: Any) -> None:
    """Show a phase to the profiler, if there is one, and it is time."""
    now = lp.now_s
    if lp.trace == 0 or is_awaited(st) or now - lp.shown_at_s < max(SHOWN_S, SHOWN_TIMES * lp.showing_s):
        return
    most = 0
    for phase in range(len(lp.phases)):
        if lp.phases[phase] - lp.shown[phase] > lp.phases[most] - lp.shown[most]:
            most = phase
    call(lp.trace, most, 0, 0, 0, 0)
    lp.shown[most] += now - lp.shown_at_s
    lp.shown_at_s, lp.showing_s = now, min(clock(port) - now, SHOWING_MOST_S)


@jit
def serve(port: Port, st: State, peers: Array, loop: Array, wake: int) -> int:
    """Receive and send until something else is to be done; why. ``peers``: int64, (shards,), keys of their addresses;
    ``loop``: `LOOP`, (1,); ``wake``: a non-blocking eventfd that is rung when there is something to look at, which if
    ``python_requested`` needs Python."""
    why = _serve(port, st, peers, loop, wake)
    store(loop.ctypes.data + SERVES_AT, 0)
    return why


@jit
def _serve(port: Port, st: State, peers: Array, loop: Array, wake: int) -> int:
    lp = loop[0]
    lp.finished = 0
    lp.now_s = lp.heard_s = lp.checked_s = clock(port)
    while True:
        if lp.guest == 0:
            if stays(loop) and is_idle(st):
                if not _rest(port, st, loop, wake):
                    return WOKEN
                lp.now_s = lp.heard_s = lp.checked_s = clock(port)
            store(loop.ctypes.data + SERVES_AT, loaded(st))
        elif is_awaited(st):
            return AWAITED
        _show(port, st, lp)
        came = _receive_and_take(port, st, peers, lp)
        if came >= 0:
            return came
        why = _send_all(port, st, peers, loop)
        if why >= 0:
            return why
        if lp.finished != 0:  # what this makes room for has been sent: so the others need not wait for Python
            if not stays(loop):
                return FINISHED
            lp.finished = 0
            ring(port, lp.bell)
        if came == NOTHING_CAME:
            why = _wait_or_draft(port, st, loop, wake)
            if why >= 0:
                return why
            if why == AT_ONCE:
                continue
        if lp.now_s - lp.checked_s > CHECK_EVERY_S:
            lp.checked_s = lp.now_s
            if wait(port, wake, 0) & 2 and _python_requested(port, loop, wake):
                return WOKEN


@inline
def _lap(port: Port, lp: Any, phase: int) -> None:
    """Count the time since the last lap for ``phase``."""
    now = clock(port)
    lp.phases[phase] += now - lp.now_s
    lp.now_s = now


@inline
def _receive_and_take(port: Port, st: State, peers: Array, lp: Any) -> int:
    """Receive once, and take what came; `GOES_ON`, `NOTHING_CAME`, or why `serve` returns."""
    got = receive(port)
    _lap(port, lp, NETWORK)
    if got == AGAIN:
        return NOTHING_CAME
    lp.heard_s = lp.now_s
    if got == FAILED:
        return RECEIVE_FAILED
    if got == NO_FAULT_MASKS:
        return DRAW
    if got > 0:
        news = _take(port, st, peers, lp, got, lp.now_s)
        _lap(port, lp, DECODE)
        if news == JOB_FAILED:
            return ERROR
        if news == OPERATION_FINISHED:
            lp.finished = 1
    return GOES_ON


@inline
def _send_all(port: Port, st: State, peers: Array, loop: Array) -> int:
    """Encode and send until there is nothing to send now; `GOES_ON`, or why `serve` returns."""
    lp = loop[0]
    while True:
        count = next_batch(st, lp.now_s)
        _lap(port, lp, ENCODE)
        if count < 0:
            return ERROR
        if count == 0:
            return GOES_ON
        lp.piece, lp.pieces = 0, count
        if not send_pieces(port, st, peers, loop):
            return UNSENT
        _lap(port, lp, NETWORK)


@inline
def _wait_or_draft(port: Port, st: State, loop: Array, wake: int) -> int:
    """Draft when nothing has come, or stay awake, or sleep until something comes or is due; `GOES_ON`, `AT_ONCE`, or
    why `serve` returns."""
    lp = loop[0]
    if exhausted(st):
        return EXHAUSTED
    left_s = deadline(st) - lp.now_s
    if left_s <= 0:
        return AT_ONCE
    silent_s = lp.now_s - lp.heard_s
    if draft_ahead(st):
        _lap(port, lp, ENCODE)
    elif silent_s >= LINGER_S and (silent_s >= AWAKE_S or not may_stay_awake(port, lp.now_s)):
        # Where nothing is out no timer runs; the job's time limit and a new epoch ring ``wake``.
        timeout_ns: Any = np.int64(left_s * 1e9) if left_s < np.inf else -1
        due_s = lp.now_s + 1e-9 * timeout_ns
        ready = wait(port, wake, timeout_ns)
        _lap(port, lp, IDLE)
        if ready & 2 and _python_requested(port, loop, wake):
            return WOKEN
        if ready == 0 and lp.guest != 0 and (st.job[0].poll_s == np.inf or lp.now_s < due_s):
            return TIMEOUT
        return AT_ONCE
    give_way(port)
    _lap(port, lp, IDLE)
    if lp.now_s - lp.heard_s >= LINGER_S and wait(port, wake, 0) & 2 and _python_requested(port, loop, wake):
        return WOKEN
    return GOES_ON


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
        if load(loop.ctypes.data + PYTHON_REQUESTED_AT) != 0:
            return False
        if now - began < LINGER_S or (now - began < AWAKE_S and may_stay_awake(port, now)):
            let_run()
        else:
            wait_for(port, wake)
            if _python_requested(port, loop, wake):
                return False
            began = clock(port)
        now = clock(port)
    return True


@inline
def _python_requested(port: Port, loop: Array, wake: int) -> bool:
    """Whether the ring of ``wake`` is for Python. Else it has been heard: what is to be looked at will be."""
    if loop[0].guest == 0 and load(loop.ctypes.data + PYTHON_REQUESTED_AT) == 0:
        silence(port, wake)
        return bool(load(loop.ctypes.data + PYTHON_REQUESTED_AT) != 0)  # rung for between the two
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
