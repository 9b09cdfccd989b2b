"""The kernels behind addresses: for a loop that is compiled once, whatever the format and the type of the values.

A Numba function is compiled anew for every type that it calls a kernel with, in some 15 seconds for a loop of the size
of the host's. So a loop calls by address: functions of one C signature, ``int64 f(context, a, b, c, d)``, of which
there is one for each kind of codes and width of values. What else they need stands in ``context``, an int64 array, as
numbers and addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from .bits import groups, padded
from .decoder import decode, decode_run
from .drafts import NOTES as COLUMNS
from .drafts import Drafts, draft_blocks
from .encoder import Natural, encode_run
from .job import FRACTION_BITS, Job
from .scales import largest_magnitudes, scale_bytes

Integers = npt.NDArray[np.int64]

# Indices into ``context``. Addresses, with what they point to; lengths in elements:
VALUES, LENGTH, SCALES, REFINEMENTS, BLOCKS, MAGNITUDES, OWN = range(7)
"""Of the operation: its values, the agreed scales and refinements, largest magnitudes and own scales, a byte (or eight)
for each block."""
RING, ROWS, STRIDE = range(7, 10)
"""Where contributions are written: uint8, (rows, stride)."""
DATA, DATA_BYTES, PLACES, NUMBERS, RESULTS = range(10, 15)
"""Results: uint8; and int64, where they stand there and of which blocks they are."""
INDICES, INDICES_WIDTH, WORDS, CODES = range(15, 19)
"""Room for use inside, see `Runs`: int64 (3, width), and `Job.room`."""
DIVISOR, FRACTION, LOWEST, DITH8, STEP = range(19, 24)
"""``STEP``: of the blocks of a run, as for `Runs.encode`."""
NOTES, BELOW, EXPECTED, DRAFTS, SERIAL = range(24, 29)
"""The fields of `drafts.Drafts`, and how many rows they have; the operation."""
ENCODING = range(29, 37)
"""The fields of `encoder.Natural`, then twice those of `decoder.Result`: of results, and of contributions."""
DECODING = range(ENCODING.stop, ENCODING.stop + 7)
OWN_DECODING = range(DECODING.stop, DECODING.stop + 7)
CONTRIBUTED = OWN_DECODING.stop
"""Where what this worker's codes stand for is to be written: as many values as the operation has."""
CONTEXT = CONTRIBUTED + 1

_Function: Any = vars(cgutils)["ir"].FunctionType
carray: Any = vars(numba)["carray"]  # which numba does not export to type checkers
SIGNATURE: Final = types.int64(*[types.int64] * 5)
_ENCODE, _DECODE, _OWN_DECODE = ENCODING.start, DECODING.start, OWN_DECODING.start


def _call(_context: Any, _address: Any, _of: Any, _a: Any, _b: Any, _c: Any, _d: Any) -> Any:
    """Call the function at an address with the address of a context and four numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = args[0].type
        function = _Function(word, [word] * (len(args) - 1)).as_pointer()
        return builder.call(builder.inttoptr(args[0], function), args[1:])

    return types.int64(*[types.int64] * 6), generate


def _to_pointer(_context: Any, _address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


call: Any = intrinsic(_call)
_pointer: Any = intrinsic(_to_pointer)


def _compiled(function: Callable[..., int]) -> Any:
    return numba.cfunc(SIGNATURE, cache=True, error_model="numpy")(function)


@register_jitable
def _drafts(c: Any) -> Drafts:
    """Those of a context."""
    return Drafts(
        carray(_pointer(c[NOTES]), (c[DRAFTS], COLUMNS), np.int64),
        carray(_pointer(c[BELOW]), (c[DRAFTS], groups(c[_ENCODE])), np.uint8),
        carray(_pointer(c[EXPECTED]), 1, np.int64),
    )


@cache
def _encode(kind: Any, unsigned: Any) -> Any:
    """``a``: the first block, ``b``: its number, ``c``: how many blocks, ``d``: the first row. Returns as `encode`."""

    def encode(context: int, first: int, number: int, count: int, row: int) -> int:
        c = carray(_pointer(context), CONTEXT, np.int64)
        e = _ENCODE
        job = kind(c[e], c[e + 1], c[e + 2], c[e + 3] != 0, c[e + 4], c[e + 5], c[e + 6], c[e + 7])
        return encode_run(
            job, carray(_pointer(c[VALUES]), c[LENGTH], unsigned), first, number, c[STEP], count,
            carray(_pointer(c[SCALES]), c[BLOCKS], np.uint8), carray(_pointer(c[REFINEMENTS]), c[BLOCKS], np.uint8),
            carray(_pointer(c[RING]), (c[ROWS], c[STRIDE]), np.uint8), row,
            carray(_pointer(c[INDICES]), (3, c[INDICES_WIDTH]), np.int64),
            carray(_pointer(c[WORDS]), 2 * padded(c[e]), np.uint32),
            carray(_pointer(c[CODES]), padded(c[e]), np.uint8),
            _drafts(c), c[SERIAL],
        )  # fmt: skip

    return _compiled(encode)


@cache
def _decode(kind: Any, unsigned: Any) -> Any:
    """Of the results numbered ``b`` to ``c`` - 1, datagrams of ``a`` bytes; ``d``: what to add to a block's number
    times `STEP`. Returns as `decode`."""

    def decode(context: int, size: int, begin: int, end: int, offset: int) -> int:
        c = carray(_pointer(context), CONTEXT, np.int64)
        e = _DECODE
        job = kind(c[e], c[e + 1], c[e + 2], c[e + 3] != 0, c[e + 4], c[e + 5] != 0, c[e + 6])
        data = carray(_pointer(c[DATA]), c[DATA_BYTES] // size * size, np.uint8)
        return decode_run(
            job, data, size, carray(_pointer(c[PLACES]), c[RESULTS], np.int64)[begin:end],
            carray(_pointer(c[NUMBERS]), c[RESULTS], np.int64)[begin:end], c[STEP], offset,
            carray(_pointer(c[VALUES]), c[LENGTH], unsigned), carray(_pointer(c[SCALES]), c[BLOCKS], np.uint8),
            carray(_pointer(c[REFINEMENTS]), c[BLOCKS], np.uint8), c[DIVISOR],
            carray(_pointer(c[INDICES]), (3, c[INDICES_WIDTH]), np.int64), carray(_pointer(c[WORDS]), c[e], np.uint32),
            carray(_pointer(c[CODES]), c[e], np.uint8),
        )  # fmt: skip

    return _compiled(decode)


@cache
def _decode_own(kind: Any, unsigned: Any) -> Any:
    """`kernels.decode_own` of ``b`` blocks, ``a`` and every `STEP`-th after it, which are in the rows from ``c`` on."""

    def decode_own(context: int, first: int, count: int, row: int, _d: int) -> int:
        c = carray(_pointer(context), CONTEXT, np.int64)
        e = _OWN_DECODE
        job = kind(c[e], c[e + 1], c[e + 2], c[e + 3] != 0, c[e + 4], c[e + 5] != 0, c[e + 6])
        indices = carray(_pointer(c[INDICES]), (3, c[INDICES_WIDTH]), np.int64)
        for i in range(count):
            indices[0, i], indices[1, i] = first + i * c[STEP], row + i
        return decode(
            job, carray(_pointer(c[RING]), (c[ROWS], c[STRIDE]), np.uint8), indices[1, :count],
            carray(_pointer(c[CONTRIBUTED]), c[LENGTH], unsigned), indices[0, :count],
            carray(_pointer(c[SCALES]), c[BLOCKS], np.uint8), carray(_pointer(c[REFINEMENTS]), c[BLOCKS], np.uint8), 1,
            carray(_pointer(c[WORDS]), c[e], np.uint32), carray(_pointer(c[CODES]), c[e], np.uint8),
        )  # fmt: skip

    return _compiled(decode_own)


@cache
def _scale(unsigned: Any, drafts: bool) -> Any:
    """Largest magnitudes and own scales of ``b`` blocks from ``a`` on, numbered on from ``c``; and their ``drafts``."""

    def scale(context: int, first: int, count: int, number: int, _d: int) -> int:
        c = carray(_pointer(context), CONTEXT, np.int64)
        e = _ENCODE
        values = carray(_pointer(c[VALUES]), c[LENGTH], unsigned)
        magnitudes = carray(_pointer(c[MAGNITUDES]), c[BLOCKS], np.uint64)
        if drafts:
            job = Natural(c[e], c[e + 1], c[e + 2], c[e + 3] != 0, c[e + 4], c[e + 5], c[e + 6], c[e + 7])
            draft_blocks(
                job, values, first, number, count, c[STEP], c[SERIAL],
                carray(_pointer(c[RING]), (c[ROWS], c[STRIDE]), np.uint8),
                _drafts(c),
                carray(_pointer(c[WORDS]), 2 * padded(c[e]), np.uint32), magnitudes,
            )  # fmt: skip
        else:
            block = values[first * c[e] : min((first + count) * c[e], c[LENGTH])]
            largest_magnitudes(block, c[e], c[FRACTION], magnitudes[first : first + count])
        scale_bytes(
            magnitudes[first : first + count], c[DITH8] != 0, c[LOWEST],
            carray(_pointer(c[OWN]), c[BLOCKS], np.uint8)[first : first + count],
        )  # fmt: skip
        return 0

    return _compiled(scale)


_WIDTHS = {np.dtype(np.uint16): np.uint16, np.dtype(np.uint32): np.uint32, np.dtype(np.uint64): np.uint64}


def addresses(job: Job) -> tuple[int, int, int]:
    """Of what encodes, decodes and finds scales for ``job``. It is compiled, or loaded, when first asked for."""
    unsigned = _WIDTHS[job.unsigned]
    sending: Any = type(job.for_encode)
    receiving: Any = type(job.for_decode)
    functions = _encode(sending, unsigned), _decode(receiving, unsigned), _scale(unsigned, job.drafts)
    encode, decode, scale = (int(function.address) for function in functions)
    return encode, decode, scale


def own_address(job: Job) -> int:
    """Of what decodes contributions, as `addresses`."""
    kind: Any = type(job.for_own)
    return int(_decode_own(kind, _WIDTHS[job.unsigned]).address)


def context_of(job: Job) -> list[int]:
    """A context that has what is the same for all operations; the rest is 0."""
    context = [0] * CONTEXT
    context[FRACTION], context[LOWEST], context[DITH8] = FRACTION_BITS[job.float_type], job.lowest_scale, int(job.dith8)
    context[ENCODING.start : ENCODING.stop] = map(int, job.for_encode)
    context[DECODING.start : DECODING.stop] = map(int, job.for_decode)
    context[OWN_DECODING.start : OWN_DECODING.stop] = map(int, job.for_own)
    return context
