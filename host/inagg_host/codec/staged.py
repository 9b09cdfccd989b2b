"""The kernels of an operation whose values are on a device: the core calls them as it calls those of the CPU, and they
never wait. They find codes that a feeder (`inagg_host.io.feeder`) has put into the host's memory, and say `NOT_YET`
where it has not, and leave results there for it.

Two threads share a `STAGED` record: the transport's, which calls these kernels, and the feeder's. What orders them:

- scales and codes: the feeder writes them, then stores how many there are (``scaled``, ``coded``); the kernels load
  that before they read any.
- agreed scales: the core writes them, then `_tell_agreed` stores that a chunk has them (``told``) and rings the
  feeder's bell; the feeder loads ``told`` before it reads any.
- results: `_decode_staged` writes them, then stores how many of their run are awaited (``left``), and rings the bell
  when none is; the feeder loads that before it reads any.
- a run's memory: the feeder writes where it is before ``coded`` says that the run has codes. A result comes after its
  block was sent, which was after that. When no result of a run is awaited, all of it was sent and all has come: the
  kernels do not touch it again, and the feeder gives it to another.
- who waits: a kernel that says `NOT_YET` swaps ``waiting`` to 1 and then loads the count again; the feeder stores the
  count and then swaps ``waiting`` to 0. The swap that is second sees what was written before the first one: so either
  the kernel sees the count, or the feeder sees that it must wake the transport.

Payloads are copied once more, from a run's memory to the ring of the core. A device could write into the ring itself,
but its rows are free only as the window moves on, those of formats without drafts not before they are to be sent; and
what is sent again is read there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numba
import numpy as np
from numba import types
from numba.core.types import ExternalFunction

from inagg_link.jit import jit
from inagg_wire.layout import HEADER_BYTES

from .bell import ring, ring_address
from .calls import (
    CODEC,
    NOT_YET,
    RAISED,
    SIGNATURE,
    Addresses,
    array_at,
    bytes_at,
    call,
    magnitudes_at,
    words_at,
)
from .encoder import ALL_GOOD
from .ordered import load, load_word, store, store_word, swap, swap_word
from .scales import largest_magnitudes, scale_bytes

Array = Any

RUN: Final = np.dtype([(name, np.int64) for name in ("codes", "results", "left")])
"""Blocks whose codes and results are in one slot: where these are, and how many results are awaited."""

STAGED: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            # How many blocks, from the first on, have their largest magnitudes here; how many have their codes.
            "scaled", "coded",
            # The first block whose values exceed its scale, or -1; whether the device failed; whether the transport
            # waits for the feeder.
            "bad", "failed", "waiting",
            # Addresses: of the largest magnitudes; by chunk, 1 if the scales are agreed on, and the phase that says so;
            # of the runs, and how many blocks each has.
            "magnitudes", "told", "needs", "runs", "run_blocks",
            # The address of the bell: see `Bell`.
            "bell",
            # The address of the scale kernel for values that are on their way to the host's memory.
            "scale",
        )
    ]
)  # fmt: skip
"""What an operation's kernels and its feeder tell each other."""

_staged_at, _runs_at, _codec_at = array_at(STAGED), array_at(RUN), array_at(CODEC)
assert STAGED.fields is not None
SCALED, CODED, FAILED, WAITING = (int(STAGED.fields[name][1]) for name in ("scaled", "coded", "failed", "waiting"))
RUN_BYTES: Final = RUN.itemsize
LEFT: Final = 16
assert RUN.fields is not None and RUN.fields["left"][1] == LEFT

_memmove: Any = ExternalFunction("memmove", types.uintp(types.uintp, types.uintp, types.uint64))


@jit
def _why_not(staged: int, counter: int, end: int) -> int:
    """0 if a counter of a record has come to ``end``. Else `RAISED`; or `NOT_YET`, and the feeder will wake the
    transport."""
    if load(staged + FAILED) != 0:
        return RAISED
    if load(staged + counter) >= end:
        return 0
    swap(staged + WAITING, 1)
    return 0 if load(staged + counter) >= end else NOT_YET


def _encode_staged(operation: int, first: int, number: int, count: int, row: int) -> int:
    """As the encoders of the CPU: but payloads are copied, and the number of a block does not matter."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    last = first + (count - 1) * c.shards
    why_not = _why_not(c.staged, CODED, last + 1)
    if why_not != 0:
        return int(why_not)
    if first <= s.bad <= last and (s.bad - first) % c.shards == 0:
        return int((s.bad - first) // c.shards)
    runs, size = _runs_at(s.runs, last // s.run_blocks + 1), c.up_payload_bytes
    to = c.ring + row * c.stride + HEADER_BYTES
    for block in range(first, last + 1, c.shards):
        run = block // s.run_blocks
        _memmove(np.uint64(to), np.uint64(runs[run].codes + (block - run * s.run_blocks) * size), np.uint64(size))
        to += c.stride
    return ALL_GOOD


def _decode_staged(operation: int, size: int, begin: int, end: int, offset: int) -> int:
    """As the decoders of the CPU: but payloads are copied, and codes that name no level are counted by the device. It
    is told of results of other pieces, too."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    places, numbers = words_at(c.places, c.results), words_at(c.numbers, c.results)
    payload = c.down_payload_bytes
    for i in range(begin, end):
        block = numbers[i] * c.shards + offset
        run = block // s.run_blocks
        here = _runs_at(s.runs + run * RUN_BYTES, 1)[0]
        if block // c.piece_blocks == c.own_piece:
            to = here.results + (block - run * s.run_blocks) * payload
            _memmove(np.uint64(to), np.uint64(c.data + places[i] * size + HEADER_BYTES), np.uint64(payload))
        left = here.left - 1
        store(s.runs + run * RUN_BYTES + LEFT, left)
        if left == 0:
            ring(s.bell)
    return 0


def _scale_staged(operation: int, first: int, count: int, _number: int, _d: int) -> int:
    """Largest magnitudes and own scales of ``count`` blocks from ``first`` on, if they are there."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    why_not = _why_not(c.staged, SCALED, first + count)
    if why_not != 0:
        return int(why_not)
    found, magnitudes = magnitudes_at(s.magnitudes + 8 * first, count), magnitudes_at(c.magnitudes + 8 * first, count)
    for i in range(count):
        magnitudes[i] = found[i]
    scale_bytes(magnitudes, c.dith8 != 0, c.lowest_scale, bytes_at(c.own + first, count))
    return 0


def _scale_arriving(operation: int, first: int, count: int, number: int, _d: int) -> int:
    """As the kernel of the CPU, when the values are there."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    why_not = _why_not(c.staged, SCALED, first + count)
    if why_not != 0:
        return int(why_not)
    return int(call(s.scale, operation, first, count, number, 0))


def _tell_agreed(operation: int, phase: int, chunk: int, _c: int, _d: int) -> int:
    """The feeder may encode a chunk."""
    s = _staged_at(_codec_at(operation, 1)[0].staged, 1)[0]
    if phase == s.needs:
        store(s.told + 8 * chunk, 1)
        ring(s.bell)
    return 0


@cache
def _address(kernel: Callable[..., int]) -> int:
    compiled: Any = numba.cfunc(SIGNATURE, cache=True, error_model="numpy")(kernel)
    return int(compiled.address)


def staged_addresses() -> Addresses:
    """Of the kernels of values on a device, the same for all formats and types. Compiled when first asked for."""
    return Addresses(*(_address(kernel) for kernel in (_encode_staged, _decode_staged, _scale_staged, _tell_agreed)))


def arriving_scale_address() -> int:
    """Of the scale kernel for values that are on their way to the host's memory. Compiled when first asked for."""
    return _address(_scale_arriving)


def compile_kernels() -> None:
    """Compile, or load, all of this module, so that no operation has to wait for it."""
    staged_addresses()
    ring_address()
    arriving_scale_address()
    word = np.zeros(1, np.int64)
    store_word(word.ctypes.data, load_word(word.ctypes.data) + swap_word(word.ctypes.data, 0))
    for width in (np.uint16, np.uint32, np.uint64):
        largest_magnitudes(np.zeros(1, width), 1, 1, np.zeros(1, np.uint64))
