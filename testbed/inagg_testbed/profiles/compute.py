"""How long the computation of a training step takes, and when each bucket of gradients is there. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .profile import BUCKET_BYTES, FIRST_BUCKET_BYTES, Gradient, Profile, make_buckets


@dataclass(frozen=True, slots=True)
class Compute:
    """A worker's own part of a step: forward and backward, without optimizer and without communication.

    ``buckets``: elements of each, and when it is complete, in seconds from the beginning of the backward pass.
    """

    forward_s: float
    backward_s: float
    buckets: tuple[tuple[int, float], ...]
    source: str
    """Where the times come from, for people: "measured: ..." or "assumed: ..."."""

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def elements(self) -> int:
        return sum(elements for elements, _ in self.buckets)


def nothing(sizes: Sequence[int]) -> Compute:
    """No computation: buckets of ``sizes`` elements that are all there at once, to time communication alone."""
    return Compute(0.0, 0.0, tuple((elements, 0.0) for elements in sizes), "none")


def measured(forward_s: float, backward_s: float, gradients: Sequence[Gradient], source: str) -> Compute:
    """From a measured step."""
    buckets = make_buckets(gradients, FIRST_BUCKET_BYTES, BUCKET_BYTES)
    return Compute(forward_s, backward_s, tuple((b.elements, b.ready * backward_s) for b in buckets), source)


def assumed(profile: Profile, seconds: float, source: str) -> Compute:
    """From the time of forward and backward together: shared out as the FLOPs are."""
    forward_s = seconds * profile.forward_flops / profile.flops
    return measured(forward_s, seconds - forward_s, profile.gradients, f"assumed: {source}")


def assumed_rate(profile: Profile, batch: int, flops_per_s: float) -> Compute:
    """From a rate of computation and the model's FLOPs."""
    seconds = profile.flops * batch / flops_per_s
    return assumed(profile, seconds, f"{flops_per_s / 1e12:g} TFLOP/s, batch {batch}")
