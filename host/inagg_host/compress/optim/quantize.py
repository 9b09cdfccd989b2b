"""Unbiased compressors whose noise can follow a smoothness matrix, and the best of each kind for a budget.

Each maps rows, one a worker, and says what it costs. Of each, two numbers matter: w with E|C(x) - x|^2 <= w |x|^2, and
``cal`` with E|C(x) - x|_L^2 <= cal |x|^2 (Wang et al. 2021, definition 2), which is what the step size of DIANA+ needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .codes import NORM_BITS, dense_bits, sparse_bits

Array = npt.NDArray[np.float64]
FLOAT_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """The workers' messages: ``values`` (rows, d) as decoded."""

    values: Array
    bits: int
    """Bits of all rows: norms, and the levels by the gap code (`codes.sparse_bits`)."""
    dense_bits: int
    """The same with the levels one after the other (`codes.dense_bits`)."""


class RowCompressor(ABC):
    """An unbiased compressor of rows (n, d)."""

    @property
    @abstractmethod
    def w(self) -> float:
        """E|C(x) - x|^2 <= w |x|^2 for every row."""

    @abstractmethod
    def cal(self, diagonal: Array) -> float:
        """E|C(x) - x|_L^2 <= cal |x|^2 for every row, where ``diagonal`` (d,) or (n, d) is that of L."""

    @abstractmethod
    def __call__(self, rows: Array, rng: np.random.Generator) -> Message:
        """C of each row of ``rows`` (n, d)."""


@dataclass(frozen=True, slots=True, eq=False)
class NoCompression(RowCompressor):
    """Every value as a float32."""

    w: float = 0.0

    def cal(self, diagonal: Array) -> float:
        """The constant, 0: nothing is lost."""
        return 0.0

    def __call__(self, rows: Array, rng: np.random.Generator) -> Message:
        """The rows as they are."""
        bits = FLOAT_BITS * rows.size
        return Message(rows, bits, bits)


@dataclass(frozen=True, slots=True, eq=False)
class Steps(RowCompressor):
    """Quantization with steps (section 4): each row is cut into blocks with a norm (p = 2) of their own, and in a block
    coordinate j is rounded to multiples of ``steps_j`` times the norm, unbiased.

    ``steps``: (d,) or (n, d), above 0. ``blocks``: how many, all of one length. A rounding of v to multiples of q has
    variance at most q |v|. So with one block E|C(x) - x|_L^2 <= sum L_jj h_j |x_j| |x| <= |(L_jj h_j)| |x|^2; with
    several, the greatest of the blocks' numbers counts.
    """

    steps: Array
    blocks: int = 1

    def __post_init__(self) -> None:
        if not (self.steps > 0).all():
            raise ValueError("steps must be above 0")
        if self.steps.shape[-1] % self.blocks:
            raise ValueError(f"{self.steps.shape[-1]} coordinates cannot be cut into {self.blocks} equal blocks")

    @property
    def w(self) -> float:
        """|h|, of the worst block."""
        return self.cal(np.ones_like(self.steps))

    def cal(self, diagonal: Array) -> float:
        """|(L_jj h_j)|, of the worst block."""
        weighted = self._cut(diagonal * self.steps)
        return float(np.linalg.norm(weighted, axis=-1).max())

    def _cut(self, rows: Array) -> Array:
        return rows.reshape(*rows.shape[:-1], self.blocks, -1)

    def __call__(self, rows: Array, rng: np.random.Generator) -> Message:
        """One norm of 32 bits for each block, and a level for each coordinate."""
        norms = np.linalg.norm(self._cut(rows), axis=-1)
        unit = (self._cut(np.broadcast_to(self.steps, rows.shape)) * norms[..., None]).reshape(rows.shape)
        y = np.divide(np.abs(rows), unit, out=np.zeros_like(rows), where=unit > 0)
        levels = np.floor(y)
        levels += rng.random(rows.shape) < y - levels
        signed = np.copysign(levels, rows)
        integers, overhead = signed.astype(np.int64), NORM_BITS * norms.size
        return Message(signed * unit, overhead + sparse_bits(integers), overhead + dense_bits(integers))


@dataclass(frozen=True, slots=True, eq=False)
class Sampling(RowCompressor):
    """Sparsification (Safaryan et al. 2021): coordinate j is sent as x_j / p_j with probability p_j, independently.

    ``probabilities``: (d,) or (n, d), above 0 and at most 1. E|C(x) - x|_L^2 = sum L_jj (1/p_j - 1) x_j^2.
    """

    probabilities: Array

    def __post_init__(self) -> None:
        if not ((self.probabilities > 0) & (self.probabilities <= 1)).all():
            raise ValueError("probabilities must be above 0 and at most 1")

    @property
    def w(self) -> float:
        """The largest 1/p_j - 1."""
        return float((1 / self.probabilities - 1).max())

    def cal(self, diagonal: Array) -> float:
        """The largest L_jj (1/p_j - 1)."""
        return float((diagonal * (1 / self.probabilities - 1)).max())

    def __call__(self, rows: Array, rng: np.random.Generator) -> Message:
        """A float32 for each coordinate that is sent, and where it is."""
        sent = rng.random(rows.shape) < self.probabilities
        values = np.where(sent, rows / self.probabilities, 0.0)
        # With a level of one everywhere the codes count positions, 2 bits too many for magnitude and sign.
        positions = sparse_bits(sent.astype(np.int64)) - 2 * int(sent.sum())
        floats = FLOAT_BITS * int(sent.sum())
        return Message(values, floats + positions, floats + rows.size)


def uniform_steps(d: int, budget: float) -> Steps:
    """The same step for all coordinates: h = sqrt(d) / ``budget``. Then w = d / budget."""
    return Steps(np.full(d, np.sqrt(d) / budget))


def varying_steps(diagonal: Array, budget: float) -> Steps:
    """The steps with the smallest ``cal`` of all with |1/h| = ``budget`` (about so many coordinates are sent, or less):
    h_j = sqrt(Tr L / L_jj) / budget, which gives cal = Tr L / budget.

    ``diagonal`` (d,) or (n, d), above 0. (Minimize sum L_jj^2 h_j^2 for a given sum of h_j^-2: L_jj^2 h_j = c h_j^-3.)
    """
    return Steps(np.sqrt(diagonal.sum(axis=-1, keepdims=True) / diagonal) / budget)


def block_steps(diagonal: Array, blocks: int, budget: float) -> Steps:
    """One step for each of ``blocks`` blocks: those with the smallest ``cal`` of all that send about ``budget``
    coordinates, sum over blocks of sqrt(d_l) / h_l = budget.

    A block's number is h_l |(L_jj)|; all are made equal: cal = sum of sqrt(d_l) |(L_jj)|_l / budget.
    """
    cut = diagonal.reshape(*diagonal.shape[:-1], blocks, -1)
    lengths = np.linalg.norm(cut, axis=-1)
    if not (lengths > 0).all():
        raise ValueError("every block needs a diagonal entry above 0")
    cal = np.sqrt(cut.shape[-1]) * lengths.sum(axis=-1, keepdims=True) / budget
    return Steps(np.repeat(cal / lengths, cut.shape[-1], axis=-1), blocks)


def varying_probabilities(diagonal: Array, budget: float) -> Sampling:
    """The probabilities with the smallest ``cal`` of all whose sum is ``budget`` (so many coordinates are sent):
    p_j = L_jj / (L_jj + cal), with the cal that makes the sum right, by bisection.

    ``diagonal`` (d,) or (n, d), above 0; 0 < budget < d.
    """
    low = np.zeros((*diagonal.shape[:-1], 1))
    high = diagonal.sum(axis=-1, keepdims=True) / budget  # there the sum of p is below the budget
    for _ in range(200):
        middle = (low + high) / 2
        too_many = (diagonal / (diagonal + middle)).sum(axis=-1, keepdims=True) > budget
        low, high = np.where(too_many, middle, low), np.where(too_many, high, middle)
    return Sampling(diagonal / (diagonal + high))
