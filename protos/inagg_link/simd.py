"""Vectors of uint32 as values in compiled loops, for what Numba's own vectorization does in twice the instructions or
not at all: narrowing to bytes, hashes that several vectors share. As `jit`, it needs Numba.

They are vectors of LLVM's, which it maps to what the processor has: one register of AVX-512 or AVX2, two of SSE or
NEON. Vectors have the operators + - * & | ^ << >>, modulo 2**32, with each other and with integers; shifts are by less
than 32. What loops compute must not depend on `LANES`: all processors give the same bits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, overload, register_jitable, register_model

from . import first_start as compiling  # noqa: F401  # finds where compiled code can be kept

_target: Any = cpu_target  # without types


def _processor_has(feature: str) -> bool:
    """Whether Numba compiles for it, by LLVM's name: what this processor has, or what NUMBA_CPU_FEATURES says."""
    return f"+{feature}" in _target.target_context.codegen().magic_tuple()[2].split(",")


LANES: Final = 16 if _processor_has("avx512vbmi") else 8
"""Words of a vector. Sixteen fill a register of AVX-512, which takes half the instructions and, where registers are
calculated with whole, half the time. Of those processors that have it the first ones do not shuffle bytes (VBMI), and
slow down for a while after each use."""
STREAM_BYTES: Final = 16
"""Addresses of `stream` are multiples of this."""

ir: Any = vars(cgutils)["ir"]  # llvmlite.ir

_WORD: Any = ir.IntType(32)
_VECTOR: Any = ir.VectorType(_WORD, LANES)
_BYTE: Any = ir.IntType(8)
_BYTES: Any = ir.VectorType(_BYTE, 4 * LANES)
_HALVES: Any = ir.VectorType(ir.IntType(16), 2 * LANES)
_FLOATS: Any = ir.VectorType(ir.FloatType(), LANES)
_WHOLE: Any = ir.IntType(32 * LANES)


class _Words(types.Type):
    def __init__(self) -> None:
        super().__init__(f"u32x{LANES}")


words: Final = _Words()


@register_model(_Words)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call]


def _constant(kind: Any, numbers: Any) -> Any:
    return ir.Constant(kind, list(numbers))


def _order(indices: Any) -> Any:
    """Indices for LLVM's shuffles."""
    return _constant(ir.VectorType(_WORD, len(indices)), indices)


def _splat(_context: Any, x: Any) -> Any:
    """All lanes ``x``, modulo 2**32."""

    def generate(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = args[0] if signature.args[0].bitwidth == 32 else builder.trunc(args[0], _WORD)
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        first = builder.insert_element(undefined, x, _WORD(0))
        return builder.shuffle_vector(first, undefined, _order([0] * LANES))

    return (words(x), generate) if x in (types.uint32, types.int32, types.uint64, types.int64) else None


def _counting(_context: Any) -> Any:
    """0, 1, 2 and so on."""
    return words(), lambda _context, _builder, _signature, _args: _constant(_VECTOR, range(LANES))


splat: Any = intrinsic(_splat)
counting: Any = intrinsic(_counting)


# --- of vectors alone ---


def _of_one(build: Callable[..., Any], result: Any = words) -> Any:
    """A function of a vector, which gives a ``result``: ``build`` adds its instructions to LLVM's builder."""

    def typed(_context: Any, x: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return build(builder, *args)

        return (result(words), generate) if x == words else None

    return intrinsic(typed)


def _of_two(build: Callable[..., Any]) -> Any:
    """A function of two vectors, which gives a third."""

    def typed(_context: Any, a: Any, b: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return build(builder, *args)

        return (words(words, words), generate) if a == b == words else None

    return intrinsic(typed)


def _as(kind: Any, build: Callable[..., Any]) -> Callable[..., Any]:
    """``build`` of vectors' bits as those of ``kind``, another type of vector; its result as bits."""

    def of_bits(builder: Any, *vectors: Any) -> Any:
        return builder.bitcast(build(builder, *(builder.bitcast(x, kind) for x in vectors)), _VECTOR)

    return of_bits


def _instruction(name: str) -> Callable[..., Any]:
    """One of the builder's methods."""
    return lambda builder, *values: getattr(builder, name)(*values)


def _llvm(builder: Any, name: str, result: Any, args: Any) -> Any:
    """Call one of LLVM's functions."""
    declared: Any = vars(cgutils)["get_or_insert_function"]
    function = ir.FunctionType(result, [a.type for a in args])
    return builder.call(declared(builder.module, function, f"llvm.{name}"), args)


def _call(builder: Any, name: str, result: Any, args: Any) -> Any:
    """Call one of those for vectors of integers."""
    kind = args[0].type
    return _llvm(builder, f"{name}.v{kind.count}i{kind.element.width}", result, args)


def _called(name: str) -> Callable[..., Any]:
    """One of these that gives a vector as it takes."""
    return lambda builder, *values: _call(builder, name, values[0].type, values)


def _define(symbol: Callable[[Any, Any], Any], name: str) -> None:
    instruction = _of_two(_instruction(name))

    def of_vectors(a: Any, b: Any) -> Any:
        if a == words and b == words:
            return lambda a, b: instruction(a, b)
        if a == words and isinstance(b, types.Integer):
            return lambda a, b: instruction(a, splat(b))
        return None

    overload(symbol, strict=False)(of_vectors)


for _symbol, _name in (
    (operator.add, "add"), (operator.sub, "sub"), (operator.mul, "mul"), (operator.and_, "and_"),
    (operator.or_, "or_"), (operator.xor, "xor"), (operator.lshift, "shl"), (operator.rshift, "lshr"),
):  # fmt: skip
    _define(_symbol, _name)


def _shuffled(builder: Any, x: Any, order: Sequence[int]) -> Any:
    return builder.shuffle_vector(x, x, _order(order))


def rearranged(order: Sequence[int]) -> Any:
    """A function of a vector: its bytes in another order, or some of them more than once. Byte ``order[i]`` goes to i,
    both counted from the low byte of the first lane."""
    return _of_one(_as(_BYTES, lambda builder, x: _shuffled(builder, x, order)))


larger, smaller = _of_two(_called("umax")), _of_two(_called("umin"))
"""The larger or the smaller of two vectors, lane by lane."""
halved = _of_one(lambda builder, x: builder.ashr(x, _constant(_VECTOR, [1] * LANES)))
"""Shifted to the right by one bit, with its sign."""
float_of = _of_one(lambda builder, x: builder.bitcast(builder.sitofp(x, _FLOATS), _VECTOR))
"""Each lane, an int32, as the bits of the nearest float32."""
float_sum, float_product, float_quotient = (_of_two(_as(_FLOATS, _instruction(n))) for n in ("fadd", "fmul", "fdiv"))
"""Sum, product and quotient of two vectors, lane by lane; all are bits of float32."""
doubled = _of_one(_as(_HALVES, lambda builder, x: builder.add(x, x)))
"""Each half of a lane shifted to the left by one bit."""
bytes_less, smaller_bytes = (_of_two(_as(_BYTES, _called(name))) for name in ("usub.sat", "umin"))
"""Each byte of one less that of the other, or zero; the smaller of the two."""


@register_jitable
def upper_halves(low: Any, high: Any) -> Any:
    """The upper 16 bits of each lane: of ``low`` in the lower half, of ``high`` in the upper one."""
    return (high & 0xFFFF0000) | (low >> 16)


@register_jitable
def upper_bytes(low: Any, high: Any) -> Any:
    """The upper 8 bits of each half: of ``low`` in the lower byte, of ``high`` in the upper one."""
    return (high & 0xFF00FF00) | ((low >> 8) & 0x00FF00FF)


# --- all lanes of one ---


def _of_all(name: str, lanes: Any) -> Any:
    """The intrinsic of LLVM that makes one of all ``lanes``, a type of vector."""

    def build(builder: Any, x: Any) -> Any:
        return builder.zext(_call(builder, name, lanes.element, [builder.bitcast(x, lanes)]), _WORD)

    return _of_one(build, types.uint32)


any_set = _of_one(lambda builder, x: builder.icmp_unsigned("!=", builder.bitcast(x, _WHOLE), _WHOLE(0)), types.boolean)
"""Whether a bit is set."""
largest, smallest_byte = _of_all("vector.reduce.umax", _VECTOR), _of_all("vector.reduce.umin", _BYTES)
"""The largest lane, or the smallest byte, uint32."""


# --- memory, of which no bound is checked ---


def _pointer(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    """Pointer to the elements of an array from an index on, as one of ``kind``."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())


def _is_row(array: Any, *dtypes: Any) -> bool:
    return isinstance(array, types.Array) and array.dtype in dtypes and array.ndim == 1 and array.layout == "C"


def _memory(
    build: Callable[..., Any], kind: Any = _VECTOR, of: Any = (types.uint32, types.uint8), *,
    stores: bool = False, counted: bool = False,
) -> Any:  # fmt: skip
    """A function of an array of one of the types ``of``, an index, a vector if it ``stores`` one, and a number of lanes
    if they are ``counted``; it gives a vector if it does not store. ``build`` gets LLVM's builder, a pointer to what is
    there, as ``kind``, the bytes of an element, and the rest."""

    def typed(array: Any, *rest: Any) -> Any:
        if not _is_row(array, *of) or (stores and rest[0] != words):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = _pointer(context, builder, signature, args, kind)
            value = build(builder, at, int(array.dtype.bitwidth) // 8, *args[2:])
            return context.get_dummy_value() if stores else value

        numbers = (types.intp,) if counted else ()
        return (types.none if stores else words)(array, types.intp, *rest[: int(stores)], *numbers), generate

    # Numba takes the number of arguments from these.
    def two(_context: Any, array: Any, at: Any) -> Any:
        return typed(array)

    def three(_context: Any, array: Any, at: Any, last: Any) -> Any:
        return typed(array, last)

    def four(_context: Any, array: Any, at: Any, x: Any, count: Any) -> Any:
        return typed(array, x, count)

    return intrinsic((two, three, four)[stores + counted])


def _first(builder: Any, count: Any, lanes: Any) -> Any:
    """A mask for ``lanes``, a type of vector: the first ``count``, or none if it is less than 1."""
    undefined = ir.Constant(lanes, ir.Undefined)
    # Compared in the lanes' own width, for which there is an instruction. A count fits into each.
    counts = builder.insert_element(undefined, builder.trunc(count, lanes.element), _WORD(0))
    counts = builder.shuffle_vector(counts, undefined, _order([0] * lanes.count))
    return builder.icmp_signed("<", _constant(lanes, range(lanes.count)), counts)


def _store_masked(builder: Any, to: Any, align: int, x: Any, count: Any) -> None:
    kind = f"v{x.type.count}i{x.type.element.width}"
    mask = _first(builder, count, x.type)
    _llvm(builder, f"masked.store.{kind}.p0{kind}", ir.VoidType(), [x, to, _WORD(align), mask])


def _load_masked(builder: Any, of: Any, align: int, count: Any) -> Any:
    zeros, name = _constant(_VECTOR, [0] * LANES), f"masked.load.v{LANES}i32.p0v{LANES}i32"
    return _llvm(builder, name, _VECTOR, [of, _WORD(align), _first(builder, count, _VECTOR), zeros])


def _store_past(builder: Any, to: Any, _align: int, x: Any) -> None:
    each = STREAM_BYTES // 4
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    past = builder.module.add_metadata([_WORD(1)])
    for i in range(LANES // each):  # aligned to its size the vector would go in one, but numpy's memory is to 16
        part = builder.shuffle_vector(x, undefined, _order(range(i * each, (i + 1) * each)))
        stored = builder.store(part, builder.gep(to, [_WORD(i)]), align=STREAM_BYTES)
        stored.set_metadata("nontemporal", past)


def _bytes_in_order(builder: Any, x: Any) -> Any:
    # On a machine with the high byte first in memory, which Numba does not know, it would be the reverse.
    order = [4 * (k % LANES) + k // LANES for k in range(4 * LANES)]
    return _shuffled(builder, builder.bitcast(x, _BYTES), order)


def _fence(_context: Any) -> Any:
    """Have others see what `stream` has written before anything that is written from now on."""

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), generate


def _prefetch(_context: Any, array: Any, at: Any) -> Any:
    """Ask for the cache line of element ``at`` of ``array``, which may be beyond its end."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _pointer(context, builder, signature, args, _BYTE)
        read, keep, data = _WORD(0), _WORD(3), _WORD(1)
        _llvm(builder, "prefetch.p0i8", ir.VoidType(), [address, read, keep, data])
        return context.get_dummy_value()

    return types.none(array, types.intp), generate


_U8: Any = (types.uint8,)
load = _memory(lambda builder, of, align: builder.load(of, align=align))
"""`LANES` elements of an array from an index on, if it is of uint32; four times as many, four a lane, of uint8."""
load_first = _memory(_load_masked, counted=True)
"""The first so many lanes of what `load` takes; the others are zero, and of them nothing is read."""
load_signed = _memory(
    lambda builder, of, _align: builder.sext(builder.load(of, align=1), _VECTOR), ir.VectorType(_BYTE, LANES), _U8
)
"""`LANES` elements of an array of uint8, as int8 whose sign is in all higher bits."""
store = _memory(lambda builder, to, align, x: builder.store(x, to, align=align), stores=True)
"""A vector to where `load` takes it from."""
store_first = _memory(_store_masked, stores=True, counted=True)
"""The first so many lanes to where `load_first` takes them from; of the others nothing is written."""
store_bytes = _memory(
    lambda builder, to, _align, x: builder.store(_bytes_in_order(builder, x), to, align=1), _BYTES, _U8, stores=True
)
"""The bytes of a vector to the elements of an array of uint8: first the low byte of each lane, then the second of each,
and so on. So four vectors of bytes, shifted and merged, are narrowed in one go."""
store_first_bytes = _memory(
    lambda builder, to, align, x, count: _store_masked(builder, to, align, _bytes_in_order(builder, x), count),
    _BYTES, _U8, stores=True, counted=True,
)  # fmt: skip
"""The first so many of the bytes that `store_bytes` stores."""
stream = _memory(_store_past, ir.VectorType(_WORD, STREAM_BYTES // 4), (types.uint32,), stores=True)
"""Store as `store` does, past the caches, for what nobody reads soon: a line that is written whole is then not read
first. The array is of uint32, and the address a multiple of `STREAM_BYTES`. To be followed by `fence`."""
fence: Any = intrinsic(_fence)
prefetch: Any = intrinsic(_prefetch)
