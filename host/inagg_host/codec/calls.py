"""The kernels behind addresses: for loops that are compiled once, whatever the format and the type of the values.

A Numba function is compiled anew for every type that it calls a kernel with, in some 15 seconds for a loop of the size
of the host's. So the core calls by address: functions of one C signature, ``int64 f(operation, a, b, c, d)``, of which
there is one for each kind of codes and width of values. What else they need stands in ``operation``, the address of a
record that begins with the fields of `CODEC`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable
from numba.np.arrayobj import populate_array

from .bits import padded
from .coding import Coding, Natural
from .decoder import decode
from .drafts import FIRST_UNIT, NOBODYS, NOTES, Drafts, draft_blocks, groups
from .encoder import encode
from .job import Job
from .scales import largest_magnitudes, scale_bytes

# fmt: off
CODEC: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            # Of the operation, addresses: the bits of its values, of the sums, and of what this worker's codes stand
            # for (0: nobody wants to know); the agreed scales and refinements, own scales (a byte for each block),
            # largest magnitudes (eight).
            "values", "out", "contributed", "agreed", "refinement", "own", "magnitudes",
            # How many elements and blocks; what its sums are divided by; its number in this process.
            "elements", "blocks", "divisor", "serial",
            # Whether its sums go past the caches, if they are many.
            "past",
            # Elements and blocks of a piece, of which an operation has one or more, equal ones; the number of the piece
            # whose sums come here. No call is about more than one piece.
            "piece", "piece_blocks", "own_piece",
            # Where contributions are written: the address of (rows, stride) bytes, `shards` rings one after the other.
            "ring", "rows", "stride", "shards",
            # Results: the address of so many bytes, and of int64 arrays of so many elements: where results stand there,
            # and of which blocks (the shard's numbers) they are.
            "data", "data_bytes", "places", "numbers", "results",
            # Room for use inside, see `Room`: addresses.
            "words", "codes",
            # The fields of `drafts.Drafts`, addresses, and how many rows they have.
            "notes", "below", "expected", "drafts",
            # Of the job and the type of the values.
            "fraction_bits", "lowest_scale", "dith8",
            # The address of a `staged.STAGED`, of an operation that needs one.
            "staged",
        )
    ]
    + [(f"{part}_{name}", np.int64) for part in ("up", "down") for name in Coding._fields]
)
# fmt: on
"""Fields of an operation that the kernels read. ``up_...`` and ``down_...`` are the fields of `Job.for_encode` and
`Job.for_decode`."""

NOT_YET, RAISED = -3, -4
"""Results of an encoder or `_scale` if what it was asked for is still on its way (ask again), or will never come."""

_ir: Any = vars(cgutils)["ir"]
INT: Final = _ir.IntType(32)
WORD: Final = _ir.IntType(64)
_Arguments: Any = types.StarArgUniTuple
_carray: Any = vars(numba)["carray"]  # which numba does not export to type checkers
SIGNATURE: Final = types.int64(*[types.int64] * 5)


def function_at(result: Any, *kinds: Any) -> Any:
    """An intrinsic that calls the C function at an address, with arguments of these kinds: `INT` or `WORD`."""
    function = _ir.FunctionType(result, kinds).as_pointer()

    def make(_context: Any, _address: Any, *arguments: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            given = [builder.trunc(builder.extract_value(args[1], i), kind) for i, kind in enumerate(kinds)]
            return builder.zext(builder.call(builder.inttoptr(args[0], function), given), WORD)

        signature = types.int64(types.int64, _Arguments(types.int64, len(kinds)))
        return (signature, generate) if len(arguments) == len(kinds) else None

    return intrinsic(make)


def _to_pointer(_context: Any, _address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


call: Any = function_at(WORD, *[WORD] * 5)
"""``call(address, operation, a, b, c, d)``."""
_pointer: Any = intrinsic(_to_pointer)


def array_at(dtype: Any) -> Any:
    """An intrinsic that makes an array of so many of ``dtype`` of the memory at an address. It needs no run-time of
    Numba's, as `carray` does."""
    array = types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C")
    populate: Any = populate_array

    def make(_context: Any, _address: Any, _count: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            made = context.make_array(array)(context, builder)
            itemsize = context.get_constant(types.intp, np.dtype(dtype).itemsize)
            data = builder.inttoptr(args[0], made.data.type)
            populate(made, data, [args[1]], [itemsize], itemsize, None)
            return made._getvalue()

        return array(types.int64, types.int64), generate

    return intrinsic(make)


bytes_at, words_at, magnitudes_at = (array_at(dtype) for dtype in (np.uint8, np.int64, np.uint64))


def _compiled(function: Callable[..., int]) -> Any:
    return numba.cfunc(SIGNATURE, cache=True, error_model="numpy")(function)


@register_jitable
def _ring(c: Any) -> Any:
    return _carray(_pointer(c.ring), (c.rows, c.stride), np.uint8)


@register_jitable
def _up(c: Any, kind: Any) -> Any:
    return kind(
        c.up_lanes, c.up_payload_bytes, c.up_encoding, c.up_half != 0, c.up_top, c.up_refined != 0, c.up_fraction_bits,
        c.up_seed, c.up_worker,
    )  # fmt: skip


@register_jitable
def _down(c: Any, kind: Any) -> Any:
    return kind(
        c.down_lanes, c.down_payload_bytes, c.down_encoding, c.down_half != 0, c.down_top, c.down_refined != 0,
        c.down_fraction_bits, c.down_seed, c.down_worker,
    )  # fmt: skip


@register_jitable
def _drafts(c: Any) -> Drafts:
    return Drafts(
        _carray(_pointer(c.notes), (c.drafts, NOTES), np.int64),
        _carray(_pointer(c.below), (c.drafts, groups(c.up_lanes)), np.uint8),
        words_at(c.expected, 1),
    )


@register_jitable
def _piece(c: Any, address: int, piece: int, unsigned: Any, width: int) -> Any:
    """Piece number ``piece`` of the elements at ``address`` (0: there are none), as bits of ``width`` bytes."""
    return _carray(_pointer(address + piece * c.piece * width), c.piece if address != 0 else 0, unsigned)


@register_jitable
def _bytes(c: Any, address: int, piece: int) -> Any:
    """The bytes of the blocks of piece number ``piece``, of those of all blocks at ``address``."""
    return bytes_at(address + piece * c.piece_blocks, c.piece_blocks)


@cache
def _encode(kind: Any, unsigned: Any) -> Any:
    """The payloads of ``count`` blocks, ``first`` and every ``shards``-th after it, into the rows from ``row`` on; and
    what they stand for, if it is wanted. ``number``: of the first in the job. Returns as `encoder.encode`."""

    width = np.dtype(unsigned).itemsize

    def encode_blocks(operation: int, first: int, number: int, count: int, row: int) -> int:
        c = _carray(_pointer(operation), 1, CODEC)[0]
        piece, lanes = first // c.piece_blocks, padded(c.up_lanes)
        return encode(
            _up(c, kind), _piece(c, c.values, piece, unsigned, width), first - piece * c.piece_blocks, number, c.shards,
            count, _bytes(c, c.agreed, piece), _bytes(c, c.refinement, piece), _ring(c), row,
            _carray(_pointer(c.words), 2 * lanes, np.uint32), bytes_at(c.codes, lanes), _drafts(c), c.serial,
            _piece(c, c.contributed, piece, unsigned, width),
        )  # fmt: skip

    return _compiled(encode_blocks)


@cache
def _decode(kind: Any, unsigned: Any) -> Any:
    """The results numbered ``begin`` to ``end`` - 1, datagrams of ``size`` bytes, to the sums of the own piece, which
    has their blocks; ``offset``: what to add to a block's number times ``shards``. Results of other pieces are not for
    this. Returns how many codes name no level."""

    def decode_blocks(operation: int, size: int, begin: int, end: int, offset: int) -> int:
        c = _carray(_pointer(operation), 1, CODEC)[0]
        return decode(
            _down(c, kind), bytes_at(c.data, c.data_bytes // size * size), size,
            words_at(c.places, c.results)[begin:end],
            words_at(c.numbers, c.results)[begin:end], c.shards, offset - c.own_piece * c.piece_blocks,
            _carray(_pointer(c.out), c.piece, unsigned), _bytes(c, c.agreed, c.own_piece),
            _bytes(c, c.refinement, c.own_piece), c.divisor,
            _carray(_pointer(c.words), c.down_lanes, np.uint32), bytes_at(c.codes, c.down_lanes), c.past != 0,
        )  # fmt: skip

    return _compiled(decode_blocks)


@cache
def _scale(unsigned: Any, drafts: bool) -> Any:
    """Largest magnitudes and own scales of ``count`` blocks from ``first`` on, numbered on from ``number``; and their
    ``drafts``."""

    width = np.dtype(unsigned).itemsize

    def scale(operation: int, first: int, count: int, number: int, _d: int) -> int:
        c = _carray(_pointer(operation), 1, CODEC)[0]
        piece = first // c.piece_blocks
        before = piece * c.piece_blocks
        values, first = _piece(c, c.values, piece, unsigned, width), first - before
        magnitudes = magnitudes_at(c.magnitudes + 8 * before, c.piece_blocks)
        if drafts:
            draft_blocks(
                _up(c, Natural), values, first, number, count, c.shards, c.serial, _ring(c), _drafts(c), magnitudes,
                _piece(c, c.contributed, piece, unsigned, width),
            )  # fmt: skip
        else:
            part = values[first * c.up_lanes : min((first + count) * c.up_lanes, c.piece)]
            largest_magnitudes(part, c.up_lanes, c.fraction_bits, magnitudes[first : first + count])
        scale_bytes(
            magnitudes[first : first + count], c.dith8 != 0, c.lowest_scale,
            _bytes(c, c.own, piece)[first : first + count],
        )  # fmt: skip
        return 0

    return _compiled(scale)


_WIDTHS = {np.dtype(np.uint16): np.uint16, np.dtype(np.uint32): np.uint32, np.dtype(np.uint64): np.uint64}


class Addresses(NamedTuple):
    """Addresses of a job's kernels. ``tell`` is told that the scales of a chunk are agreed on, or their refinements:
    ``int64 tell(operation, phase, chunk, 0, 0)``; 0: nobody needs to know."""

    encode: int
    decode: int
    scale: int
    tell: int


def addresses(job: Job) -> Addresses:
    """Compiled, or loaded, when first asked for."""
    unsigned = _WIDTHS[job.unsigned]
    kind: Any = type(job.for_encode)
    functions = _encode(kind, unsigned), _decode(kind, unsigned), _scale(unsigned, job.drafts)
    encode, decode, scale = (int(function.address) for function in functions)
    return Addresses(encode, decode, scale, tell=0)


class Room:
    """Memory that the kernels use inside, for the operations of one job and one type of values, one at a time."""

    def __init__(self, job: Job, rows: int) -> None:
        """``rows``: of all rings together, for drafts."""
        self.job, lanes, drafted = job, padded(job.lanes), rows if job.drafts else 0
        self.arrays: dict[str, npt.NDArray[Any]] = {
            "words": np.empty(2 * lanes, np.uint32),
            "codes": np.empty(lanes, np.uint8),
            "notes": np.full((drafted, NOTES), NOBODYS, np.int64),
            "below": np.empty((drafted, groups(job.lanes)), np.uint8),
            "expected": np.full(1, FIRST_UNIT, np.int64),
        }
        self._fields = {
            "drafts": drafted, "fraction_bits": job.float_type.fraction_bits,
            "lowest_scale": job.lowest_scale, "dith8": job.dith8,
            **{name: array.ctypes.data for name, array in self.arrays.items()},
            **{f"{part}_{name}": value
               for part, coding in (("up", job.for_encode), ("down", job.for_decode))
               for name, value in coding._asdict().items()},
        }  # fmt: skip

    @cached_property
    def kernels(self) -> Addresses:
        """`addresses`."""
        return addresses(self.job)

    def describe(self, operation: Any) -> None:
        """Write what is the same for all of its operations into the record of one (see `CODEC`)."""
        for name, value in self._fields.items():
            operation[name] = value
