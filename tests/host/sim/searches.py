"""The small worlds whose interleavings are searched to the end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType

from .fabrics import TwoLevels
from .search import Found, Search
from .world import World, make_world

LANES = 16
"""So that blocks of scales have room for a signature."""


def two_tensors(workers: int, window: int = 1, blocks: int = 1) -> World:
    """Two tensors of ``blocks`` value blocks each, with a block of scales before: 4 blocks, if that is one."""
    sizes = [(blocks * LANES, FloatType.FLOAT32)] * 2
    return make_world(5, job_format("nat8"), workers, LANES, window, 1, sizes)


def one_tensor(workers: int) -> World:
    """One tensor of three value blocks, with a block of scales before."""
    return make_world(5, job_format("nat8"), workers, LANES, 1, 1, [(3 * LANES, FloatType.FLOAT32)])


def short_tensor(workers: int) -> World:
    """One tensor of one value block, with a block of scales before."""
    return make_world(5, job_format("nat8"), workers, LANES, 1, 1, [(LANES, FloatType.FLOAT32)])


def refined_tensor(workers: int) -> World:
    """One tensor of two value blocks, with a block of scales and one of their refinements before."""
    return make_world(5, job_format("dith8"), workers, LANES, 1, 1, [(2 * LANES, FloatType.FLOAT32)])


def scattered_tensor(workers: int) -> World:
    """One tensor of a value block for each rank, with a block of scales before."""
    return make_world(
        5, job_format("nat8"), workers, LANES, 1, 1, [(workers * LANES, FloatType.FLOAT32)], scattered=(0,)
    )


ONE_ONE, TWO_ONE = TwoLevels((1, 1)), TwoLevels((2, 1))


@dataclass(frozen=True, slots=True)
class Plan:
    """A search, and how many states it has at least: fewer would mean that it has begun to look away."""

    name: str
    world: World
    states: int
    everlasting: bool = True
    lost: int = 0
    repeated: int = 0
    restarts: int = 0
    tree: TwoLevels | None = None

    def search(self) -> Search:
        return Search(
            self.world,
            self.tree,
            everlasting=self.everlasting,
            lost=self.lost,
            repeated=self.repeated,
            restarts=self.restarts,
        )


def plans(slow: bool) -> list[Plan]:
    """All that are walked by default, or the larger ones."""
    if slow:
        return [
            Plan("2 ranks, 2 slots, 4 blocks, one loss, one copy", two_tensors(2), 700_000, False, lost=1, repeated=1),
            Plan("2 ranks, 2 slots, 4 blocks, one copy", one_tensor(2), 200_000, False, repeated=1),
            Plan("2 ranks, 4 slots, 8 blocks, a restart", two_tensors(2, 2, 3), 65_000, restarts=1),
            Plan("3 ranks, 2 slots, 4 blocks, two restarts", two_tensors(3), 42_000, restarts=2),
            Plan("4 ranks, 2 slots, 4 blocks", two_tensors(4), 34_000),
            Plan("3 ranks, 4 slots, 6 blocks", two_tensors(3, 2, 2), 50_000),
            Plan("leaves of 2 and 2, 2 slots, 4 blocks", one_tensor(4), 600_000, tree=TwoLevels((2, 2))),
            Plan("leaves of 2 and 1, 2 slots, 4 blocks, a restart", one_tensor(3), 180_000, restarts=1, tree=TWO_ONE),
            Plan("leaves of 1 and 1, 2 blocks, one loss", short_tensor(2), 440_000, False, lost=1, tree=ONE_ONE),
            Plan("leaves of 1 and 1, 2 blocks, one copy", short_tensor(2), 850_000, False, repeated=1, tree=ONE_ONE),
            Plan(
                "a leaf of 1, 2 slots, 4 blocks, two losses, one copy", one_tensor(1), 860_000, False, lost=2,
                repeated=1, tree=TwoLevels((1,)),
            ),
        ]  # fmt: skip
    return [
        Plan("2 ranks, 2 slots, 4 blocks of two tensors", two_tensors(2), 300),
        Plan("2 ranks, 2 slots, 4 blocks of one tensor", one_tensor(2), 120),
        Plan("3 ranks, 2 slots, 4 blocks of two tensors", two_tensors(3), 3_200),
        Plan("3 ranks, 2 slots, 4 blocks of one tensor", one_tensor(3), 700),
        Plan("3 ranks, 2 slots, 4 blocks, refined", refined_tensor(3), 700),
        Plan("2 ranks, 2 slots, 3 blocks, scattered", scattered_tensor(2), 90),
        Plan("3 ranks, 2 slots, 4 blocks, scattered", scattered_tensor(3), 700),
        Plan("3 ranks, 2 slots, 4 blocks, scattered, a restart", scattered_tensor(3), 4_500, restarts=1),
        Plan("2 ranks, 2 slots, 3 blocks, scattered, one loss", scattered_tensor(2), 16_000, False, lost=1),
        Plan("2 ranks, 2 slots, 4 blocks, two restarts", two_tensors(2), 2_700, restarts=2),
        Plan("3 ranks, 2 slots, 4 blocks, a restart", two_tensors(3), 21_000, restarts=1),
        Plan("2 ranks, 4 slots, 8 blocks", two_tensors(2, 2, 3), 5_000),
        Plan("2 ranks, 2 slots, 4 blocks, one loss", one_tensor(2), 150_000, False, lost=1),
        Plan("leaves of 2 and 1, 2 slots, 4 blocks", one_tensor(3), 51_000, tree=TWO_ONE),
        Plan("leaves of 1 and 1, 2 slots, 4 blocks of 2 parts", one_tensor(2), 18_000, tree=TwoLevels((1, 1), 2)),
        Plan("leaves of 1 and 1, 2 slots, 4 blocks, a restart", one_tensor(2), 14_000, restarts=1, tree=ONE_ONE),
        Plan("leaves of 1 and 1, 2 slots, 3 blocks, scattered", scattered_tensor(2), 1_000, tree=ONE_ONE),
        Plan("leaves of 2 and 1, 2 slots, 4 blocks, scattered", scattered_tensor(3), 10_000, tree=TWO_ONE),
        Plan("a leaf of 1, 2 slots, 4 blocks, one loss", one_tensor(1), 100_000, False, lost=1, tree=TwoLevels((1,))),
    ]


def describe(plan: Plan, found: Found) -> str:
    """A line."""
    network = "everlasting network" if plan.everlasting else "counting network"
    return f"{plan.name}, {network}: {found.states:,} states, {found.transitions:,} transitions"


def print_searches(slow: bool) -> None:
    """Walk them all."""
    for plan in plans(slow):
        start_s = time.monotonic()
        found = plan.search().run()
        print(
            f"{describe(plan, found)}, {found.core_states} of the cores ({time.monotonic() - start_s:.1f} s)",
            flush=True,
        )
