"""Which switches there are below the root, which of them a job uses, and what becomes of it when one goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.switch.control.world import LIMITS

from inagg_switch.control import events as ev
from inagg_switch.control.admission import JobSpec, check
from inagg_switch.control.events import ROOT
from inagg_switch.control.explain import explain
from inagg_switch.control.members import JoinRequest, Resume
from inagg_switch.control.policy import Policy
from inagg_switch.control.refusals import Code, ControlError
from inagg_switch.control.registry import Registry
from inagg_switch.control.topology import AttachedSwitch, Topology
from inagg_switch.driver import Shard

ROOT_SHARDS = (Shard(("10.0.0.1", 47101), 1024),)


def switch(name: str, parent: str = ROOT, slots: int = 1024, shards: int = 1, **limits: Any) -> AttachedSwitch:
    planes = tuple(Shard((f"10.1.0.{len(name) + i}", 5000 + sum(map(ord, name))), slots) for i in range(shards))
    return AttachedSwitch(name, parent, planes, replace(LIMITS, **limits))


OF_IPV6 = AttachedSwitch("c", ROOT, (Shard(("fd00::1", 5000), 1024),), LIMITS)


def make(*switches: AttachedSwitch, trees: bool = True) -> Topology:
    topology = Topology(ROOT_SHARDS, replace(LIMITS, trees=trees))
    for one in switches:
        topology.attach(one)
    return topology


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (switch("a"), "another of that name is there"),
        (switch("a b"), "letters, digits and any of"),
        (switch("c", "ab"), "at most 3 levels"),
        (switch("c", slots=512), "start it with --slots 1024"),
        (OF_IPV6, "at fd00::1, and those of its parent at 10.0.0.1: give both addresses of IPv4, or both of IPv6"),
        (switch("c", shards=2), "it has 2 shards, and the root 1: start it with --shards 1"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(new: AttachedSwitch, words: str) -> None:
    topology = make(switch("a"), switch("ab", "a"))
    before = dict(topology.switches)
    with pytest.raises(ControlError, match=words) as caught:
        topology.attach(new)
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert topology.switches == before


def test_a_switch_whose_parent_is_not_there_yet_may_try_again() -> None:
    topology = make(switch("a"))
    with pytest.raises(ControlError, match="its parent 'nobody' is not there: try again") as caught:
        topology.attach(switch("c", "nobody"))
    assert caught.value.code is Code.UNAVAILABLE


def test_a_switch_has_thirty_two_below_it_and_no_more() -> None:
    topology = make(*(switch(f"s{i}") for i in range(32)))
    with pytest.raises(ControlError, match="has 32 switches already"):
        topology.attach(switch("s32"))
    topology.attach(switch("s32", "s0"))


def test_a_p4_switch_has_others_below_it_if_its_program_is_for_that() -> None:
    with pytest.raises(ControlError, match=r"P4 switch.*--program \.\.\.-root"):
        make(switch("a"), trees=False)


def test_the_smallest_window_of_all_switches_is_that_of_a_tree() -> None:
    assert make(switch("a"), switch("b")).limits.window is None
    assert make(switch("a"), switch("b", window=16), switch("c", window=64)).limits.window == 16


def test_who_goes_takes_those_below_with_it() -> None:
    topology = make(switch("a"), switch("b"), switch("a1", "a"), switch("a2", "a"))
    assert set(topology.detach("a")) == {"a", "a1", "a2"}
    assert set(topology.switches) == {"b"}


def test_limits_are_those_that_all_have() -> None:
    topology = make(switch("a", lanes=720), switch("b", datagram_bytes=1000, formats=frozenset({"nat8", "tern"})))
    limits = topology.limits
    assert (limits.lanes, limits.datagram_bytes) == (720, 1000)
    assert set(limits.formats) == {"nat8", "tern"}


@pytest.mark.parametrize(
    ("at", "others", "words"),
    [
        (ROOT, {}, r"join through the switches below this one \(a, a1, b\)"),
        ("gone", {}, "is not part of the tree now"),
        ("a", dict.fromkeys(range(32), "a"), "has 32 of its ranks, and cannot have more"),
        ("a1", {0: "a"}, "rank 0 joined through a switch above 'a1'"),
        ("a", {0: "a1"}, "rank 0 joined through a switch below 'a'"),
    ],
)
def test_ranks_join_at_leaves(at: str, others: dict[int, str], words: str) -> None:
    topology = make(switch("a"), switch("b"), switch("a1", "a"))
    with pytest.raises(ControlError, match=words):
        topology.check(spec(100), 40, at, others)


def test_sums_are_rounded_as_often_as_the_format_has_room_for() -> None:
    topology = make(switch("a"), switch("a1", "a"))
    for name in ("nat8", "nat8-reencode"):
        topology.check(spec(100, format_name=name), 40, "a1", {})
    topology.check(spec(100, format_name="nat4-reencode"), 40, "a", {})
    with pytest.raises(ControlError, match="at most 2 levels for nat4-reencode: join higher up, or choose another"):
        topology.check(spec(100, format_name="nat4-reencode"), 40, "a1", {})


def spec(workers: int, **fields: Any) -> JobSpec:
    choices: dict[str, Any] = {"format_name": "nat8", "lanes": None, "window": 16, "seed": 5, "tree": True}
    return check(LIMITS, name="job", workers=workers, **(choices | fields))


def test_a_job_of_a_tree_has_lanes_that_can_be_cut() -> None:
    assert (spec(100).lanes, spec(100).parts, spec(100).slots_leased) == (1440, 4, 4 * 32)
    assert (spec(100, format_name="fix32").lanes, spec(100, format_name="fix32").parts) == (360, 1)
    with pytest.raises(ControlError, match=r"1448 lanes cannot be cut into parts .*; 1440 can"):
        spec(100, lanes=1448)


def test_more_workers_than_a_switch_serves_join_through_those_below() -> None:
    with pytest.raises(ControlError, match=r"one switch serves 1 to 32; more join through switches below it"):
        spec(33, tree=False)
    assert spec(1024).workers == 1024


class World:
    """A registry with switches below, and ranks that join through them."""

    def __init__(self, *switches: AttachedSwitch) -> None:
        self.registry = Registry(ROOT_SHARDS, LIMITS, Policy(), draw=iter(range(1, 1000)).__next__)
        for one in switches:
            self.registry.topology.attach(one)

    def join(
        self, rank: int, at: str, workers: int = 4, brings: Resume | None = None, *, multicast: bool = False
    ) -> None:
        request = JoinRequest(rank, 100 + rank, (("10.2.0.1", 6000 + rank),), brings, multicast, at)
        self.registry.join(0.0, spec(workers), request, 60.0)

    def orders(self) -> list[ev.Bind]:
        return [output for output in self.registry.drain() if isinstance(output, ev.Bind)]


def test_a_job_is_bound_on_the_switches_that_its_ranks_came_through() -> None:
    world = World(switch("a"), switch("b"), switch("a1", "a"), switch("a2", "a"), switch("idle"))
    for rank, at in enumerate(("a1", "b", "a2", "a1")):
        world.join(rank, at)
    (order,) = world.orders()
    assert set(order.by_switch) == {ROOT, "a", "b", "a1", "a2"}
    (root,), (inner,), (leaf,) = (order.by_switch[name] for name in (ROOT, "a", "a1"))
    assert [(b.world, len(b.children), b.lease.slots, b.parts) for b in (root, inner, leaf)] == [
        (4, 2, 128, 4), (4, 2, 128, 4), (4, 2, 32, 1),
    ]  # fmt: skip
    assert leaf.children == (("10.2.0.1", 6000), ("10.2.0.1", 6003))
    assert leaf.uplink is not None
    assert inner.uplink is not None
    assert (leaf.uplink.parent, leaf.uplink.parts) == (world.registry.topology.shards("a")[0].address, 4)
    assert (inner.uplink.parent, inner.uplink.parts) == (ROOT_SHARDS[0].address, 1)
    assert root.uplink is None
    assert len({b.token for bound in order.by_switch.values() for b in bound}) == 1


def test_a_leaf_multicasts_to_its_ranks_if_all_of_them_can_listen() -> None:
    plane = Shard(("10.1.0.1", 5000), 1024, "239.192.0.0/16")
    world = World(*(AttachedSwitch(name, ROOT, (plane,), LIMITS) for name in "ab"))
    for rank, (at, listens) in enumerate((("a", True), ("a", True), ("b", True), ("b", False))):
        world.join(rank, at, multicast=listens)
    (order,) = world.orders()
    assert [order.by_switch[name][0].group is not None for name in ("a", "b", ROOT)] == [True, False, False]


def test_of_a_job_whose_blocks_come_in_parts_it_is_said_which_window_would_fit() -> None:
    registry = Registry(ROOT_SHARDS, LIMITS, Policy())
    with pytest.raises(ControlError, match=r"256 blocks needs 2048 slots .* the largest window of this switch is 128"):
        registry.create(0.0, spec(4, window=256))
    registry.create(0.0, spec(4, window=64))
    with pytest.raises(ControlError, match=r"128 blocks needs 1024 slots .* that fits now is 64: ask for that"):
        registry.create(0.0, replace(spec(4, window=128), name="b"))


def test_a_quota_of_slots_counts_those_of_all_parts() -> None:
    registry = Registry(ROOT_SHARDS, LIMITS, Policy(quota_slots=384))
    registry.create(0.0, spec(4, window=32), "alice")
    with pytest.raises(ControlError, match="'alice' may have 384 slots on each shard at a time, and would have 512"):
        registry.create(0.0, replace(spec(4, window=32), name="b"), "alice")


def test_a_switch_that_goes_ends_the_epochs_of_jobs_that_use_it() -> None:
    world = World(switch("a"), switch("b"), switch("c"))
    for rank, at in enumerate("aabb"):
        world.join(rank, at)
    (order,) = world.orders()
    world.registry.bound(1.0, order.job, order.serial)
    world.registry.drain()
    world.registry.detach(2.0, "c", "test")
    assert not world.registry.drain()
    world.registry.detach(3.0, "b", "its connection ended")
    (emitted,) = [o.event for o in world.registry.drain() if isinstance(o, ev.Emit)]
    assert isinstance(emitted, ev.EpochEnded)
    assert emitted.text == "switch 'b', where ranks 2-3 joined, has gone: its connection ended"


def test_who_waits_at_a_switch_that_goes_is_sent_elsewhere() -> None:
    world = World(switch("a"), switch("b"))
    world.join(0, "a")
    world.join(1, "b")
    world.registry.drain()
    world.registry.detach(1.0, "b", "test")
    (refused,) = [output for output in world.registry.drain() if isinstance(output, ev.Refused)]
    assert refused.error.code is Code.UNAVAILABLE
    assert "join through another" in refused.error.text
    world.join(1, "a")
    for rank in (2, 3):
        world.join(rank, "a")
    assert set(world.orders()[0].by_switch) == {ROOT, "a"}


def test_a_switch_that_goes_while_the_job_is_bound_does_not_end_it() -> None:
    world = World(switch("a"), switch("b"))
    for rank, at in enumerate("aabb"):
        world.join(rank, at)
    (order,) = world.orders()
    world.registry.detach(1.0, "b", "test")
    outputs = world.registry.drain()
    assert sum(isinstance(output, ev.Refused) for output in outputs) == 2
    assert not any(isinstance(output, ev.Bind | ev.Bug) for output in outputs)
    world.registry.bound(1.5, order.job, order.serial)  # too late
    for rank in (2, 3):
        world.join(rank, "a")
    (again,) = world.orders()
    assert set(again.by_switch) == {ROOT, "a"}


def test_a_job_of_one_switch_takes_nobody_from_below() -> None:
    world = World(switch("a"))
    request = JoinRequest(0, 7, (("10.2.0.1", 6000),), None)
    world.registry.join(0.0, spec(2, tree=False), request, 60.0)
    with pytest.raises(ControlError, match=r"a rank of it has joined at the root\. All ranks"):
        world.join(1, "a", workers=2)


def test_ranks_behind_a_leaf_that_is_gone_are_cut_off_and_no_dead_processes() -> None:
    world = World(switch("a"), switch("b"))
    for rank, at in enumerate("aab"):
        world.join(rank, at, workers=3)
    registry, (order,) = world.registry, world.orders()
    registry.bound(0.0, order.job, order.serial)
    job = registry.jobs.find(0.0, "job")

    def why(now: float) -> str:
        return " ".join(explain(job, now, None, []).text)

    registry.detach(1.0, "a", "its connection ended")
    assert "Alive, but has not called Join yet: ranks 0-2." in why(1.0)
    registry.heartbeat(8.0, "job", 2, 102)
    registry.tick(8.0)
    cut_off = "Cut off: ranks 0-1, who joined at switch 'a', which is not back in the tree: start it again, or name "
    assert cut_off in why(8.0)
    assert "Alive, but has not called Join yet: rank 2." in why(8.0)
    registry.tick(12.0)
    assert cut_off in why(12.0)
    assert "look whether those processes still run" not in why(12.0)
    registry.topology.attach(switch("a"))
    assert "Silent for too long: ranks 0-1; look whether those processes still run." in why(12.0)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("goes", "ends_within_s"), [(("a",), 60.0), (("b",), 2.0), ((), 2.0)])
def test_connections_that_break_off_with_the_leaf_are_no_sign_of_processes_that_have_ended(
    goes: tuple[str, ...], ends_within_s: float, back: bool
) -> None:
    world = World(switch("a"), switch("b"))
    for rank, at in enumerate(("a", "b")):
        world.join(rank, at, workers=2)
    registry, (order,) = world.registry, world.orders()
    registry.bound(0.0, order.job, order.serial)
    job = registry.jobs.find(0.0, "job")
    registry.break_off(0.5, job, 0, 100)
    for name in goes:
        registry.detach(0.5, name, "its connection ended")
        if back:  # before anybody is given up
            registry.topology.attach(switch(name))
    registry.heartbeat(3.0, "job", 1, 101)
    registry.tick(3.0)
    events = [output.event for output in registry.drain() if isinstance(output, ev.Emit)]
    (failed,) = [event.text for event in events if isinstance(event, ev.MemberFailed)]
    assert ("as that of a process does that ends" in failed) == (goes != ("a",))
    assert ("; it joined at switch 'a', which has gone; " in failed) == (goes == ("a",))
    assert job.roster.gone() == (0,)
    assert job.grace.ends_at is not None
    assert job.grace.ends_at - 3.0 == ends_within_s


def test_a_process_that_ends_at_a_leaf_that_was_away_before_has_ended() -> None:
    world = World(switch("a"), switch("b"))
    for rank, at in enumerate(("a", "b")):
        world.join(rank, at, workers=2)
    registry, (order,) = world.registry, world.orders()
    registry.bound(0.0, order.job, order.serial)
    job = registry.jobs.find(0.0, "job")
    registry.detach(0.5, "a", "its connection ended")
    registry.topology.attach(switch("a"))
    registry.heartbeat(1.0, "job", 0, 100)
    registry.break_off(1.5, job, 0, 100)
    registry.heartbeat(3.9, "job", 1, 101)
    registry.tick(4.0)
    assert [member.rank for member in job.roster.ended()] == [0]


@pytest.mark.parametrize("binding", [False, True])
def test_who_waited_at_a_leaf_that_goes_is_no_process_that_has_ended(binding: bool) -> None:
    """Of a leaf that goes the root may hear before the connections break off of the ranks that are there."""
    world = World(switch("a"), switch("b"))
    for rank, at in enumerate("ab"):
        world.join(rank, at, workers=2)
    registry, (order,) = world.registry, world.orders()
    registry.bound(0.0, order.job, order.serial)
    job = registry.jobs.find(0.0, "job")
    registry.detach(0.5, "a", "its connection ended")
    registry.topology.attach(switch("a"))
    world.join(1, "b", workers=2)
    if binding:
        world.join(0, "a", workers=2)
    registry.detach(1.0, "b", "its connection ended")
    registry.break_off(1.0, job, 1, 101)
    registry.heartbeat(3.4, "job", 0, 100)
    registry.tick(3.5)
    assert job.roster.gone() == (1,)
    assert job.roster.ended() == []
