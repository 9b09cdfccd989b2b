"""A run from one number: the world, the weather, the pace and the restarts."""

from __future__ import annotations

import random

from .network import Weather, draw_weather
from .simulation import Outcome, Pace, Restart, Simulation
from .world import World, draw_world

RUNS_PER_WORLD = 40
"""The reference is slow: its sums are worked out once for so many runs."""


def make_run(seed: int, blocks: int = 24) -> Simulation:
    """Run ``seed``, of about ``blocks`` blocks at most."""
    world, rng = draw_world(seed // RUNS_PER_WORLD, blocks), random.Random(seed)
    weather = draw_weather(rng)
    return Simulation(world, weather, seed, _draw_pace(rng, world), _draw_restarts(rng, world))


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


def describe(simulation: Simulation) -> str:
    """What a run is about, in lines."""
    weather: Weather = simulation.up.weather
    return f"{simulation.world!r}\n{weather}\n{simulation.pace}\n{simulation.restarts}"


def replay(seed: int, blocks: int = 24) -> Outcome:
    """Run ``seed`` again. Raises what it raised."""
    return make_run(seed, blocks).run()
