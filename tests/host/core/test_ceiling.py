"""How many blocks may be out while round trips grow, and of how many the switch has room."""

from __future__ import annotations

import numpy as np
import pytest

from inagg_host.core.recovery import CEILING_SHARE, CWND_LEAST, DECREASE_MOST, QUEUE_S

from .cluster import Cluster, shard_of

RTT_S = 0.0005
WINDOW = 128


def started(window: int = WINDOW) -> Cluster:
    """One rank with much to send, whose shortest round trip was `RTT_S`."""
    cluster = Cluster(1, lanes=256, window=window)
    cluster.submit_all([np.ones(256 * 30 * window)])
    round_trip(cluster, RTT_S)
    return cluster


def round_trip(cluster: Cluster, seconds: float) -> int:
    """All that can be sent now comes back after so long; how many blocks may be out then."""
    sent = cluster.send(0)
    cluster.now += seconds
    cluster.take(cluster.aggregate(sent))
    return int(shard_of(cluster.engines[0])["ceiling"])


def test_who_has_less_out_may_see_longer_round_trips() -> None:
    """Or two who share a queue would keep the shares that they have."""
    cluster = started()
    for _ in range(10):
        round_trip(cluster, 1.0)
    assert round_trip(cluster, RTT_S + 1.5 * QUEUE_S) < WINDOW
    assert round_trip(cluster, RTT_S + 1.5 * QUEUE_S) > CWND_LEAST


def test_round_trips_that_are_a_little_longer_change_nothing() -> None:
    cluster = started()
    assert {round_trip(cluster, RTT_S + QUEUE_S / 2) for _ in range(10)} == {WINDOW}


def test_one_long_round_trip_has_waited_for_a_rank() -> None:
    cluster = started()
    ceilings = [round_trip(cluster, seconds) for seconds in (1.0, RTT_S) * 5]
    assert set(ceilings) == {WINDOW}


def test_the_ceiling_falls_with_every_long_round_trip_after_the_first_by_half_at_most() -> None:
    """A round trip is over when a later one brings its first result: so the third shows what the second was."""
    cluster = started()
    first, second, third = (round_trip(cluster, RTT_S + 2 * QUEUE_S) for _ in range(3))
    assert first == second == WINDOW
    assert DECREASE_MOST * WINDOW < third < WINDOW
    round_trip(cluster, 1.0)
    before = round_trip(cluster, 1.0)
    assert round_trip(cluster, 1.0) == max(int(DECREASE_MOST * before), CWND_LEAST)


def test_the_ceiling_never_falls_below_a_quarter_of_the_window() -> None:
    window = 2 * CEILING_SHARE * CWND_LEAST
    cluster = started(window)
    assert [round_trip(cluster, 1.0) for _ in range(10)][-1] == window // CEILING_SHARE


@pytest.mark.parametrize("window", [1, 4, CWND_LEAST, 2 * CWND_LEAST])
def test_a_small_window_keeps_what_fills_batches(window: int) -> None:
    cluster = started(window)
    assert [round_trip(cluster, 1.0) for _ in range(10)][-1] == min(window, CWND_LEAST)


def test_the_ceiling_rises_again_when_queues_are_short() -> None:
    cluster = started()
    for _ in range(10):
        round_trip(cluster, 1.0)
    ceilings = [round_trip(cluster, RTT_S) for _ in range(10)]
    assert ceilings == sorted(ceilings)
    assert ceilings[-1] == WINDOW


def test_no_more_is_sent_than_the_switch_has_room_for() -> None:
    cluster = started()
    cluster.engines[0].limit(7)
    assert len(cluster.send(0)) == 7
    assert cluster.send(0) == []


def test_what_is_out_when_room_becomes_less_is_waited_for() -> None:
    cluster = started()
    sent = cluster.send(0)
    cluster.engines[0].limit(8)
    cluster.take(cluster.aggregate(sent[:-8]))
    assert cluster.send(0) == []
    cluster.take(cluster.aggregate(sent[-8:]))
    assert len(cluster.send(0)) == 8


def test_more_room_counts_at_once() -> None:
    cluster = started()
    cluster.engines[0].limit(1)
    sent = cluster.send(0)
    cluster.engines[0].limit(WINDOW)
    assert len(sent) == 1
    assert len(cluster.send(0)) >= WINDOW // 2
