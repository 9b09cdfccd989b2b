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

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.core.types import ExternalFunction

from inagg_link.jit import jit
from inagg_wire.layout import HEADER_BYTES

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
from .job import Job
from .ordered import load, load_word, store, store_word, swap, swap_word
from .scales import largest_magnitudes, scale_bytes

if TYPE_CHECKING:
    from inagg_host.core.operation import Operation

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

_write: Any = ExternalFunction("write", types.int64(types.int32, types.uintp, types.uint64))
_memmove: Any = ExternalFunction("memmove", types.uintp(types.uintp, types.uintp, types.uint64))


# --- the bell ---


class Bell:
    """Wakes a thread that waits; ringing it never blocks, and needs no Python."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pair = np.array([self.descriptor, 1], np.int64)
        self.address: int = self._pair.ctypes.data
        """Of the descriptor and of what is written to it, both int64: for `ring`."""

    def ring(self) -> None:
        """For any thread, until `close`."""
        os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """What has rung so far is heard."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Nobody rings any more."""
        os.close(self.descriptor)


@jit
def ring(bell: int) -> None:
    """As `Bell.ring`, of the bell at an address."""
    pair = words_at(bell, 2)
    _write(np.int32(pair[0]), np.uint64(bell + 8), np.uint64(8))


def _ring_c(bell: int) -> None:
    ring(bell)


@cache
def ring_address() -> int:
    """Of `ring`, as a function of C, ``void ring(bell)``: for threads that know no Python."""
    return _address_of(numba.cfunc(types.void(types.int64), cache=True)(_ring_c))


# --- the kernels, on the transport's thread ---


@jit
def _is_there(staged: int, counter: int, end: int) -> bool:
    """Whether a counter of a record has come to ``end``. If not, the feeder will wake the transport."""
    if load(staged + counter) >= end:
        return True
    swap(staged + WAITING, 1)
    return bool(load(staged + counter) >= end)


def _encode_staged(operation: int, first: int, number: int, count: int, row: int) -> int:
    """As the encoders of the CPU: but payloads are copied, and the number of a block does not matter."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    if load(c.staged + FAILED) != 0:
        return RAISED
    last = first + (count - 1) * c.shards
    if not _is_there(c.staged, CODED, last + 1):
        return NOT_YET
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
    if load(c.staged + FAILED) != 0:
        return RAISED
    if not _is_there(c.staged, SCALED, first + count):
        return NOT_YET
    found, magnitudes = magnitudes_at(s.magnitudes + 8 * first, count), magnitudes_at(c.magnitudes + 8 * first, count)
    for i in range(count):
        magnitudes[i] = found[i]
    scale_bytes(magnitudes, c.dith8 != 0, c.lowest_scale, bytes_at(c.own + first, count))
    return 0


def _scale_arriving(operation: int, first: int, count: int, number: int, _d: int) -> int:
    """As the kernel of the CPU, when the values are there."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    if load(c.staged + FAILED) != 0:
        return RAISED
    if not _is_there(c.staged, SCALED, first + count):
        return NOT_YET
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
    return _address_of(numba.cfunc(SIGNATURE, cache=True, error_model="numpy")(kernel))


def _address_of(compiled: Any) -> int:
    return int(compiled.address)


def staged_addresses() -> Addresses:
    """Of the kernels of values on a device, the same for all formats and types. Compiled when first asked for."""
    return Addresses(*(_address(kernel) for kernel in (_encode_staged, _decode_staged, _scale_staged, _tell_agreed)))


def compile_kernels() -> None:
    """Compile, or load, all of this module, so that no operation has to wait for it."""
    staged_addresses()
    ring_address()
    _address(_scale_arriving)
    word = np.zeros(1, np.int64)
    store_word(word.ctypes.data, load_word(word.ctypes.data) + swap_word(word.ctypes.data, 0))
    for width in (np.uint16, np.uint32, np.uint64):
        largest_magnitudes(np.zeros(1, width), 1, 1, np.zeros(1, np.uint64))


# --- the feeder's side ---


class Codec:
    """What stands between an operation and the thread that brings its values: one for each operation."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake``: has the transport ask again; for any thread."""
        self._wake = wake
        self.record = np.zeros(1, STAGED)
        self.address: int = self.record.ctypes.data
        self.error: BaseException | None = None
        """Why there will be no codes."""

    def fields(self, kernels: Addresses) -> dict[str, int]:
        """What the operation's record is to say; ``kernels``: those of the CPU. On the transport's thread."""
        raise NotImplementedError

    def begin(self, operation: Operation) -> None:
        """It is in the engine. On the transport's thread, before the core calls any kernel."""

    def fail(self, error: BaseException) -> None:
        """There will be no more: the kernels say `RAISED` from now on."""
        self.error = error
        store_word(self.address + FAILED, 1)
        self._wake()

    def _publish(self, counter: int, count: int) -> None:
        store_word(self.address + counter, count)
        if swap_word(self.address + WAITING, 0):
            self._wake()


class Arriving(Codec):
    """Values that are on their way to the host's memory, where the kernels of the CPU find them."""

    def __init__(self, wake: Callable[[], None], wait: Callable[[], None]) -> None:
        """``wait``: returns when they are there."""
        super().__init__(wake)
        self._wait = wait

    def wait(self) -> None:
        """Wait until they are there; raises what went wrong."""
        self._wait()
        if self.error is not None:
            raise self.error

    def fields(self, kernels: Addresses) -> dict[str, int]:
        """As of the CPU, but scales, with which all begins, must wait for `arrive`."""
        self.record["scale"] = kernels.scale
        return {**kernels._asdict(), "scale": _address(_scale_arriving), "staged": self.address}

    def arrive(self) -> None:
        """All values are there."""
        self._publish(SCALED, 1 << 62)


class Staging(Codec):
    """Values on a device."""

    def __init__(self, blocks: int, bell: Bell, wake: Callable[[], None]) -> None:
        """``bell``: rung when a chunk's scales are agreed on, and when the results of a run are there."""
        super().__init__(wake)
        self.blocks, self._bell = blocks, bell
        self.magnitudes = np.zeros(blocks, np.uint64)
        """As of `inagg_host.codec.largest`."""
        self.operation: Operation | None = None
        self.record["bell"], self.record["bad"] = bell.address, -1
        self.record["magnitudes"] = self.magnitudes.ctypes.data

    def fields(self, kernels: Addresses) -> dict[str, int]:
        """The kernels of this module; nothing is drafted."""
        return {**staged_addresses()._asdict(), "staged": self.address, "drafting": 0}

    def begin(self, operation: Operation) -> None:
        """Make room for what both threads tell each other of it."""
        job = operation.job
        self.run_blocks = run_blocks(job)
        self._told = np.zeros(operation.lacking.shape[1], np.int64)
        self._runs = np.zeros(-(-self.blocks // self.run_blocks), RUN)
        self._runs["left"] = self.run_blocks
        self._runs["left"][-1] = self.blocks - (self._runs.size - 1) * self.run_blocks
        record = self.record[0]
        record["needs"] = 1 if job.refined else 0  # `core.schedule.Phase`: REFINE or SCALE
        record["told"], record["run_blocks"] = self._told.ctypes.data, self.run_blocks
        record["runs"] = self._runs.ctypes.data
        self.operation = operation

    @property
    def runs(self) -> int:
        """How many there are."""
        return self._runs.size

    # --- on the feeder's thread ---

    def is_agreed(self, chunk: int) -> bool:
        """Whether a chunk may be encoded: its scales, and their refinements, are agreed on."""
        return bool(load_word(self._told.ctypes.data + 8 * chunk))

    def is_complete(self, run: int) -> bool:
        """Whether all results of a run are there, of which so all blocks were sent."""
        return not load_word(self._runs.ctypes.data + run * RUN_BYTES + LEFT)

    def place(self, run: int, codes: npt.NDArray[np.uint8], results: npt.NDArray[np.uint8]) -> None:
        """Where the codes and the results of a run are; before any of its codes are published."""
        self._runs["codes"][run], self._runs["results"][run] = codes.ctypes.data, results.ctypes.data

    def publish_scales(self, count: int) -> None:
        """So many blocks have their magnitudes."""
        self._publish(SCALED, count)

    def publish_codes(self, count: int, bad: int = -1) -> None:
        """So many blocks have their codes; but block ``bad`` has values beyond its scale."""
        if bad >= 0 and self.record["bad"][0] < 0:
            self.record["bad"] = bad
        self._publish(CODED, count)


SLOT_BYTES: Final = 2 << 20
"""Of the codes of a run, and of its results. To copy so much takes 80 us at 25 GB/s, ten times what it takes to begin a
copy."""
RUN_BLOCKS_MOST: Final = 4096


def run_blocks(job: Job) -> int:
    """Blocks of a run: as many as a slot has room for."""
    return min(SLOT_BYTES // max(job.for_encode.payload_bytes, job.for_decode.payload_bytes), RUN_BLOCKS_MOST)
