"""A P4 switch that fails in the middle of what it was told: slots are free only when nothing of their job is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.p4.entry_keys import key_of
from tests.p4.rig import make_network
from tests.switch.aggregation.world import make_binding
from tests.switch.control.world import World, spec

from inagg_switch.binding import Binding
from inagg_switch.control.refusals import ControlError
from inagg_switch.driver import DriverError
from inagg_switch.p4.builds import build
from inagg_switch.p4.p4_driver import P4Driver
from inagg_switch.p4.plane import Cell, Count, Delete, Entry, Group, Insert, Plane, SlotState, Update

SPEC = spec(workers=2, lanes=32, window=512)
"""A job that takes all slots of the switch, so that the next one can only have its."""


class FailingPlane:
    """Has entries and nothing else. Updates (and readings) number ``fails`` fail; what went before them is done."""

    def __init__(self, fails: range = range(0)) -> None:
        self.entries: dict[object, Entry | Group] = {}
        self.fails = fails
        self.asked = 0

    def _ask(self) -> None:
        self.asked += 1
        if self.asked - 1 in self.fails:
            raise DriverError("cut off")

    def write(self, updates: Sequence[Update]) -> None:
        for update in updates:
            self._ask()
            match update:
                case Delete(what):
                    self.entries.pop(key_of(what), None)
                case Insert(what):
                    if key_of(what) in self.entries:
                        raise DriverError("there is one already")
                    self.entries[key_of(what)] = what

    def counts(self, cells: Sequence[Cell]) -> Mapping[Cell, Count]:
        self._ask()
        return dict.fromkeys(cells, Count(0, 0))

    def slots(self, first: int, count: int) -> list[SlotState] | None:
        return None

    def died(self) -> str | None:
        return None

    @property
    def sentinels(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        """Nothing is open."""


class OneSwitch(P4Driver):
    """As `World` wants it."""

    shard_count = 1

    def __init__(self, plane: Plane) -> None:
        chosen = build("nat8-32")
        super().__init__(plane, chosen, make_network(["10.0.0.1"]), name="test")
        self.bound: dict[tuple[int, int], Binding] = {}


def start(fails: range) -> tuple[World, FailingPlane, int]:
    """A world whose switch fails at updates ``fails``, counted from here, and how many entries it has of no job."""
    plane = FailingPlane()
    world = World(OneSwitch(plane))  # type: ignore[arg-type]  # what it takes of a recording driver, this one has
    plane.fails, plane.asked = fails, 0
    return world, plane, len(plane.entries)


def check(world: World, plane: FailingPlane, base: int) -> None:
    if world.slots_leased == 0:
        assert len(plane.entries) == base, "free slots, but the switch still has their job"


def live(world: World, plane: FailingPlane, base: int) -> None:
    """A job begins, gets a new epoch with other addresses, and ends."""
    for ports in (4000, 4100):
        for rank in range(2):
            with suppress(ControlError):  # no room, while the slots of the one that failed are not free
                world.join(rank, SPEC, port=ports + rank)
            check(world, plane, base)
    if "job" in world.registry.jobs.by_name:
        world.registry.leave(world.now, "job", rank, 100 + rank, end=True)
        world.pump()
    check(world, plane, base)


def serves(world: World, name: str) -> bool:
    """Whether a job of that name gets its epoch; then it ends."""
    try:
        tickets = [world.join(rank, spec(name, workers=2, lanes=32, window=512)) for rank in range(2)]
    except ControlError:  # no room
        return False
    began = all(ticket in world.epochs for ticket in tickets)
    if name in world.registry.jobs.by_name:
        world.leave(0, name, end=True)
    return began


def updates_of_a_life() -> int:
    world, plane, base = start(range(0))
    live(world, plane, base)
    assert len(plane.entries) == base
    return plane.asked


@pytest.mark.parametrize("outage", [1, 2, 12], ids="{}_failures".format)
def test_slots_are_free_only_when_nothing_of_their_job_is_left(outage: int) -> None:
    """Wherever the failure hits: binding, the clean-up after it, binding again, unbinding, reading counters."""
    quarantined = 0
    for first in range(updates_of_a_life()):
        world, plane, base = start(range(first, first + outage))
        live(world, plane, base)
        quarantined += world.slots_leased > 0
        for attempt in range(200):
            if serves(world, f"next-{attempt}"):
                break
            check(world, plane, base)
            world.wait(5.0)
        else:
            pytest.fail(f"the switch never served again after update {first} had failed")
        world.wait(600.0)
        assert world.slots_leased == 0
        check(world, plane, base)
    assert quarantined > 0


def test_a_job_that_could_be_neither_bound_nor_dropped_is_written_whole_the_next_time() -> None:
    """Of what was to be written nobody knows what the switch has."""
    binding = make_binding(7, n=2, children=(("10.0.0.1", 4000), ("10.0.0.1", 4001)))
    again = replace(binding, token=binding.token + 1)
    wanted = FailingPlane()
    OneSwitch(wanted).bind(0, again)
    updates = wanted.asked
    for first in range(updates):
        plane = FailingPlane()
        switch = OneSwitch(plane)
        plane.fails, plane.asked = range(first, first + 2), 0
        with suppress(DriverError):
            switch.bind(0, binding)
        plane.fails = range(0)
        switch.bind(0, again)
        assert plane.entries.keys() == wanted.entries.keys(), f"after update {first} had failed"
