"""The computation of a step: where its times come from, and when buckets are ready."""

from __future__ import annotations

import pytest

from inagg_testbed.profiles.compute import assumed, assumed_rate, measured, nothing
from inagg_testbed.profiles.profile import Gradient, Profile

MIB = 1 << 18
"""Elements of float32."""
PROFILE = Profile(
    2,
    (Gradient("b", 2 * MIB, 0.25), Gradient("a", 3 * MIB, 1.0)),
    forward_flops=100,
    backward_flops=300,
)


def test_assumed_time_is_shared_out_as_the_flops_are() -> None:
    compute = assumed(PROFILE, 8.0, "a guess")
    assert (compute.forward_s, compute.backward_s) == (2.0, 6.0)
    assert compute.buckets == ((2 * MIB, 1.5), (3 * MIB, 6.0))
    assert compute.source == "assumed: a guess"


def test_a_rate_gives_the_time_of_the_whole_batch() -> None:
    compute = assumed_rate(PROFILE, batch=5, flops_per_s=1000)
    assert compute.seconds == pytest.approx(2.0)
    assert compute.source.startswith("assumed: ")


def test_measured_times_are_kept() -> None:
    compute = measured(1.0, 4.0, PROFILE.gradients, "measured: here")
    assert compute.seconds == 5.0
    assert compute.elements == PROFILE.parameters
    assert compute.buckets[0] == (2 * MIB, 1.0)


def test_without_computation_everything_is_ready_at_once() -> None:
    assert nothing([7, 9]).buckets == ((7, 0.0), (9, 0.0))
    assert nothing([7]).seconds == 0.0
