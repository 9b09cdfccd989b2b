"""Time, and waiting for what comes, for an event, or for a processor: system calls, compiled, as in `native`."""

from __future__ import annotations

import select
import time
from typing import Any

import numpy as np
from numba import types
from numba.core.types import ExternalFunction

from inagg_link import port as ports
from inagg_link.jit import jit

clock_gettime: Any = ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
_pread: Any = ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uint64, types.int64))
_sched_yield: Any = ExternalFunction("sched_yield", types.int32())
_read: Any = ExternalFunction("read", types.int64(types.int32, types.uintp, types.uint64))
_write: Any = ExternalFunction("write", types.int64(types.int32, types.uintp, types.uint64))
ppoll: Any = ExternalFunction("ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp))

POLLIN, CLOCK_MONOTONIC = select.POLLIN, time.CLOCK_MONOTONIC

AWAKE_S = 0.0003
"""Seconds to stay awake when nothing has come, where there is a processor to spare: a few round trips. Who sleeps is
woken by the kernel, which takes as long as such a round trip: one worker and a switch that had a processor each, and
always stayed awake, summed 1 KiB in 0.09 ms, not 0.15, and 1 MiB in 0.26, not 0.37. Where none is to spare, others wait
meanwhile: two workers and a switch on two processors, always awake, took a quarter longer for 64 MiB."""
LOAD_EVERY_NS = 200_000
PAUSE_LEAST_NS, PAUSE_MOST_NS, PAUSE_PART = 1_000_000, 1_000_000_000, 64
SPACE, SLASH, ZERO = b" /0"


@jit
def clock(port: Any) -> Any:
    """Seconds, as time.monotonic."""
    words = port.words
    clock_gettime(CLOCK_MONOTONIC, words.ctypes.data + 8 * ports.CLOCK)
    return np.float64(words[ports.CLOCK]) + np.float64(words[ports.CLOCK + 1]) * 1e-9


@jit
def let_run() -> None:
    """Let others run who wait for this processor (sched_yield(2))."""
    _sched_yield()


@jit
def give_way(port: Any) -> None:
    """Let others run as `let_run` does; then all sockets are to be looked at again."""
    let_run()
    port.sockets[ports.READY, : port.words[ports.HEARD]] = 1


@jit
def may_stay_awake(port: Any, now: float) -> bool:
    """Whether whoever has nothing to do may look again and again for a while (`AWAKE_S`), in place of sleeping: there
    is a processor to spare, since fewer threads run, or could, than the machine has processors.

    It looks for that every `LOAD_EVERY_NS`. If there is none, not before a pause, which is twice as long each time, and
    gets shorter as long as there is one.
    """
    words, at = port.words, np.int64(now * 1e9)
    if at >= words[ports.LOOK_AT]:
        words[ports.SPARE] = 0 < running(words) < words[ports.PROCESSORS]
        if words[ports.SPARE]:
            words[ports.PAUSE] -= words[ports.PAUSE] // PAUSE_PART
            words[ports.LOOK_AT] = at + LOAD_EVERY_NS
        else:
            words[ports.PAUSE] = min(max(2 * words[ports.PAUSE], PAUSE_LEAST_NS), PAUSE_MOST_NS)
            words[ports.LOOK_AT] = at + words[ports.PAUSE]
    return bool(words[ports.SPARE])


@jit
def running(words: Any) -> int:
    """Number of threads of the machine that run, or could: the fourth number of `processors.LOAD`. 0: it cannot be
    read."""
    text = words[ports.TEXT :].view(np.uint8)
    size = _pread(np.int32(words[ports.LOAD]), text.ctypes.data, len(text), 0)
    field, number = 0, 0
    for i in range(size):
        if text[i] == SPACE:
            field += 1
        elif text[i] == SLASH:
            break
        elif field == 3:
            number = 10 * number + text[i] - ZERO
    return number


@jit
def wait(port: Any, other: int, timeout_ns: int) -> Any:
    """Wait until something came, or the descriptor ``other`` has something to read, ``timeout_ns`` at most (if
    negative, for ever), or a signal came. Bit 0: something came; bit 1: ``other``."""
    words, sockets, count = port.words, port.sockets, port.words[ports.HEARD]
    for i in range(count):
        sockets[ports.POLLED, i] = sockets[ports.DESCRIPTOR, i] | POLLIN << 32
    sockets[ports.POLLED, count] = other | POLLIN << 32
    words[ports.CLOCK], words[ports.CLOCK + 1] = timeout_ns // 1000000000, timeout_ns % 1000000000
    timeout = words.ctypes.data + 8 * ports.CLOCK if timeout_ns >= 0 else 0
    if ppoll(sockets[ports.POLLED].ctypes.data, count + 1, timeout, 0) <= 0:
        return 0
    came = 0
    for i in range(count):
        if sockets[ports.POLLED, i] >> 48 != 0:
            sockets[ports.READY, i], came = 1, 1
    return came | (2 if sockets[ports.POLLED, count] >> 48 != 0 else 0)


@jit
def wait_for(port: Any, event: int) -> None:
    """Wait until an eventfd(2) is rung, or a signal came; whatever comes to the sockets."""
    port.sockets[ports.POLLED, 0] = event | POLLIN << 32
    ppoll(port.sockets[ports.POLLED].ctypes.data, 1, 0, 0)


@jit
def ring(port: Any, event: int) -> None:
    """Add 1 to an eventfd(2)."""
    port.words[ports.CLOCK] = 1
    _write(np.int32(event), port.words.ctypes.data + 8 * ports.CLOCK, 8)


@jit
def silence(port: Any, event: int) -> None:
    """Set a non-blocking eventfd(2) to 0."""
    _read(np.int32(event), port.words.ctypes.data + 8 * ports.CLOCK, 8)
