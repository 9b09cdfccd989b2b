"""Inputs that make the noise tie: word 0 of the lane and the top of the fraction add up to all ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from inagg_wire.codec import carries
from inagg_wire.formats import FORMATS, Family, JobFormat
from inagg_wire.noise import MULTIPLIER_1, MULTIPLIER_2, host_words
from inagg_wire.noise_keys import BlockKey
from inagg_wire.scale import Floats, FloatType, Unit, unit, widen

from .common import cast

_MASK = 0xFFFFFFFF
LANES = 8
LANE = 5


@dataclass(frozen=True)
class Tie:
    """One block in which ``lane`` ties."""

    what: str
    fmt: JobFormat
    workers: int
    float_type: FloatType
    unit: Unit
    key: BlockKey
    values: Floats
    lane: int = LANE


def _unshift(x: int, by: int) -> int:
    """The y with y ^ (y >> by) == x, for by >= 15."""
    return x ^ (x >> by) ^ (x >> 2 * by)


def key_for(word: int, k1: int, lane: int) -> BlockKey:
    """The key with that ``k1`` under which noise word 0 of ``lane`` is ``word``: the hash backwards."""
    x = _unshift(word, 16) * pow(MULTIPLIER_2, -1, 1 << 32) & _MASK
    x = _unshift(x - k1 & _MASK, 15) * pow(MULTIPLIER_1, -1, 1 << 32) & _MASK
    return BlockKey(_unshift(x, 16) - lane & _MASK, k1)


def _fraction(x: float, fmt: JobFormat, u: Unit) -> Fraction:
    """p of a magnitude."""
    y = Fraction(x) / (Fraction(u.mantissa) * Fraction(2) ** u.exponent)
    if fmt.family is Family.NATURAL and y >= 1:
        y /= 1 << (int(y).bit_length() - 1)
    return y % 1


def _tie(name: str, workers: int, float_type: FloatType, y: float, where: str) -> Iterator[Tie]:
    """Two blocks with the same values, in which lane 5 ties: word 1 decides, once up and once not."""
    fmt = FORMATS[name]
    u = unit(fmt, workers, 126, 100 if fmt.refined else 0)
    assert u is not None
    values = cast([y * float(u) * sign for sign in (1, -1, 1, -1, 1, -1, 1, -1)], float_type)
    magnitude = abs(float(widen(values, float_type)[LANE]))
    p = _fraction(magnitude, fmt, u)
    assert (p * 2**32) % 1, "all bits of p are in its top 32: no tie"
    wanted = {True: "up", False: "not up"}
    for k1 in range(1 << 20):
        key = key_for(_MASK - int(p * 2**32), k1, LANE)
        words = [int(host_words(key, LANES, i)[LANE]) for i in range(4)]
        assert int(p * 2**32) + words[0] == _MASK
        if up := wanted.pop(carries(p, words.__getitem__), ""):
            what = f"{name}, {float_type.name.lower()}: a tie {where}, word 1 says {up}"
            yield Tie(what, fmt, workers, float_type, u, key, values)
        if not wanted:
            return
    raise AssertionError("no key found")


def _double_ties() -> Iterator[Tie]:
    """Word 1 ties as well: below the lowest level p can have 32 zeros, then float64's 53 bits."""
    fmt, float_type = FORMATS["nat8"], FloatType.FLOAT64
    u = unit(fmt, 2, 120)
    assert u is not None
    key = key_for(_MASK, 7, LANE)
    second = _MASK - int(host_words(key, LANES, 1)[LANE])
    for rest, says in ((1 - 2.0**-20, "up"), (2.0**-20, "not up")):
        values = np.full(LANES, (second + rest) * 2.0**-64 * float(u))
        yield Tie(f"nat8, float64: a tie in words 0 and 1, word 2 says {says}", fmt, 2, float_type, u, key, values)


def make() -> Iterator[Tie]:
    """All ties."""
    yield from _tie("nat8", 2, FloatType.FLOAT64, 3.1415926535897931 * 1000, "between levels")
    yield from _tie("nat8", 2, FloatType.FLOAT64, 0.1, "below the lowest level")
    yield from _tie("nat8", 2, FloatType.FLOAT32, 0.0001, "below the lowest level")
    yield from _tie("nat4", 3, FloatType.FLOAT64, 23.456789, "between levels")
    yield from _tie("nat4", 3, FloatType.BFLOAT16, 2.0**-30 * 1.2345, "below the lowest level")
    yield from _tie("tern", 3, FloatType.FLOAT32, 0.7, "between zero and one")
    yield from _tie("tern", 3, FloatType.FLOAT16, 0.7, "between zero and one")
    yield from _tie("dith8", 3, FloatType.FLOAT32, 100.3, "between levels")
    yield from _tie("dith8", 8, FloatType.FLOAT64, 1.0 / 3, "below the lowest level")
    yield from _tie("fix32", 2, FloatType.FLOAT64, 123456.789, "between levels")
    yield from _tie("fix32", 2, FloatType.FLOAT32, 0.0001, "below the lowest level")
    yield from _double_ties()
