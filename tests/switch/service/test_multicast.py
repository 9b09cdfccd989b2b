"""To which group a switch is ordered to send the results of a job, and what its ranks are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.switch.control.world import RecordingDriver, World, resume, spec
from tests.switch.service.serving import Serving, job_spec, join_request

from inagg_switch.binding import Address

PREFIX = "239.255.0.0/16"


@pytest.fixture
def world() -> World:
    return World(RecordingDriver(shard_count=2, groups=PREFIX))


def bound(world: World, job: int = 1) -> list[Address | None]:
    """The groups that the shards send the results of a job to."""
    return [world.driver.bound[shard, job].group for shard in range(world.driver.shard_count)]


def test_a_job_whose_ranks_can_all_listen_has_a_group_on_each_shard(world: World) -> None:
    for rank in range(2):
        world.join(rank, multicast=True)
    assert bound(world) == [("239.255.0.1", 5000), ("239.255.0.1", 5001)]


def test_jobs_have_groups_of_their_own(world: World) -> None:
    for name in "ab":
        for rank in range(2):
            world.join(rank, spec(name), multicast=True)
    assert bound(world, 2) == [("239.255.0.2", 5000), ("239.255.0.2", 5001)]


@pytest.mark.parametrize("deaf", [0, 1])
def test_one_rank_that_cannot_listen_has_all_served_one_by_one(world: World, deaf: int) -> None:
    for rank in range(2):
        world.join(rank, multicast=rank != deaf)
    assert bound(world) == [None, None]


def test_a_switch_that_does_not_multicast_serves_all_one_by_one() -> None:
    world = World()
    for rank in range(2):
        world.join(rank, multicast=True)
    assert bound(world) == [None]


def test_a_rank_that_found_that_it_cannot_listen_joins_again_without(world: World) -> None:
    tickets = [world.join(rank, multicast=True) for rank in range(2)]
    epoch = world.epochs[tickets[0]]
    world.join(0, brings=resume(epoch, 0, 0))
    world.join(1, brings=resume(epoch, 0, 0), multicast=True)
    assert bound(world) == [None, None]
    assert world.job().epochs.number == 2


def test_a_repeated_join_is_told_the_group_again(world: World) -> None:
    tickets = [world.join(rank, multicast=True) for rank in range(2)]
    again = world.join(1, multicast=True)
    assert world.epochs[again] is world.epochs[tickets[1]]


def test_the_reply_tells_the_group_of_each_shard(serve: Callable[..., Serving]) -> None:
    serving = serve(RecordingDriver(shard_count=2, groups=PREFIX))
    for reply in serving.join_all(multicast=True):
        groups = [(shard.group.host, shard.group.port) for shard in reply.shards]
        assert groups == [("239.255.0.1", 5000), ("239.255.0.1", 5001)]


def test_the_reply_to_a_worker_that_says_nothing_of_multicast_tells_none(serve: Callable[..., Serving]) -> None:
    serving = serve(RecordingDriver(groups=PREFIX))
    reply = serving.client.join(join_request(0, job_spec(workers=1)))
    assert not reply.shards[0].HasField("group")
