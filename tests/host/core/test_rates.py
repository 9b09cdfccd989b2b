"""How much of a link's rate is left when datagrams are lost, or a queue is short, in virtual time."""

from __future__ import annotations

import pytest
from tests.host.sim.network import Weather
from tests.host.sim.rates import DATAGRAM_S, DELAY_S, measure, rates


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize(("workers", "share"), [(2, 0.9), (4, 0.8)])
def test_one_percent_of_loss_leaves_most_of_the_rate(workers: int, share: float, one_by_one: bool) -> None:
    """Of the rate without loss. What one of four ranks has lost, all four wait for."""
    calm, lossy = rates(workers, one_by_one, seeds=1, losses=(0.0, 0.01))
    assert lossy.blocks_per_s >= share * calm.blocks_per_s


def test_nothing_is_sent_twice_when_nothing_is_lost() -> None:
    (calm,) = rates(4, one_by_one=True, losses=(0.0,))
    assert calm.resent == 0


def test_a_contribution_that_is_lost_is_sent_again_about_once_by_each_rank() -> None:
    """One in a hundred on each of five links: nearly one in twenty is sent again, since all wait for the one."""
    (lossy,) = rates(4, one_by_one=False, seeds=2, losses=(0.01,))
    assert lossy.resent == pytest.approx(1 - 0.99**5, rel=0.2)


@pytest.mark.parametrize(("queue", "of_link"), [(256, 0.8), (128, 0.75), (64, 0.45)])
def test_a_short_queue_is_not_overrun_for_long(queue: int, of_link: float) -> None:
    weather = Weather(delay_s=DELAY_S, datagram_s=DATAGRAM_S, queue=queue)
    rate = measure(4, weather, one_by_one=False, seeds=1)
    assert rate.of_link > of_link
    assert rate.resent < 0.35


@pytest.mark.parametrize("queue", [pytest.param(100, marks=pytest.mark.slow), 690])
def test_a_trunk_that_many_ranks_overrun_is_used_well(queue: int) -> None:
    """Each rank loses others of its blocks, so that hardly one has all contributions: only timers can tell. They are
    too short at first, as the queue is a hundred round trips long."""
    weather = Weather(delay_s=DELAY_S, datagram_s=60e-6, queue=queue, sharers=8)
    assert measure(8, weather, one_by_one=True, seeds=1, blocks=2000).of_link > 0.4
