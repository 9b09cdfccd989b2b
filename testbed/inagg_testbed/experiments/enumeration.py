"""Distributions of the encoder and of the switch, exactly: all the noise that can matter, one word after the other."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from inagg_wire import codec, reencode, scale
from inagg_wire.formats import JobFormat
from inagg_wire.layout import Op
from inagg_wire.scale import FloatType, Unit

Distribution = dict[Fraction, Fraction]
"""Value -> probability."""

WIDTH = 10
"""Bits of mantissa of the inputs that are enumerated. As many bits of noise decide about them."""


def unit_for(fmt: JobFormat, largest: float) -> Unit:
    """The unit that one worker with ``largest`` as its largest magnitude agrees on with itself."""
    values = np.array([largest], np.float32)
    own = scale.scale_byte(fmt, 1, values, FloatType.FLOAT32)
    refinement = scale.refine_byte(fmt, values, FloatType.FLOAT32, own, own) if fmt.refined else 0
    unit = scale.unit(fmt, 1, own, refinement)
    assert unit is not None
    return unit


def encoder_integers(fmt: JobFormat, unit: Unit, inputs: Sequence[float], width: int = WIDTH) -> npt.NDArray[np.int64]:
    """Return integers that the switch reads from the encoder's codes, in units: shape (2^width noise words, inputs).

    The rounding probabilities of ``inputs`` must be multiples of 2^-width, else a second word would be needed, and
    this raises ValueError.
    """

    def word(index: int) -> npt.NDArray[np.uint32]:
        if index:
            raise ValueError(f"an input needs more than {width} bits of noise")
        return noise

    words = np.arange(1 << width, dtype=np.uint32) << np.uint32(32 - width)
    noise = np.repeat(words, len(inputs))
    values = np.tile(np.array(inputs, np.float32), words.size)
    codes = codec.encode(values, FloatType.FLOAT32, fmt, 1, unit, word)
    integers, invalid = reencode.contribution_integers(Op.SUM, fmt, 1, codes)
    assert invalid == 0
    return integers.reshape(words.size, len(inputs))


def switch_integers(fmt: JobFormat, workers: int, sums: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Return integers that the switch makes of ``sums``, in units of a contribution, for all noise of ``bits`` bits.

    Shape (sums, 2^bits). All the noise of a sum is as many bits as the position of its leading one.
    """
    noise = np.arange(1 << bits, dtype=np.uint32)
    codes = reencode.result_codes(Op.SUM, fmt, workers, np.repeat(sums, noise.size), np.tile(noise, sums.size))
    integers, invalid = reencode.integers(fmt.down(workers), codes, fmt.result_levels(workers))
    assert invalid == 0
    return (integers << fmt.result_shift(workers)).reshape(sums.size, noise.size)


def counted(outcomes: npt.NDArray[np.int64]) -> Distribution:
    """The distribution of equally likely integers."""
    values, counts = np.unique(outcomes, return_counts=True)
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return {Fraction(v): Fraction(c, outcomes.size) for v, c in pairs}


def natural_compression(x: Fraction) -> Distribution:
    """C_nat (Horvath et al. 2019, definition 2) of any x."""
    magnitude, sign = abs(x), 1 if x > 0 else -1
    if not x:
        return {x: Fraction(1)}
    below = Fraction(2) ** (magnitude.numerator.bit_length() - magnitude.denominator.bit_length())
    below = below if below <= magnitude else below / 2
    p = (magnitude - below) / below
    return {sign * below: 1 - p} | ({sign * 2 * below: p} if p else {})


def standard_dithering(y: Fraction, u: int) -> Distribution:
    """D_sta with levels j / u, of 0 <= y <= 1 (the share of the norm)."""
    below = Fraction(int(y * u), u)
    p = (y - below) * u
    return {below: 1 - p} | ({below + Fraction(1, u): p} if p else {})


def natural_dithering(y: Fraction, s: int) -> Distribution:
    """D_nat with levels 0, 2^(1-s), ..., 1/2, 1, of 0 <= y <= 1."""
    lowest = Fraction(2) ** (1 - s)
    if y >= lowest:
        return natural_compression(y)
    return {Fraction(0): 1 - y / lowest} | ({lowest: y / lowest} if y else {})


def composed(y: Fraction, s: int) -> Distribution:
    """C_nat of D_sta with 2^(s-1) levels, of 0 <= y <= 1."""
    result: Distribution = {}
    for middle, weight in standard_dithering(y, 1 << (s - 1)).items():
        for value, p in natural_compression(middle).items():
            result[value] = result.get(value, Fraction(0)) + weight * p
    return result
