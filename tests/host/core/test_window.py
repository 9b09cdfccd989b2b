"""When blocks are sent, sent again, and how many at a time. Ranks of one: the switch answers each at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inagg_host.core.recovery import (
    CWND_EXPIRED,
    CWND_LEAST,
    REORDER_BLOCKS,
    RTO_FIRST_S,
    RTO_MIN_S,
    SPURIOUS_MOST,
    rto_s,
)
from inagg_wire.layout import Op

from .cluster import Cluster, Datagram, blocks, shard_of

RTT_S = 0.001


def begun(window: int = 64, values: int = 200, workers: int = 1) -> tuple[Cluster, Any]:
    """A cluster that has agreed on the first scales of ``values`` value blocks, in a round trip of `RTT_S`; and the
    record of rank 0's shard."""
    cluster = Cluster(workers, lanes=256, window=window)
    cluster.submit_all([np.ones(256 * values)] * workers)
    (engine, *_) = cluster.engines
    sent = [datagram for rank in range(workers) for datagram in cluster.send(rank)]
    cluster.now += RTT_S
    cluster.take(cluster.aggregate(sent))
    return cluster, shard_of(engine)


# --- the window ---


def test_the_first_block_of_values_waits_for_its_scales() -> None:
    cluster = Cluster(1)
    cluster.submit(0, np.ones(5))
    assert [d.header.op for d in cluster.send(0)] == [Op.MAX]
    assert cluster.send(0) == []


def test_a_window_of_blocks_is_sent_and_no_more() -> None:
    cluster, _ = begun(window=16)
    assert len(cluster.send(0)) == 16
    assert cluster.send(0) == []


def test_results_let_the_next_blocks_go() -> None:
    cluster, _ = begun(window=16)
    sent = cluster.send(0)
    cluster.take(cluster.aggregate(sent[:8]))
    assert blocks(cluster.send(0)) == [sent[-1].block + 1 + i for i in range(8)]


def test_while_more_than_half_is_out_the_next_blocks_wait_for_each_other() -> None:
    """Small batches cost as much as large ones."""
    cluster, _ = begun(window=16)
    sent = cluster.send(0)
    cluster.take(cluster.aggregate(sent[:7]))
    assert cluster.send(0) == []
    cluster.take(cluster.aggregate(sent[7:8]))
    assert len(cluster.send(0)) == 8


def test_a_missing_result_holds_the_window_whatever_came_after() -> None:
    """Block b + P only after the results of all blocks up to b."""
    cluster, window = begun(window=16)
    first, *others = cluster.send(0)
    cluster.take(cluster.aggregate(others))
    assert window["snd_una"] == first.block
    assert all(d.block == first.block for d in cluster.send(0))


def test_batches_end_where_the_ring_does() -> None:
    """So that a batch is one piece of memory."""
    cluster, _ = begun(window=8, values=40)
    for _ in range(5):
        for out in cluster.engines[0].outgoing(cluster.now):
            slots = [Datagram(0, 0, 0, row.tobytes()).header.slot for row in out.data.reshape(-1, out.size)]
            assert slots == sorted(slots)
            cluster.take(cluster.aggregate(Datagram(0, 0, 0, row.tobytes()) for row in out.data.reshape(-1, out.size)))


# --- sent again because it was overtaken ---


def test_a_block_is_sent_again_when_the_third_after_it_is_answered() -> None:
    cluster, _ = begun()
    lost, *others = cluster.send(0)
    for datagram in others[: REORDER_BLOCKS - 1]:
        cluster.take(cluster.aggregate([datagram]))
    assert lost.block not in blocks(cluster.send(0))
    cluster.take(cluster.aggregate([others[REORDER_BLOCKS - 1]]))
    assert lost.block in blocks(cluster.send(0))


def test_a_timer_that_runs_out_for_nothing_gets_longer() -> None:
    """What was waited for has nothing to do with what was sent again; a result in time does."""
    cluster, window = begun(window=16)
    counts = []
    for late_s in (0.1, 0.1, 0.1, RTT_S):
        sent = cluster.send(0)
        expired(cluster)
        cluster.now += late_s
        cluster.take(cluster.aggregate(sent))
        counts.append(int(window["spurious"]))
    assert counts == [1, 2, 3, 1]


def test_a_gap_in_the_results_makes_a_timer_short_that_had_run_out_for_nothing() -> None:
    """The path loses."""
    cluster, window = begun()
    window["spurious"] = SPURIOUS_MOST
    _, *others = cluster.send(0)
    cluster.take(cluster.aggregate(others[:REORDER_BLOCKS]))
    assert window["spurious"] == 0


def test_a_block_that_was_sent_again_is_given_time_to_be_answered() -> None:
    cluster, _ = begun()
    lost, *others = cluster.send(0)
    cluster.take(cluster.aggregate(others[:10]))
    assert lost.block in blocks(cluster.send(0))
    cluster.take(cluster.aggregate(others[10:30]))
    assert lost.block not in blocks(cluster.send(0))


def test_it_is_lost_again_when_a_block_that_was_new_after_it_is_answered() -> None:
    cluster, window = begun()
    window["cwnd"] = CWND_LEAST  # so that there is room for new ones
    lost, *others = cluster.send(0)
    cluster.take(cluster.aggregate(others[:20]))
    again, *new = cluster.send(0)
    assert again.block == lost.block
    cluster.take(cluster.aggregate(new[: REORDER_BLOCKS - 1]))
    assert lost.block not in blocks(cluster.send(0))
    cluster.take(cluster.aggregate(new[REORDER_BLOCKS - 1 : REORDER_BLOCKS]))
    assert lost.block in blocks(cluster.send(0))


def test_the_answer_to_what_was_sent_again_accuses_no_other_block() -> None:
    """Those may wait for a rank that has yet to send them: only in the order of blocks is there proof."""
    cluster, _ = begun(workers=2)
    mine, theirs = cluster.send(0), cluster.send(1)
    lost = mine[0].block
    cluster.take(cluster.aggregate([*mine[1:6], *theirs[:6]]))
    again = [datagram for datagram in cluster.send(0) if datagram.block == lost]
    assert len(again) == 1
    cluster.take(cluster.aggregate(again))  # rank 1 has sent no block beyond the sixth
    assert [datagram for datagram in cluster.send(0) if datagram.block <= mine[-1].block] == []


def test_it_is_sent_again_byte_for_byte() -> None:
    cluster, _ = begun()
    lost, *others = cluster.send(0)
    cluster.take(cluster.aggregate(others))
    assert lost in cluster.send(0)


# --- sent again because time has passed ---


def test_nothing_is_due_while_nothing_is_out() -> None:
    cluster = Cluster(1)
    assert cluster.engines[0].deadline is None
    cluster.submit(0, np.ones(5))
    assert cluster.engines[0].deadline is None
    cluster.run()
    assert cluster.engines[0].deadline is None


def test_the_timer_starts_when_something_is_sent() -> None:
    cluster = Cluster(1)
    cluster.now = 50.0
    cluster.submit(0, np.ones(5))
    cluster.now = 60.0
    cluster.send(0)
    assert cluster.engines[0].deadline == 60.0 + RTO_FIRST_S


def test_nothing_is_sent_again_before_its_time() -> None:
    cluster = Cluster(1)
    cluster.submit(0, np.ones(5))
    cluster.send(0)
    cluster.now += RTO_FIRST_S * 0.99
    assert cluster.send(0) == []


def test_when_the_timer_runs_out_the_first_and_the_last_block_are_sent_again() -> None:
    """The others may wait for a slow rank; if they are lost, the answer to the last will tell."""
    cluster, _ = begun(window=16)
    sent = cluster.send(0)
    cluster.now += RTO_FIRST_S
    assert cluster.send(0) == [sent[0], sent[-1]]


def test_the_answer_to_the_last_tells_that_the_others_are_lost() -> None:
    cluster, _ = begun(window=16)
    sent = cluster.send(0)
    cluster.now += RTO_FIRST_S
    cluster.take(cluster.aggregate(cluster.send(0)))
    assert set(blocks(sent[1:-REORDER_BLOCKS])) <= set(blocks(cluster.send(0)))


def test_a_result_starts_the_timer_anew() -> None:
    """RFC 6298, 5.3."""
    cluster, window = begun(window=16)
    sent = cluster.send(0)
    cluster.now += RTO_MIN_S * 0.5
    cluster.take(cluster.aggregate(sent[:1]))
    assert cluster.engines[0].deadline == cluster.now + rto_s(cluster.engines[0].state.job[0], window)


def test_each_time_that_it_runs_out_the_timer_takes_twice_as_long() -> None:
    cluster = Cluster(1)
    cluster.submit(0, np.ones(5))
    cluster.send(0)
    waits_s = []
    for _ in range(4):
        deadline_s = cluster.engines[0].deadline
        assert deadline_s is not None
        waits_s.append(deadline_s - cluster.now)
        cluster.now = deadline_s
        assert len(cluster.send(0)) == 1
    assert waits_s == pytest.approx([RTO_FIRST_S * 2**i for i in range(4)])


def test_the_result_of_what_was_sent_again_ends_the_backing_off() -> None:
    cluster, window = begun(window=16)
    first, *_ = cluster.send(0)
    for _ in range(5):
        cluster.now += 1.0
        cluster.send(0)
    assert window["backoff"] == window["timeouts"] == 5
    cluster.take(cluster.aggregate([first]))
    assert window["backoff"] == 0


def test_a_late_result_of_what_was_sent_once_does_not() -> None:
    """It tells that the timer is too short for the path, not that something was lost."""
    cluster, window = begun(window=16)
    sent = cluster.send(0)
    for _ in range(5):
        cluster.now += 1.0
        cluster.send(0)
    cluster.take(cluster.aggregate(sent[3:4]))
    assert window["backoff"] == 5


# --- what is out is lost ---


def expired(cluster: Cluster) -> list[Datagram]:
    """What is sent when the timer runs out."""
    deadline_s = cluster.engines[0].deadline
    assert deadline_s is not None
    cluster.now = deadline_s
    return cluster.send(0)


def test_if_only_what_the_timer_sent_again_is_answered_all_is_sent_again() -> None:
    cluster, _ = begun()
    sent = blocks(cluster.send(0))
    again = expired(cluster)
    cluster.take(cluster.aggregate(again[:1]))
    assert cluster.send(0) == []
    assert blocks(expired(cluster)) == sent[1 : 1 + CWND_EXPIRED]


def test_each_result_then_lets_the_next_be_sent_again() -> None:
    cluster, _ = begun()
    sent = blocks(cluster.send(0))
    cluster.take(cluster.aggregate(expired(cluster)[:1]))
    first, second, *_ = expired(cluster)
    cluster.take(cluster.aggregate([first]))
    assert blocks(cluster.send(0)) == sent[1 + CWND_EXPIRED : 2 + CWND_EXPIRED]
    cluster.take(cluster.aggregate([second]))
    assert blocks(cluster.send(0)) == sent[2 + CWND_EXPIRED : 3 + CWND_EXPIRED]


def test_if_nothing_is_answered_the_others_may_wait_for_a_slow_rank() -> None:
    cluster, _ = begun()
    sent = blocks(cluster.send(0))
    assert blocks(expired(cluster)) == [sent[0], sent[-1]]
    assert [blocks(expired(cluster)) for _ in range(3)] == [sent[:1]] * 3


# --- samples of the round trip ---


def test_a_round_trip_is_measured_from_the_sending_to_the_result() -> None:
    _, window = begun()
    assert window["samples"] == 1
    assert window["srtt_s"] == pytest.approx(RTT_S)


def test_what_was_sent_twice_is_no_sample() -> None:
    """Karn's rule: nobody knows which of the two was answered."""
    cluster = Cluster(1)
    cluster.submit(0, np.ones(5))
    cluster.send(0)
    cluster.now += RTO_FIRST_S
    cluster.take(cluster.aggregate(cluster.send(0)))
    assert shard_of(cluster.engines[0])["samples"] == 0


def test_what_was_out_when_the_timer_ran_out_is_no_sample() -> None:
    """It may have waited for the timer of another rank, and if all took that for the network's time, it would grow."""
    cluster, window = begun(window=16)
    sent = cluster.send(0)
    cluster.now += 0.5
    cluster.send(0)
    cluster.take(cluster.aggregate(sent))
    assert window["samples"] == 1
    assert window["srtt_s"] == pytest.approx(RTT_S)


def test_one_sample_a_round_trip_the_shortest() -> None:
    cluster, window = begun(window=32)
    sent = cluster.send(0)
    for wait_s in (0.003, 0.001, 0.002):
        cluster.now += wait_s
        cluster.take(cluster.aggregate(sent[:4]))
        sent = sent[4:] + cluster.send(0)
    assert window["samples"] == 2  # one of the first block of scales, one when the first value block came
    assert window["srtt_s"] == pytest.approx(RTT_S * 7 / 8 + 0.003 / 8)


# --- how many may be out ---


def exchange(cluster: Cluster, lose: float = 0.0) -> int:
    """A round trip of all that is to be sent, of which the share ``lose`` is lost, but none of the first eight: a lost
    block of scales would hold up everything. How many may be out then."""
    sent = cluster.send(0)
    cluster.now += RTT_S
    cluster.take(cluster.aggregate(sent[:8] + sent[8 + round(lose * len(sent)) :]))
    return int(shard_of(cluster.engines[0])["cwnd"])


def test_the_whole_window_is_out_when_nothing_is_lost() -> None:
    cluster, _ = begun(window=128, values=2000)
    assert [exchange(cluster) for _ in range(10)] == [128] * 10


def test_three_eighths_are_out_while_a_little_is_lost() -> None:
    """The rest of the window is room to go on in while the lost block is got."""
    cluster, _ = begun(window=256, values=4000)
    flights = [exchange(cluster, lose=0.05) for _ in range(16)]
    assert set(flights[4:]) == {96}


def test_half_as_much_is_out_each_time_that_much_is_lost_down_to_a_least() -> None:
    cluster, _ = begun(window=256, values=4000)
    flights = [exchange(cluster, lose=0.4) for _ in range(10)]
    assert flights[:4] == [256, 128, 64, 32]
    assert set(flights[4:]) == {CWND_LEAST}


def test_the_window_opens_again_when_nothing_is_lost_any_more() -> None:
    cluster, _ = begun(window=256, values=8000)
    exchange(cluster, lose=0.05)
    flights = [exchange(cluster) for _ in range(16)]
    assert flights == sorted(flights)
    assert flights[0] == 96
    assert flights[-1] == 256


@pytest.mark.parametrize("size", [1, 2, 8, 32])
def test_a_small_window_is_made_no_smaller_than_the_timer_makes_a_large_one(size: int) -> None:
    cluster, window = begun(window=size, values=300)
    for _ in range(10):
        exchange(cluster, lose=0.5)
        cluster.now += 1.0
    assert window["cwnd"] >= min(size, CWND_EXPIRED)
