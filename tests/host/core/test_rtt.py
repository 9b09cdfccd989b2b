"""The retransmission timer: RFC 6298's arithmetic, and its bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inagg_host.core.recovery import RTO_FIRST_S, RTO_MAX_S, RTO_MIN_S, judge, rto_s, sample_rtt
from inagg_host.core.state import JOB, make_state


def estimate(*samples_s: float) -> Any:
    """The record of a shard with such round trips."""
    shard = make_state(1, 2, 0, 64, 0).shards[0]
    for sample_s in samples_s:
        sample_rtt(shard, sample_s)
    return shard


def expired(shard: Any, times: int = 1) -> Any:
    shard["backoff"] += times
    return shard


def timeout_s(shard: Any) -> float:
    job = np.zeros(1, JOB)[0]
    job["rto_min_s"], job["rto_max_s"], job["rto_first_s"] = RTO_MIN_S, RTO_MAX_S, RTO_FIRST_S
    return float(rto_s(job, shard))


def test_before_the_first_sample_the_timeout_is_a_constant() -> None:
    assert timeout_s(estimate()) == RTO_FIRST_S


def test_the_first_sample_is_the_estimate_and_half_of_it_the_variation() -> None:
    """(2.2): SRTT = R, RTTVAR = R / 2, RTO = SRTT + 4 RTTVAR."""
    rtt = estimate(0.04)
    assert (rtt["srtt_s"], rtt["rttvar_s"]) == (0.04, 0.02)
    assert timeout_s(rtt) == pytest.approx(0.12)


def test_later_samples_are_smoothed_by_an_eighth_and_a_quarter() -> None:
    """(2.3), by hand, in ms: RTTVAR = 3/4 * 5 + 1/4 * |10 - 20| = 6.25, SRTT = 7/8 * 10 + 1/8 * 20 = 11.25; then
    3/4 * 6.25 + 1/4 * |11.25 - 6| = 6, 7/8 * 11.25 + 1/8 * 6 = 10.59375."""
    rtt = estimate(0.010, 0.020)
    assert [rtt["srtt_s"], rtt["rttvar_s"]] == pytest.approx([0.01125, 0.00625])
    sample_rtt(rtt, 0.006)
    assert [rtt["srtt_s"], rtt["rttvar_s"]] == pytest.approx([0.01059375, 0.006])
    assert timeout_s(rtt) == pytest.approx(0.01059375 + 4 * 0.006)


def test_the_timeout_is_no_less_than_three_round_trips() -> None:
    """However little they vary."""
    assert timeout_s(estimate(*[0.01] * 100)) == pytest.approx(0.03)


def test_a_timer_that_runs_out_for_nothing_gets_longer_and_a_loss_makes_it_short_again() -> None:
    """So that ranks that wait for one that computes do not all send again, each time."""
    shard, lengths = estimate(1e-6, 1e-6), []
    for _ in range(10):
        shard["timer_s"], shard["timer_expired"] = 0.0, 1
        judge(shard, 0.05)  # a result that has nothing to do with what was sent again
        lengths.append(timeout_s(shard) / RTO_MIN_S)
    assert lengths == [1, 1, 2, 4, 8, 16, 16, 16, 16, 16]
    for _ in range(2):
        shard["timer_s"] = 0.0
        judge(shard, float(shard["rtt_min_s"]))  # the answer to it
    assert timeout_s(shard) == RTO_MIN_S


def test_the_timeout_has_a_least() -> None:
    assert timeout_s(estimate(1e-6, 1e-6)) == RTO_MIN_S


def test_the_timeout_has_a_most() -> None:
    assert timeout_s(estimate(20.0)) == RTO_MAX_S


def test_the_timeout_doubles_each_time_it_runs_out() -> None:
    """(5.5)."""
    rtt = estimate(0.01)
    timeouts_s = []
    for _ in range(8):
        timeouts_s.append(timeout_s(rtt))
        expired(rtt)
    assert timeouts_s == pytest.approx([0.03, 0.06, 0.12, 0.24, *[RTO_MAX_S] * 4])


def test_no_number_of_expirations_overflows() -> None:
    rtt = estimate(0.01)
    expired(rtt, 10**9)
    assert timeout_s(rtt) == RTO_MAX_S


def test_a_sample_ends_the_backing_off() -> None:
    rtt = estimate(0.01)
    expired(rtt)
    sample_rtt(rtt, 0.01)
    assert rtt["backoff"] == 0


def test_the_shortest_is_kept() -> None:
    assert estimate(0.03, 0.01, 0.02)["rtt_min_s"] == 0.01


def test_a_clock_that_goes_back_does_no_harm() -> None:
    assert estimate(-1.0)["srtt_s"] == 0.0
