"""Random dithering: a norm, and for each element a sign and one of a few levels.

Standard (linear levels; QSGD, Alistarh et al. 2017, is p = 2) and natural (powers of two; Horvath et al. 2019).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from .base import Aggregation, Bound, Compressor, Floats, Unbiased, check, check_flag, expect, is_number, is_whole
from .codes import pack, packed_bytes, unpack
from .key import Key
from .natural import NATURAL_W

Reals = npt.NDArray[np.float64]
Levels = npt.NDArray[np.int64]


def norm(x: Floats, p: float) -> float:
    """|x|_p, rounded up to a number of the type of ``x``, so that no |x_i| exceeds it; the maximum for p = inf.

    If the type has no number so large, it is the largest that there is: no |x_i| exceeds that either, and the bounds
    hold, as a smaller one means less noise.
    """
    wide = np.abs(x.astype(np.float64))
    largest = float(wide.max(initial=0.0))
    if largest == 0.0 or p == math.inf or not math.isfinite(largest):
        return largest
    exact = min(largest * float(((wide / largest) ** p).sum()) ** (1 / p), float(np.finfo(x.dtype).max))
    rounded = x.dtype.type(max(exact, largest))
    return float(rounded if rounded >= exact else np.nextafter(rounded, x.dtype.type(np.inf)))


@dataclass(frozen=True, slots=True)
class NormDithering(Compressor):
    """The base of the ditherings. ``p``: of the norm, 1, 2 or inf; ``s``: levels above zero.

    The norm is the worker's own, so the sum needs a gather. With ``shared`` (and then p = inf and a given s) it is the
    maximum over all workers, block by block, and the switch sums the levels: number formats do that.

    Bytes: the norm in the type of the values, then for each element a sign and a level in ceil(log2(2 s + 1)) bits.
    """

    p: float = 2
    s: int = 127
    shared: bool = False
    most_s: ClassVar[int] = (1 << 24) - 1
    shared_s: ClassVar[int]
    """The levels of the formats for shared norms."""
    shared_formats: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        check_flag("shared", self.shared)
        numbers = is_number(self.p) and is_whole(self.s)
        if not numbers or self.p not in (1, 2, math.inf) or not 1 <= self.s <= self.most_s:
            raise ValueError(f"p = {self.p}, s = {self.s}: give p as 1, 2 or inf and s as a whole number from 1 to "
                             f"{self.most_s}")  # fmt: skip
        if self.shared and (self.p, self.s) != (math.inf, self.shared_s):
            raise ValueError(
                f"p = {self.p}, s = {self.s}: a shared norm is a maximum, and {self.shared_formats[0]} has "
                f"{self.shared_s} levels: give p=inf,s={self.shared_s}, or shared=false for a gather"
            )

    @property
    def aggregation(self) -> Aggregation:
        """Own norms cannot be summed."""
        return Aggregation.SUM if self.shared else Aggregation.GATHER

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats that have such levels, for a shared norm."""
        return self.shared_formats if self.shared else ()

    @abstractmethod
    def round(self, y: Reals, key: Key) -> Levels:
        """Magnitudes 0 <= y <= 1 to levels 0 to ``s``, unbiased."""

    @abstractmethod
    def values(self, levels: Levels) -> Reals:
        """Values of levels 0 to ``s``, in units of the norm."""

    def root(self, d: int) -> float:
        """d^(1/r) with r = min(p, 2), in which the bounds are written."""
        return float(d ** (1 / min(self.p, 2)))

    @property
    def width(self) -> int:
        """Bits of a code."""
        return int(2 * self.s).bit_length()

    def compress(self, x: Floats, key: Key) -> bytes:
        """The norm is the vector's own."""
        size = norm(check(x), self.p)
        y = np.abs(x.astype(np.float64)) / size if size > 0 else np.zeros(x.size)
        levels = self.round(y, key)
        signed = np.where(np.signbit(x), -levels, levels) + self.s
        head: bytes = x.dtype.type(size).tobytes()
        return head + pack(signed.astype(np.uint32), self.width)

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """Each value is rounded once."""
        head = np.dtype(dtype).itemsize
        expect(data, head + packed_bytes(d, self.width))
        size = float(np.frombuffer(data[:head], dtype)[0])
        signed = unpack(data[head:], d, self.width).astype(np.int64) - self.s
        if (np.abs(signed) > self.s).any():
            raise ValueError(f"a level beyond {self.s}: other settings than the sender's")
        return (np.sign(signed) * self.values(np.abs(signed)) * size).astype(dtype)


@dataclass(frozen=True, slots=True)
class Dithering(NormDithering):
    """D_sta^{p,s}: levels j / s of the norm. ``p`` = 2 is QSGD."""

    name: ClassVar[str] = "dithering"
    shared_s = 127
    shared_formats = ("dith8", "dith8-exact")

    def bound(self, d: int) -> Bound:
        """B(w), w = d^(1/r) / s * min(1, d^(1/r) / s) (for p = 2 that of QSGD)."""
        ratio = self.root(d) / self.s
        return Unbiased(ratio * min(1.0, ratio))

    def round(self, y: Reals, key: Key) -> Levels:
        """Up with the probability of what is above the level."""
        steps = y * self.s
        floor = np.floor(steps)
        return (floor + key.below(steps - floor)).astype(np.int64)

    def values(self, levels: Levels) -> Reals:
        """j / s."""
        worth: Reals = levels / self.s
        return worth


@dataclass(frozen=True, slots=True)
class NaturalDithering(NormDithering):
    """D_nat^{p,s}: levels 0 and 2^(1-s), ..., 1/2, 1 of the norm. (The shared one is rounded up to a power of two.)"""

    s: int = 7
    name: ClassVar[str] = "natural_dithering"
    most_s = 1023  # 2^(1-s) is then a normal float64
    shared_s = 7
    shared_formats = ("nat4", "nat4-nat8")

    def bound(self, d: int) -> Bound:
        """B(w), w = 1/8 + t min(1, t), t = d^(1/r) 2^(1-s) (Horvath et al. 2019)."""
        tail = self.root(d) * 2.0 ** (1 - self.s)
        return Unbiased(NATURAL_W + tail * min(1.0, tail))

    def round(self, y: Reals, key: Key) -> Levels:
        """Round between powers of two by the mantissa; below the lowest level by the magnitude itself."""
        mantissa, exponent = np.frexp(y)  # y = mantissa 2^exponent, 1/2 <= mantissa < 1
        inside = (exponent > 1 - self.s) & (y > 0)
        floor = np.where(inside, exponent - 1 + self.s, 0)
        up = np.where(inside, 2 * mantissa - 1, y * 2.0 ** (self.s - 1))
        return (floor + key.below(up)).astype(np.int64)

    def values(self, levels: Levels) -> Reals:
        """2^(level - s), and 0 for level 0."""
        return np.where(levels > 0, np.ldexp(1.0, levels - self.s), 0.0)
