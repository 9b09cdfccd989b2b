"""What the proofs of the number formats share: exact values, enumerated noise, and the rounding rule in fractions.

Nothing here uses the codec's own arithmetic for what it is compared with: levels, neighbours and probabilities are
worked out with `fractions.Fraction` from the definition of a format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inagg_wire import codec, noise, noise_keys, payload, reencode, scale
from inagg_wire.formats import FORMATS, Family, JobFormat
from inagg_wire.layout import Encoding, Op
from inagg_wire.scale import Floats, FloatType, Unit

ALL_FORMATS = list(FORMATS.values())
NATURAL = [f for f in ALL_FORMATS if f.family is Family.NATURAL]
REFINED = [f for f in ALL_FORMATS if f.refined]
WORKER_COUNTS = range(1, 33)

Words = npt.NDArray[np.uint32]


class Shape(NamedTuple):
    """IEEE 754 parameters of a float type (bfloat16: those of its hardware)."""

    mantissa_bits: int
    """Bits after the leading one."""
    smallest_normal: Fraction
    largest: Fraction


def _two(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


SHAPES = {
    FloatType.FLOAT16: Shape(10, _two(-14), (2 - _two(-10)) * _two(15)),
    FloatType.BFLOAT16: Shape(7, _two(-126), (2 - _two(-7)) * _two(127)),
    FloatType.FLOAT32: Shape(23, _two(-126), (2 - _two(-23)) * _two(127)),
    FloatType.FLOAT64: Shape(52, _two(-1022), (2 - _two(-52)) * _two(1023)),
}


def smallest(float_type: FloatType) -> Fraction:
    """The smallest subnormal."""
    return _two(float_type.value)


# --- floats and fractions -------------------------------------------------------------------------------


def fractions(values: Floats, float_type: FloatType) -> list[Fraction]:
    """The values of an array of ``float_type``, exactly."""
    if float_type is FloatType.BFLOAT16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return [Fraction(v) for v in values.astype(np.float64).tolist()]


def representable(x: Fraction, float_type: FloatType) -> bool:
    """Whether ``float_type`` has the finite value ``x``."""
    if x == 0:
        return True
    shape, magnitude = SHAPES[float_type], abs(x)
    if magnitude > shape.largest or (magnitude / smallest(float_type)).denominator != 1:
        return False
    integer = magnitude.numerator  # a dyadic number: its odd part must fit the mantissa
    return (integer // (integer & -integer)).bit_length() <= shape.mantissa_bits + 1


def floats(exact: Iterable[Fraction], float_type: FloatType) -> Floats:
    """An array of ``float_type``, uint16 for bfloat16; all values must be representable."""
    listed = list(exact)
    assert all(representable(x, float_type) for x in listed)
    if float_type is FloatType.BFLOAT16:
        return bfloat16(np.array([float(x) for x in listed], np.float32))
    return np.array([float(x) for x in listed], float_type.dtype)


def bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper halves of float32 values: exact if they have no more bits."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def nearest(x: Fraction, float_type: FloatType) -> Fraction | float:
    """``x`` rounded to ``float_type``, to nearest even (IEEE 754, section 4.3.1), infinity beyond its range."""
    if x == 0:
        return Fraction(0)
    shape, magnitude = SHAPES[float_type], abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < _two(exponent):
        exponent -= 1
    grain = max(_two(exponent - shape.mantissa_bits), smallest(float_type))
    rounded = round(magnitude / grain) * grain  # Fraction's round() is to even
    sign = 1 if x > 0 else -1
    return sign * rounded if rounded <= shape.largest else sign * float("inf")


# --- levels ---------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """Where a magnitude lies between two levels, in units: ``below`` <= y < ``above``, p of the way."""

    below: int
    above: int
    p: Fraction


def step(fmt: JobFormat, y: Fraction) -> Step:
    """The levels around the magnitude ``y`` (in units), and the probability to round up that is unbiased."""
    if fmt.family is Family.LINEAR:
        below = int(y)
        above = below + 1
    elif y < 1:
        below, above = 0, 1
    else:
        below = 1 << (int(y).bit_length() - 1)
        above = 2 * below
    return Step(below, above, (y - below) / (above - below))


def unit_value(unit: Unit) -> Fraction:
    """The unit, exactly."""
    return unit.mantissa * _two(unit.exponent)


def agreed_unit(fmt: JobFormat, workers: int, blocks: Sequence[Floats], float_type: FloatType) -> Unit | None:
    """The unit that the workers with ``blocks`` agree on: both scale rounds, through the switch's MAX."""
    own = [scale.scale_byte(fmt, workers, b, float_type) for b in blocks]
    agreed = switch_max(fmt, workers, own)
    refinements = [scale.refine_byte(fmt, b, float_type, o, agreed) for b, o in zip(blocks, own, strict=True)]
    return scale.unit(fmt, workers, agreed, switch_max(fmt, workers, refinements) if fmt.refined else 0)


def unit_for(fmt: JobFormat, workers: int, largest: Fraction, float_type: FloatType) -> Unit:
    """The unit of blocks whose largest magnitude is ``largest``, which must be finite and not zero."""
    unit = agreed_unit(fmt, workers, [floats([largest], float_type)] * workers, float_type)
    assert unit is not None
    assert unit.mantissa
    return unit


def switch_max(fmt: JobFormat, workers: int, scale_bytes: Sequence[int]) -> int:
    """One scale block through payload, switch and payload again."""
    accumulators = np.zeros(8, np.int64)
    for byte in scale_bytes:
        codes = payload.unpack(Encoding.SCALE8, payload.pack(Encoding.SCALE8, np.full(8, byte, np.uint32)))
        integers, invalid = reencode.contribution_integers(Op.MAX, fmt, workers, codes)
        assert invalid == 0
        accumulators = reencode.combine(Op.MAX, accumulators, integers)
    result = reencode.result_codes(Op.MAX, fmt, workers, accumulators, np.full(8, 0xFFFFFFFF, np.uint32))
    (byte,) = set(payload.unpack(Encoding.SCALE8, payload.pack(Encoding.SCALE8, result)).tolist())
    return int(byte)


def contribution(fmt: JobFormat, workers: int, codes: payload.Codes) -> reencode.Integers:
    """The integers that the switch reads from codes, none of which may be invalid."""
    integers, invalid = reencode.contribution_integers(Op.SUM, fmt, workers, codes)
    assert invalid == 0
    return integers


# --- noise ----------------------------------------------------------------------------------------------


def spelled(*words: Words) -> codec.Noise:
    """Noise whose word i is ``words[i]``; to ask for a further one is a failure."""

    def word(index: int) -> Words:
        assert index < len(words), f"noise word {index} was needed"
        return words[index]

    return word


def all_words(width: int, low_bits: int = 0) -> Words:
    """Every noise word of ``width`` bits, as the top bits of 32; ``low_bits`` fills the rest."""
    words = np.arange(1 << width, dtype=np.uint32) << np.uint32(32 - width)
    return words | np.uint32(low_bits & ((1 << (32 - width)) - 1))


# --- a whole all-reduce ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What one block went through."""

    decoded: Floats
    unit: Unit | None
    sent: list[reencode.Integers]
    """Each worker's levels, as the switch read them."""
    result: reencode.Integers
    """The levels of the result, in units of a contribution."""
    up_bytes: int
    down_bytes: int


def all_reduce(
    fmt: JobFormat, blocks: Sequence[Floats], float_type: FloatType, seed: int = 1, block: int = 0
) -> Outcome:
    """One block of every worker through encoder, payload, switch, payload and decoder."""
    workers, lanes = len(blocks), blocks[0].size
    unit = agreed_unit(fmt, workers, blocks, float_type)
    slot, generation = block % 64, 1 + block // 64
    accumulators, sent, up_bytes = np.zeros(lanes, np.int64), [], 0
    for worker, values in enumerate(blocks):
        if unit is None:  # not encoded; what is sent does not matter
            codes = np.zeros(lanes, np.uint32)
        else:
            codes = codec.encode(values, float_type, fmt, workers, unit, host_noise(seed, worker, block, lanes))
        packed = payload.pack(fmt.up, codes)
        sent.append(contribution(fmt, workers, payload.unpack(fmt.up, packed)))
        accumulators = reencode.combine(Op.SUM, accumulators, sent[-1])
        up_bytes = len(packed)
    words = noise.switch_words(seed, slot, generation, lanes)
    down = fmt.down(workers)
    packed = payload.pack(down, reencode.result_codes(Op.SUM, fmt, workers, accumulators, words))
    codes = payload.unpack(down, packed)
    result, invalid = reencode.integers(down, codes, fmt.result_levels(workers))
    assert invalid == 0
    decoded = codec.decode(codes, float_type, fmt, workers, unit)
    return Outcome(decoded, unit, sent, result << fmt.result_shift(workers), up_bytes, len(packed))


def host_noise(seed: int, worker: int, block: int, lanes: int) -> Callable[[int], Words]:
    """The noise of one block of one worker."""
    key = noise_keys.block_key(seed, worker, block)
    return lambda index: noise.host_words(key, lanes, index)


def named(value: Any) -> str:
    """How a parameter shows in a test's name."""
    return value.name.lower() if isinstance(value, FloatType | JobFormat) else str(value)
