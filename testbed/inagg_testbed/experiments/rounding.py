"""Rounding of known values, many times over, by the code that ships: its mean error, and its variance.

A mean error is told in its own standard errors, which come from the spread over *units*: pieces of the draws whose
noise is independent, such as blocks (the switch's noise is not independent within one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inagg_host.codec import ALL_GOOD, Job
from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType

from ..kernel_calls import Call
from .cluster import Worker, open_cluster
from .model import Outcome, Source

Array = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

Z_MAX = 4.5
"""The most standard errors: by chance, one figure in 150,000 has more."""


@dataclass(frozen=True, slots=True, eq=False)
class Rounding:
    """``errors``: C(x) - x with the sign of x, so that what always rounds up does not cancel; ``variances``: what
    theory says of each. Both flat, unit after unit of ``unit`` elements, in any measure that both have in common."""

    errors: Array
    variances: Array
    unit: int

    @property
    def z(self) -> float:
        """The mean error in its standard errors."""
        means = self.errors.reshape(-1, self.unit).mean(axis=1)
        spread = float(means.std(ddof=1))
        return float(means.mean()) / (spread / np.sqrt(means.size)) if spread else 0.0 if not means.any() else np.inf

    @property
    def variance_ratio(self) -> tuple[float, float]:
        """The measured variance over the theory's, and its standard error."""
        measured = (self.errors**2).reshape(-1, self.unit).sum(axis=1)
        whole = float(self.variances.sum())
        return float(measured.sum()) / whole, float(measured.std(ddof=1)) * np.sqrt(measured.size) / whole

    def add_to(self, outcome: Outcome, what: str, why: str) -> None:
        """Its two figures. ``why``: how it was measured."""
        draws = f"{self.errors.size:,} draws; {why}"
        outcome.add(
            f"{what}: mean error", self.z, 0, Z_MAX, Source.DERIVED,
            f"unbiased; {draws}; {Z_MAX} standard errors are exceeded by chance once in 150,000 times",
            unit="standard errors",
        )  # fmt: skip
        ratio, error = self.variance_ratio
        outcome.add(
            f"{what}: variance over the theory's", ratio, 1.0, Z_MAX * error, Source.DERIVED,
            f"(x - below)(above - x) between the two levels around x; {draws}; {Z_MAX} standard errors",
        )  # fmt: skip


def octaves(x: Array) -> Array:
    """The power of two at or below each |x|; 1 for zeros."""
    magnitudes = np.abs(x)
    return np.exp2(np.floor(np.log2(np.where(magnitudes > 0, magnitudes, 1.0))))


def natural(rounded: Array, x: Array, unit: int) -> Rounding:
    """Rounding of natural compression: errors in units of the power of two below, where the variance is m (1 - m)."""
    below = octaves(x)
    mantissas = np.where(x != 0, np.abs(x) / below - 1, 0.0)
    return Rounding(np.sign(x) * (rounded - x) / below, mantissas * (1 - mantissas), unit)


def encoded(fmt_name: str, blocks: Floats, seed: int) -> Array:
    """Values of the compiled encoder's codes for ``blocks`` (blocks, lanes), of a job with one worker. Results of the
    format, of one worker, must be coded as contributions are: those of nat8, nat4, dith8 and fix32 are."""
    fmt, (count, lanes), values = job_format(fmt_name), blocks.shape, np.ascontiguousarray(blocks.reshape(-1))
    job, out = Job(fmt, 1, 0, lanes, seed & 0xFFFFFFFF, FloatType.FLOAT32), np.empty_like(values)
    assert job.for_decode == job.for_encode
    agreed, numbers = Call(job, values).agree(), np.arange(count)
    datagrams = np.zeros((count, job.datagram_bytes), np.uint8)
    assert Call(job, values, *agreed, ring=datagrams).encode(0, 0, count, 0) == ALL_GOOD
    Call(job, out, *agreed, data=datagrams, places=numbers, numbers=numbers).decode(0, count)
    return out.astype(np.float64)


def switched(switch: str, fmt_name: str, rows: Sequence[Floats], lanes: int, seed: int, name: str) -> Array:
    """The sums of ``rows``, one a worker, that come back from the switch with this control address."""
    with open_cluster(switch, len(rows), fmt_name, seed, name, lanes=lanes) as cluster:

        def reduce(worker: Worker) -> Array:
            return worker.all_reduce(rows[worker.rank].copy()).astype(np.float64)

        return cluster.run(reduce)[0]
