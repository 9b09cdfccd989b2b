"""Step sizes and weights by the number of the step, t = 0, 1, 2, ...; they can be pickled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Rate = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class InverseTime:
    """eta_t = gamma / (mu (shift + t)), with mu the strong ``convexity`` (Stich et al. 2018, theorem 2.4).

    The theory takes gamma = 8 and a shift of about 7 d/k; in practice gamma = 2 and d/k do better.
    """

    gamma: float
    convexity: float
    shift: float

    def __post_init__(self) -> None:
        if not (self.gamma > 0 and self.convexity > 0 and self.shift > 0):
            raise ValueError(f"{self}: all three must be above 0")

    def __call__(self, t: int) -> float:
        return self.gamma / (self.convexity * (self.shift + t))


@dataclass(frozen=True, slots=True)
class SquaredTime:
    """(shift + t)^2: the weights of the iterates in the average of theorem 2.4."""

    shift: float

    def __call__(self, t: int) -> float:
        return (self.shift + t) ** 2
