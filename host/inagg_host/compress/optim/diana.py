"""DCGD, DCGD+, DIANA and DIANA+: gradient descent with compressed gradients (Wang et al. 2021, algorithms 1 and 2).

One class does all four. With matrices L_i, worker i sends C(L_i^(-1/2) (grad f_i(x) - h_i)) and everybody decodes by
L_i^(1/2); without, that is the plain method. With alpha > 0 the shifts h_i learn the gradients (DIANA), so that there
is less and less to compress; with alpha = 0 they stay 0 (DCGD).

Here all workers are rows of one array, which is the fast way to study the methods. Between machines they are
compressors: see `shifted`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .quantize import RowCompressor
from .smoothness import Smoothness

Array = npt.NDArray[np.float64]


class Diana:
    """The iterate, the workers' shifts, and the bits that they have sent.

    ``matrices``: None for DCGD and DIANA; one `Smoothness` for all workers; or one for each, `smoothness.stacked`.
    """

    def __init__(
        self,
        x: Array,
        workers: int,
        compressor: RowCompressor,
        rng: np.random.Generator,
        *,
        step: float,
        alpha: float = 0.0,
        matrices: Smoothness | None = None,
    ) -> None:
        """``x`` (d,): where to begin. ``step``: see `dcgd_step` and `diana_step`; ``alpha``: at most 1 / (1 + w), with
        w of the compressor. Raises ValueError for numbers that are no step and no share."""
        if not step > 0 or not 0 <= alpha <= 1:
            raise ValueError(f"step {step}, alpha {alpha}: give a step above 0 and an alpha from 0 to 1")
        self.x = x.astype(np.float64)
        self.shifts = np.zeros((workers, x.size))
        self.step, self.alpha = step, alpha
        self.bits = 0
        """Sent by all workers so far, levels by the gap code (`codes.sparse_bits`)."""
        self.dense_bits = 0
        """The same, levels by `codes.dense_bits`."""
        self._compressor, self._rng, self._matrices = compressor, rng, matrices

    @property
    def setup_bits(self) -> int:
        """Bits to send the matrices: from each worker its own, or to each worker the one for all."""
        if self._matrices is None:
            return 0
        return self._matrices.setup_bits * (1 if self._matrices.stacked else len(self.shifts))

    def update(self, gradients: Array) -> None:
        """One step, with the gradients (workers, d) at `x`."""
        rows = gradients - self.shifts
        if self._matrices is not None:
            rows = self._matrices.whiten(rows)
        message = self._compressor(rows, self._rng)
        self.bits += message.bits
        self.dense_bits += message.dense_bits
        sent = message.values if self._matrices is None else self._matrices.colour(message.values)
        self.x -= self.step * (self.shifts + sent).mean(axis=0)
        self.shifts += self.alpha * sent

    def state_dict(self) -> dict[str, Any]:
        """All that changes but the generator of noise, to be stored."""
        return {"x": self.x.copy(), "shifts": self.shifts.copy(), "bits": (self.bits, self.dense_bits)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.x[...], self.shifts[...] = state["x"], state["shifts"]
        self.bits, self.dense_bits = state["bits"]


def dcgd_step(smoothness: float, cal: float, workers: int) -> float:
    """1 / (L + 2 cal / n): of DCGD+, with ``cal`` the largest of all workers; of DCGD, with cal = w max L_i."""
    return 1 / (smoothness + 2 * cal / workers)


def diana_step(smoothness: float, cal: float, workers: int) -> float:
    """1 / (L + 6 cal / n): of DIANA+, or DIANA with cal = w max L_i."""
    return 1 / (smoothness + 6 * cal / workers)
