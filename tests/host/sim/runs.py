"""A run from one number: the world, the weather, the pace and the restarts; and how much a run may send."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from .network import draw_weather
from .simulation import Outcome, Pace, Restart, Simulation
from .trees import Shape, Tree, draw_shape
from .world import World, draw_world, with_tree

RUNS_PER_WORLD = 20
"""The reference is slow: its sums are worked out once for so many runs."""
BLOCKS = 14
TREES_FROM = 10_000_000
"""Worlds of trees have numbers from here on: others than those of flat runs."""


def make_run(seed: int, blocks: int = BLOCKS, trace: Callable[[str], None] | None = None) -> Simulation:
    """Run ``seed``, of about ``blocks`` blocks at most."""
    world, rng = draw_world(seed // RUNS_PER_WORLD, blocks), random.Random(seed)
    weather = draw_weather(rng)
    return Simulation(world, weather, seed, _draw_pace(rng, world), _draw_restarts(rng, world), trace)


def make_tree_run(seed: int, blocks: int = BLOCKS, trace: Callable[[str], None] | None = None) -> Simulation:
    """Run ``seed`` through a tree of switches, of which some forget all, too."""
    number, rng = TREES_FROM + seed // RUNS_PER_WORLD, random.Random(TREES_FROM + seed)
    world = draw_world(number, blocks)
    shape = draw_shape(rng, world.format, world.workers, world.lanes)
    if world.format.roundings:  # what must come of it depends on the tree
        world, shape = _draw_rounding_world(number, blocks)
    weather, pace = draw_weather(rng), _draw_pace(rng, world)
    names = [None, *Tree(shape, world, 0, [("10.0.0.1", 1000 + rank) for rank in range(world.workers)]).nodes]
    restarts = tuple(replace(restart, node=rng.choice(names)) for restart in _draw_restarts(rng, world))
    return Simulation(world, weather, seed, pace, restarts, trace, shape)


@lru_cache(maxsize=64)
def _draw_rounding_world(number: int, blocks: int) -> tuple[World, Shape]:
    world = draw_world(number, blocks)
    shape = draw_shape(random.Random(number), world.format, world.workers, world.lanes)
    return with_tree(world, shape.below), shape


def _draw_pace(rng: random.Random, world: World) -> Pace:
    slow = rng.random() < 0.2
    return Pace(
        one_by_one=rng.random() < 0.5,
        compute_s=rng.choice((0.0, 0.0, 0.0005, 0.02)),
        straggler=rng.randrange(world.workers),
        straggler_s=rng.choice((0.001, 0.1, 3.0)) if slow else 0.0,
    )


def _draw_restarts(rng: random.Random, world: World) -> tuple[Restart, ...]:
    count = rng.choice((0,) * 12 + (1, 1, 1, 2, 3))
    batches = max(2, world.blocks * world.workers)
    return tuple(
        Restart(rng.randrange(1, batches), tuple(s for s in range(world.shards) if rng.random() < 0.6))
        for _ in range(count)
    )


def check_run(
    seed: int, blocks: int = BLOCKS, trace: Callable[[str], None] | None = None, *, tree: bool = False
) -> Outcome:
    """Run ``seed`` and check all that must hold of it. Raises AssertionError, or what the engines raise."""
    simulation = (make_tree_run if tree else make_run)(seed, blocks, trace)
    outcome = simulation.run()
    check_bounds(simulation, outcome)
    return outcome


def check_bounds(simulation: Simulation, outcome: Outcome) -> None:
    """No storms: what is sent, and how long it takes, is bounded by what is lost and by how long ranks wait.

    A block comes to nothing with a probability that grows with the number of ranks, as all must send it. A rank that
    waits doubles its time-out from 2 ms to 0.25 s, so it sends again ten times in the first second, then four times.
    """
    world, weather, pace, shape = simulation.world, simulation.up.weather, simulation.pace, simulation.shape
    bad, late_s = weather.bad, weather.late_s if weather.late + weather.repeated else 0.0
    bad *= 1 + (shape.depth - 1) * shape.parts  # any part of it can be lost on any trunk
    once = world.blocks * world.workers * outcome.epochs
    waits_s = pace.straggler_s + pace.compute_s + late_s + weather.jitter_s
    expirations = 10 + 4 * waits_s
    most = (
        once * (1.5 + 14 * bad) + 4 * world.workers * world.shards * (len(world.tensors) + outcome.epochs) * expirations
    )
    assert outcome.contributions <= most, f"{outcome.contributions} datagrams sent, {most:.0f} should do"
    per_block = 30 + 8 * waits_s + 120 * bad
    assert outcome.most_sent <= per_block, (
        f"a block was sent {outcome.most_sent} times in an epoch, not {per_block:.0f}"
    )
    # Half of it on average, on the way up and on the way down, where nothing is sent again sooner.
    late_per_datagram_s = weather.late * weather.late_s
    most_s = 6 + 2 * len(world.tensors) * waits_s + outcome.epochs
    most_s += (4 * bad + late_per_datagram_s) * world.blocks * world.workers
    assert outcome.done_s[-1] <= most_s, f"took {outcome.done_s[-1]:.1f} s, not {most_s:.1f} s"


def describe(simulation: Simulation) -> str:
    """What a run is about, in lines."""
    lines = (simulation.world, simulation.shape, simulation.up.weather, simulation.pace, *simulation.restarts)
    return "\n".join(map(repr, lines))
