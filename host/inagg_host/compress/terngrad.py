"""TernGrad (Wen et al. 2017): -1, 0 or 1 times a scaler, two bits a value on the way up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from .base import Aggregation, Bound, Compressor, Floats, NoBound, Unbiased, check, expect, is_number
from .codes import pack, packed_bytes, unpack
from .key import Key

Scaler = Literal["layer", "block", "own"]


@dataclass(frozen=True, slots=True)
class TernGrad(Compressor):
    """s sign(x) b with P(b = 1) = |x| / s, element by element, after clipping to ``clip`` standard
    deviations of the layer (0: not at all).

    ``scaler``: s is the largest magnitude over all workers of the "layer", that is of the vector (scaler sharing:
    agreed by MAX rounds, rounded up to 9 bits); or of the "block" of one datagram, which is finer and less
    noisy, and the format does it; or the worker's "own", which needs a gather. With a shared scaler the switch sums
    -1, 0 and 1 exactly: 2 n + 1 levels.

    Bytes: the own scaler in the type of the values, then two bits a value.
    """

    clip: float = 2.5
    scaler: Scaler = "layer"
    name: ClassVar[str] = "terngrad"

    def __post_init__(self) -> None:
        if not is_number(self.clip) or not self.clip >= 0 or self.scaler not in get_args(Scaler):
            raise ValueError(f"clip = {self.clip}, scaler = {self.scaler!r}: give clip in standard deviations, 0 for "
                             f"none, and as scaler one of {', '.join(get_args(Scaler))}")  # fmt: skip

    @property
    def aggregation(self) -> Aggregation:
        """Own scalers cannot be summed."""
        return Aggregation.GATHER if self.scaler == "own" else Aggregation.SUM

    @property
    def formats(self) -> tuple[str, ...]:
        """-1, 0 and 1 in two bits."""
        return () if self.scaler == "own" else ("tern",)

    def bound(self, d: int) -> Bound:
        """B((sqrt(d) - 1) / 2) with the own scaler and no clipping.

        E|C(x)|^2 = max|x| |x|_1. For the largest magnitude a and the others b of |x| = 1, that is
        a (a + (d - 1) b), largest at a^2 = (1 + 1/sqrt(d)) / 2, where it is (1 + sqrt(d)) / 2. (With a shared scaler it
        holds for the sum over workers, in terms of the largest of them.)
        """
        if self.clip:
            return NoBound("clipping moves the mean: with clip=0 it is unbiased")
        return Unbiased((math.sqrt(d) - 1) / 2)

    def clipped(self, x: Floats) -> Floats:
        """Each value to at most ``clip`` standard deviations.

        One value has no deviation, nor have values that are all alike. They stay, as one does with the paper's authors:
        clipped to 0, a parameter of one element would never learn.
        """
        if not self.clip or not x.size or (x == x[0]).all():
            return x
        largest = float(np.abs(x).max())
        unit = 1.0 if 2.0**-400 < largest < 2.0**400 else largest  # or squares would not be numbers of float64
        deviation = unit * float(np.std(x / x.dtype.type(unit), dtype=np.float64))
        limit = x.dtype.type(min(self.clip * deviation, largest))
        return np.clip(x, -limit, limit)

    def ternary(self, x: Floats, scale: float, key: Key) -> npt.NDArray[np.int64]:
        """-1, 0 or 1 for each value; ``scale`` is not below any magnitude."""
        if scale == 0:
            return np.zeros(x.size, np.int64)
        up = key.below(np.abs(x.astype(np.float64)) / scale)
        return np.where(np.signbit(x), -1, 1) * up

    def compress(self, x: Floats, key: Key) -> bytes:
        """Bytes with this worker's own scaler."""
        x = self.clipped(check(x))
        scale = x.dtype.type(np.abs(x).max(initial=0))
        head: bytes = scale.tobytes()
        return head + pack((self.ternary(x, float(scale), key) & 3).astype(np.uint32), 2)

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """Exact."""
        head = np.dtype(dtype).itemsize
        expect(data, head + packed_bytes(d, 2))
        codes = unpack(data[head:], d, 2).astype(np.int64)
        if (codes == 2).any():
            raise ValueError("a code that is none of -1, 0 and 1")
        values: Floats = np.array([0, 1, 0, -1], dtype)[codes] * np.frombuffer(data[:head], dtype)[0]
        return values

    def scale(self, x: Floats) -> float | None:
        """The layer's largest magnitude after clipping."""
        return float(np.abs(self.clipped(x)).max(initial=0)) if self.scaler == "layer" else None

    def to_sum(self, x: Floats, key: Key, scale: float | None = None) -> Floats:
        """-1, 0 and 1; for the scaler "block" the clipped values, which the format makes ternary."""
        x = self.clipped(x)
        return x if scale is None else self.ternary(x, scale, key).astype(x.dtype)

    def from_sum(self, sums: Floats, scale: float | None = None) -> Floats:
        """Times the scaler: exact in float32, as it has 9 bits."""
        return sums if scale is None else sums * sums.dtype.type(scale)
