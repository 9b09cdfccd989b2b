"""Training steps as communication sees them: the gradients of a network, in the order in which they become
ready, and the buckets into which DistributedDataParallel puts them. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
"""Sizes in DistributedDataParallel: the first bucket is small, so communication begins early (bucket_cap_mb=25)."""
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of one parameter tensor. ``ready``: which share of the backward pass is done when it is there, 0 to
    1."""

    name: str
    elements: int
    ready: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together. ``ready`` as of a gradient: that of its last one."""

    elements: int
    ready: float


@dataclass(frozen=True, slots=True)
class Profile:
    """A network as seen by communication. FLOPs count a multiplication and an addition as two, of one example."""

    batch: int
    """Examples per worker and step, if nothing else is said."""
    gradients: tuple[Gradient, ...]
    """In the order in which the backward pass makes them."""
    forward_flops: int
    backward_flops: int

    @property
    def parameters(self) -> int:
        """Elements of all gradients."""
        return sum(gradient.elements for gradient in self.gradients)

    @property
    def flops(self) -> int:
        """FLOPs of a step with one example, forward and backward."""
        return self.forward_flops + self.backward_flops

    def buckets(self, first_bytes: int = FIRST_BUCKET_BYTES, bytes_: int = BUCKET_BYTES) -> tuple[Bucket, ...]:
        """The buckets of float32 gradients that DistributedDataParallel makes after its first step."""
        return make_buckets(self.gradients, first_bytes, bytes_)


def make_buckets(gradients: Sequence[Gradient], first_bytes: int, bytes_: int) -> tuple[Bucket, ...]:
    """Fill a bucket with float32 gradients in their order until it has reached its size, then begin the next one:
    compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp."""
    buckets: list[Bucket] = []
    elements, ready, limit = 0, 0.0, first_bytes
    for gradient in gradients:
        elements, ready = elements + gradient.elements, max(ready, gradient.ready)
        if elements * FLOAT_BYTES >= limit:
            buckets.append(Bucket(elements, ready))
            elements, ready, limit = 0, 0.0, bytes_
    if elements:
        buckets.append(Bucket(elements, ready))
    return tuple(buckets)
