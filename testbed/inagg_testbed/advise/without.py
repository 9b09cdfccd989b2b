"""Best times of a training without a switch: NCCL, and the communication hooks of DistributedDataParallel.

They are not measured here, where there may be no GPU. So these are bounds: a ring over the link alone (each rank sends
and receives 2 (n - 1) / n of the tensor), nothing for latency, processors, casts, or PowerSGD's products of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..profiles.compute import Compute
from .predict import Prediction
from .racks import Racks
from .step import StepTime, step_time
from .wire import TCP_HEADERS_BYTES, TCP_PAYLOAD_BYTES

FLOAT32_BYTES, FLOAT16_BYTES = 4, 2
POWERSGD_RANK: Final = 1
"""matrix_approximation_rank, PyTorch's default."""
ALIKE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Bound:
    """A step takes at least so long. ``system``: for programs; ``name``: for people."""

    system: str
    name: str
    time: StepTime


def bounds(
    compute: Compute, gradients: Sequence[int], workers: int, bits_per_s: float, racks: Racks | None = None
) -> list[Bound]:
    """Bounds for ``gradients``, the elements of each tensor; none over a link without a rate. A ring enters and leaves
    each rack once, so a trunk carries what a worker's link does."""
    if racks is not None and racks.bits_per_s:
        bits_per_s = min(bits_per_s or math.inf, racks.bits_per_s)
    if not bits_per_s:
        return []
    ring_s = 2 * (workers - 1) / workers * 8 / bits_per_s * (TCP_PAYLOAD_BYTES + TCP_HEADERS_BYTES) / TCP_PAYLOAD_BYTES

    def bound(system: str, name: str, bytes_: float) -> Bound:
        return Bound(system, name, step_time(compute, lambda elements: elements * bytes_ * ring_s))

    share = sum(map(powersgd_elements, gradients)) / max(1, sum(gradients))
    return [
        bound("nccl", "NCCL", FLOAT32_BYTES),
        bound("nccl-fp16", "NCCL, fp16 or bf16 hook", FLOAT16_BYTES),
        bound("nccl-powersgd", f"NCCL, PowerSGD hook, rank {POWERSGD_RANK}", FLOAT32_BYTES * share),
    ]


def powersgd_elements(elements: int) -> float:
    """Elements of a gradient that PowerSGD sends at least: factors of a matrix of m by k have r (m + k) elements, the
    fewest where it is square (Vogels et al. 2019, section 3); of a vector all."""
    return min(float(elements), 2 * POWERSGD_RANK * math.sqrt(elements))


def compared(best: Prediction, found: Sequence[Bound]) -> list[str]:
    """Sentences: how the best prediction compares with them."""
    lines = []
    for bound in found:
        less = 1 - best.time.step_s / bound.time.step_s
        if less > ALIKE:
            lines.append(f"{best.name} takes at least {less:.0%} less time for a step than {bound.name}.")
        elif less < -ALIKE:
            lines.append(
                f"{bound.name} may take up to {1 - bound.time.step_s / best.time.step_s:.0%} less time for a "
                f"step than {best.name}: try it first{_at_a_price(bound)}."
            )
        else:
            lines.append(f"{bound.name} may be as fast as {best.name}: try it first{_at_a_price(bound)}.")
    return lines


def _at_a_price(bound: Bound) -> str:
    return (
        ", and see whether the loss falls as fast (it is biased, with error feedback)"
        if "powersgd" in bound.system
        else ""
    )
