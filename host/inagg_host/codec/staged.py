"""The kernels of an operation whose values are on a device: the core calls them as it calls those of the CPU, and they
never wait. They find scales and codes that the device has written into the host's memory, and say `NOT_YET` where it
has not, and leave there what the device is to know: the agreed scales, and results.

All that the device does for an operation is launched when that is submitted (`inagg_host.torch.gpu.device` tells why).
From then on the two tell each other by words in memory that both reach. Each is written once, by one side, from 0 to
what it says:

- ``measured`` (the device): how many blocks, from the first on, have their largest magnitudes in the host's memory;
- ``agreed`` (a word for each chunk; `_tell_agreed`): the rows of the tables are there, and it may be encoded;
- ``coded`` (the same; the device): its codes and their flags are there;
- ``complete`` (the same; `_decode_staged`): all of its results are there, and it may be decoded.

What comes before a word is there for whoever has seen the word: `ordered.store` and `load` here; on the device a write
of a stream comes after all that is before it in the stream, and what comes after a wait is done after it ("Stream
Memory Operations" in the CUDA Driver API).

Payloads are copied once more, from the device's codes to the ring of the core. A device could write into the ring
itself, but its rows are free only as the window moves on, those of formats without drafts not before they are to be
sent; and what is sent again is read there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numba
import numpy as np
from numba import types
from numba.core.types import ExternalFunction

from inagg_link.jit import inline, jit
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
from .encoder import ALL_GOOD, TERN
from .exact import FIX32, NAT4, exact_code
from .ordered import load, load_word, offset_of, store, store_word
from .scales import largest_magnitudes, scale_bytes
from .table import COLUMNS, EXPONENT, K0, K1, MANTISSA, NAN, STATE, write_key, write_unit

BAD, TIE = 1, 2
"""Flags of a block: values beyond the agreed scale; a rounding that word 0 of the noise leaves open."""
TIES: Final = 64
"""How many lanes of an operation may have a tie, which one in 2**32 has: the device says where they are, and the bits
of their values. Of where, the low `PLACE_BITS` bits are the lane, those above them the block and one; 0: there is none.
"""
PLACE_BITS: Final = 16
MANY_TIES, GIVEN_UP = 2, 3
"""Why an operation failed: a block has a tie, and none of its lanes is among them, so there are more, or the device
counts wrong; nobody was there who could have ended it (`io.watchdog`)."""

STAGED: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            # Whether the device failed, or `MANY_TIES`, or `GIVEN_UP`.
            "failed",
            # Addresses of words: see above. How many blocks there are, and in a chunk; the phase in which its scales
            # are agreed.
            "measured", "agreed", "coded", "complete", "blocks", "chunk", "needs",
            # Addresses of what the device writes: largest magnitudes, as bits of values of ``width`` bytes; payloads;
            # and so many bytes of flags for each block.
            "magnitudes", "width", "codes", "flags", "flag_bytes",
            # Addresses of what it reads: tables of `inagg_host.codec.table`, and payloads.
            "sending", "receiving", "results",
            # By chunk: the number in the job of its first block, and how many results are awaited.
            "starts", "left",
            # Where lanes are that have a tie: the address of `TIES` pairs of int64.
            "ties",
            # Where values are copied: the address of the scale kernel for those on their way to the host's memory; of
            # the sums, and how many they are; of the word that is told of them; the bits of NaN.
            "scale", "sums", "elements", "summed", "nan",
            # Of `io.watchdog`: the next one that it watches, and when it gives this one up, in ns.
            "following", "due_ns",
        )
    ]
)  # fmt: skip
"""Fields by which an operation's kernels know its device."""

_staged_at, _codec_at, _table_at = array_at(STAGED), array_at(CODEC), array_at(np.int32)
_bits16_at, _bits32_at = array_at(np.uint16), array_at(np.uint32)
FAILED, FOLLOWING, DUE = (offset_of(STAGED, name) for name in ("failed", "following", "due_ns"))

_memmove: Any = ExternalFunction("memmove", types.uintp(types.uintp, types.uintp, types.uint64))


@jit
def _why_not(staged: int, word: int, end: int) -> int:
    """0 if a word has come to ``end``; else `NOT_YET`, or `RAISED`."""
    if load(staged + FAILED) != 0:
        return RAISED
    return 0 if load(word) >= end else NOT_YET


@inline
def _encode_ties(c: Any, s: Any, block: int) -> bool:
    """Encode the lanes of a block that have a tie, with as many noise words as it takes. Whether it has any."""
    ties, row = words_at(s.ties, 2 * TIES), _table_at(s.sending + 4 * COLUMNS * block, COLUMNS)
    codes, found = bytes_at(s.codes + block * c.up_payload_bytes, c.up_payload_bytes), False
    for i in range(0, 2 * TIES, 2):
        if ties[i] == 0 or ties[i] >> PLACE_BITS != block + 1:
            continue
        found, lane = True, ties[i] & (1 << PLACE_BITS) - 1
        if lane >= c.up_lanes:  # a kernel has programs of as many lanes each, and the last may have some too many
            continue
        unit, bits = (int(row[MANTISSA]), int(row[EXPONENT])), np.uint64(ties[i + 1])
        k0, k1 = np.uint32(row[K0]), np.uint32(row[K1])
        code = exact_code(c.up_encoding, bits, 8 * s.width, c.fraction_bits, unit, lane, k0, k1)
        if c.up_encoding == FIX32:
            for byte in range(4):
                codes[4 * lane + byte] = np.uint8(code >> (24 - 8 * byte))
        else:  # of so many bits, the first in the most significant ones of a byte
            size = 4 if c.up_encoding == NAT4 else 2 if c.up_encoding == TERN else 8
            at, low, ones = lane * size // 8, 8 - size - lane * size % 8, (1 << size) - 1
            codes[at] = np.uint8((np.int64(codes[at]) & ~(ones << low)) | (code & ones) << low)
    return found


def _encode_staged(operation: int, first: int, _number: int, count: int, row: int) -> int:
    """Encode as the CPU's encoders, but payloads are copied, and the number of a block does not matter. All blocks are
    of one chunk."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    why_not = _why_not(c.staged, s.coded + 8 * (first // s.chunk), 1)
    if why_not != 0:
        return int(why_not)
    size = c.up_payload_bytes
    to = c.ring + row * c.stride + HEADER_BYTES
    for i in range(count):
        block = first + i * c.shards
        flags = bytes_at(s.flags + block * s.flag_bytes, s.flag_bytes)
        flag = 0
        for each in flags:
            flag |= each
        if flag & BAD:
            return i
        if flag & TIE and not _encode_ties(c, s, block):
            s.failed = MANY_TIES
            return RAISED
        _memmove(np.uint64(to), np.uint64(s.codes + block * size), np.uint64(size))
        to += c.stride
    return ALL_GOOD


def _decode_staged(operation: int, size: int, begin: int, end: int, offset: int) -> int:
    """Decode as the CPU's decoders, but payloads are copied, and the device counts codes that name no level. It is told
    of results of other pieces, too."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    places, numbers = words_at(c.places, c.results), words_at(c.numbers, c.results)
    payload = c.down_payload_bytes
    for i in range(begin, end):
        block = numbers[i] * c.shards + offset
        if block // c.piece_blocks == c.own_piece:
            source = c.data + places[i] * size + HEADER_BYTES
            _memmove(np.uint64(s.results + block * payload), np.uint64(source), np.uint64(payload))
        chunk = block // s.chunk
        left = words_at(s.left + 8 * chunk, 1)
        left[0] -= 1
        if left[0] == 0:
            store(s.complete + 8 * chunk, 1)
    return 0


def _scale_staged(operation: int, first: int, count: int, _number: int, _d: int) -> int:
    """Largest magnitudes and own scales of ``count`` blocks from ``first`` on, if they are there."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    why_not = _why_not(c.staged, s.measured, first + count)
    if why_not != 0:
        return int(why_not)
    found, magnitudes = s.magnitudes + s.width * first, magnitudes_at(c.magnitudes + 8 * first, count)
    if s.width == 2:
        largest_magnitudes(_bits16_at(found, count), 1, c.fraction_bits, magnitudes)
    elif s.width == 4:
        largest_magnitudes(_bits32_at(found, count), 1, c.fraction_bits, magnitudes)
    else:
        largest_magnitudes(magnitudes_at(found, count), 1, c.fraction_bits, magnitudes)
    scale_bytes(magnitudes, c.dith8 != 0, c.lowest_scale, bytes_at(c.own + first, count))
    return 0


def _scale_arriving(operation: int, first: int, count: int, number: int, _d: int) -> int:
    """Find scales as the CPU's kernel, when the values are there."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    why_not = _why_not(c.staged, s.measured, 1)
    if why_not != 0:
        return int(why_not)
    return int(call(s.scale, operation, first, count, number, 0))


def _tell_agreed(operation: int, phase: int, chunk: int, _c: int, _d: int) -> int:
    """The device may encode a chunk."""
    c = _codec_at(operation, 1)[0]
    s = _staged_at(c.staged, 1)[0]
    if phase == s.needs and load(c.staged + FAILED) == 0:
        agreed, refinements = bytes_at(c.agreed, c.blocks), bytes_at(c.refinement, c.blocks)
        sending, receiving = _table_at(s.sending, c.blocks * COLUMNS), _table_at(s.receiving, c.blocks * COLUMNS)
        first, refined = chunk * s.chunk, c.down_refined != 0
        number = words_at(s.starts + 8 * chunk, 1)[0] - first
        for block in range(first, min(first + s.chunk, c.blocks)):
            scale, refinement = int(agreed[block]), int(refinements[block])
            write_unit(sending, block, scale, refinement, refined, c.up_fraction_bits)
            write_unit(receiving, block, scale, refinement, refined, c.down_fraction_bits)
            write_key(sending, block, c.up_seed, c.up_worker, number + block)
        store(s.agreed + 8 * chunk, 1)
    return 0


@jit
def release(staged: int) -> None:
    """Nothing waits for an operation from now on: all of its sums that have not come become NaN."""
    s = _staged_at(staged, 1)[0]
    if s.receiving == 0:
        if load(s.summed) == 0:
            _fill(s.sums, s.elements, s.width, s.nan)
            store(s.summed, 1)
        return
    receiving = _table_at(s.receiving, s.blocks * COLUMNS)
    for first in range(0, s.blocks, s.chunk):
        chunk = first // s.chunk
        if load(s.complete + 8 * chunk) == 0:
            for block in range(first, min(first + s.chunk, s.blocks)):
                receiving[block * COLUMNS + STATE] = NAN
        store(s.agreed + 8 * chunk, 1)
        store(s.complete + 8 * chunk, 1)


@inline
def _fill(address: int, count: int, width: int, bits: int) -> None:
    if width == 2:
        _bits16_at(address, count)[:] = np.uint16(bits)
    elif width == 4:
        _bits32_at(address, count)[:] = np.uint32(bits)
    else:
        magnitudes_at(address, count)[:] = np.uint64(bits)


@jit
def give_up(staged: int) -> bool:
    """Have an operation fail, and `release` it, for want of anybody who could. False: its values are still on their
    way, and may come to where the sums would be."""
    s = _staged_at(staged, 1)[0]
    if s.receiving == 0 and load(s.measured) == 0:
        return False
    store(staged + FAILED, GIVEN_UP)
    release(staged)
    return True


@cache
def _address(kernel: Callable[..., int]) -> int:
    compiled: Any = numba.cfunc(SIGNATURE, cache=True, error_model="numpy")(kernel)
    return int(compiled.address)


def staged_addresses() -> Addresses:
    """Addresses of the kernels of values on a device, for all formats and types. Compiled when first asked for."""
    return Addresses(*(_address(kernel) for kernel in (_encode_staged, _decode_staged, _scale_staged, _tell_agreed)))


def arriving_scale_address() -> int:
    """Address of the scale kernel for values that are on their way to the host. Compiled when first asked for."""
    return _address(_scale_arriving)


def compile_kernels() -> None:
    """Compile, or load, all of this module, so that no operation has to wait for it."""
    staged_addresses()
    arriving_scale_address()
    record, words = np.zeros(1, STAGED), np.zeros(2, np.int64)
    record["summed"], record["measured"] = words.ctypes.data, words.ctypes.data + 8
    release(record.ctypes.data)
    store_word(words.ctypes.data, load_word(words.ctypes.data))
