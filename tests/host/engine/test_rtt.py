"""The retransmission timer: RFC 6298's arithmetic, and its bounds."""

from __future__ import annotations

import pytest

from inagg_host.engine.rtt import RTO_FIRST_S, RTO_MAX_S, RTO_MIN_S, RoundTrip


def estimate(*samples_s: float) -> RoundTrip:
    rtt = RoundTrip()
    for sample_s in samples_s:
        rtt.sample(sample_s)
    return rtt


def test_before_the_first_sample_the_timeout_is_a_constant() -> None:
    assert RoundTrip().timeout_s == RTO_FIRST_S


def test_the_first_sample_is_the_estimate_and_half_of_it_the_variation() -> None:
    """(2.2): SRTT = R, RTTVAR = R / 2, RTO = SRTT + 4 RTTVAR."""
    rtt = estimate(0.04)
    assert (rtt.smoothed_s, rtt.variation_s) == (0.04, 0.02)
    assert rtt.timeout_s == pytest.approx(0.12)


def test_later_samples_are_smoothed_by_an_eighth_and_a_quarter() -> None:
    """(2.3), by hand, in ms: RTTVAR = 3/4 * 5 + 1/4 * |10 - 20| = 6.25, SRTT = 7/8 * 10 + 1/8 * 20 = 11.25; then
    3/4 * 6.25 + 1/4 * |11.25 - 6| = 6, 7/8 * 11.25 + 1/8 * 6 = 10.59375."""
    rtt = estimate(0.010, 0.020)
    assert [rtt.smoothed_s, rtt.variation_s] == pytest.approx([0.01125, 0.00625])
    rtt.sample(0.006)
    assert [rtt.smoothed_s, rtt.variation_s] == pytest.approx([0.01059375, 0.006])
    assert rtt.timeout_s == pytest.approx(0.01059375 + 4 * 0.006)


def test_the_timeout_has_a_least() -> None:
    assert estimate(1e-6, 1e-6).timeout_s == RTO_MIN_S


def test_the_timeout_has_a_most() -> None:
    assert estimate(20.0).timeout_s == RTO_MAX_S


def test_the_timeout_doubles_each_time_it_runs_out() -> None:
    """(5.5)."""
    rtt = estimate(0.01)
    timeouts_s = []
    for _ in range(8):
        timeouts_s.append(rtt.timeout_s)
        rtt.expired()
    assert timeouts_s == pytest.approx([0.03, 0.06, 0.12, 0.24, *[RTO_MAX_S] * 4])


def test_no_number_of_expirations_overflows() -> None:
    rtt = estimate(0.01)
    rtt.backoff = 10**9
    assert rtt.timeout_s == RTO_MAX_S


def test_a_sample_ends_the_backing_off() -> None:
    rtt = estimate(0.01)
    rtt.expired()
    rtt.sample(0.01)
    assert rtt.backoff == 0


def test_the_shortest_is_kept() -> None:
    assert estimate(0.03, 0.01, 0.02).least_s == 0.01


def test_a_clock_that_goes_back_does_no_harm() -> None:
    assert estimate(-1.0).smoothed_s == 0.0
