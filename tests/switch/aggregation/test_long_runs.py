"""Seeded long runs: several jobs on one switch, over a network that drops, repeats, delays and reorders.

The oracle knows what each worker sent; each result must be exactly that, once. A failure's seed is the test's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.aggregation.model import Output
from inagg_switch.binding import Address, Binding
from inagg_wire.formats import FORMATS
from inagg_wire.layout import GENERATION_MAX
from inagg_wire.slots import slots_for_window

from .hostile import refused
from .network import CALM, Packet, Weather
from .pair import Pair, feed
from .simulation import Job, Simulation
from .world import make_binding

SLOTS, LANES = 512, 256


class Alone:
    """An aggregator without the model, for runs that are too long for it."""

    def __init__(self) -> None:
        self.aggregator = Aggregator(SLOTS, LANES, 16)

    def bind(self, binding: Binding) -> None:
        self.aggregator.bind(binding)

    def receive(self, datagrams: Sequence[bytes], source: Address) -> list[Output]:
        return feed(self.aggregator, datagrams, source)


def jobs(seed: int, count: int, blocks: int, most_workers: int = 32) -> list[Job]:
    """``count`` jobs of formats, sizes and windows drawn from ``seed``; some start where generations are large."""
    rng, base, made = np.random.default_rng(seed), 0, []
    names = rng.permutation(sorted(FORMATS))
    order = sorted((slots_for_window(int(rng.integers(1, 17))) for _ in range(count)), reverse=True)
    for number, slots in enumerate(order, 1):
        fmt = FORMATS[names[number % len(names)]]
        n = int(rng.choice([1, 2, 3, 4, 7, 8, 16, 32]))
        lanes = int(rng.integers(fmt.min_lanes // 8, LANES // 8 + 1)) * 8
        job_seed, first = int(rng.integers(1 << 32)), int(rng.choice([0, 0, (GENERATION_MAX - 1000) * slots]))
        binding = make_binding(
            number, fmt.name, min(n, most_workers), lanes=lanes, base=base, slots=slots, seed=job_seed
        )
        binding = replace(binding, resume_block=first)
        made.append(Job(binding, blocks, seed * 100 + number, first))
        base += slots
    return made


def assert_all_exact(made: Sequence[Job], blocks: int) -> None:
    for job in made:
        assert all(len(worker.got) == blocks for worker in job.workers)
        assert {block for _, block in job.oracle.results} == set(range(job.first, job.end))
        assert set(job.oracle.results.values()) == {1}


@pytest.mark.parametrize("seed", range(6))
def test_model_and_aggregator_agree_and_are_exact_over_a_bad_network(seed: int) -> None:
    pair, made = Pair(SLOTS, LANES, 16), jobs(seed, count=5, blocks=40, most_workers=8)
    Simulation(pair, made, seed).run()
    assert_all_exact(made, 40)
    pair.check()
    counts = pair.model.counters
    used = sum(sum(j.contributions) + sum(j.resends) for j in counts.jobs.values())
    assert used + sum(counts.drops.values()) == counts.datagrams_in
    assert not any(job.notices for job in made), "a worker that obeys was told that it did not"


@pytest.mark.parametrize("seed", range(4))
def test_hostile_datagrams_between_change_no_result(seed: int) -> None:
    pair, made = Pair(SLOTS, LANES, 16), jobs(10 + seed, count=4, blocks=25, most_workers=8)

    def hostile(rng: np.random.Generator) -> list[Packet]:
        bound = [job.binding for job in made]
        return [refused(rng, bound, made[0].end) for _ in range(int(rng.integers(20)))]

    Simulation(pair, made, seed).run(hostile=hostile)
    assert_all_exact(made, 25)
    pair.check()
    assert len(pair.model.counters.drops) >= 15


@pytest.mark.parametrize("seed", range(4))
def test_jobs_that_take_new_epochs_end_with_the_same_results(seed: int) -> None:
    """Each new epoch all workers send again from the first block that anyone lacks."""
    disturbed, calm = (jobs(20 + seed, count=4, blocks=60, most_workers=4) for _ in range(2))
    pair = Pair(SLOTS, LANES, 16)
    Simulation(pair, disturbed, seed).run(restart=0.1)
    Simulation(Alone(), calm, seed, CALM).run()
    assert_all_exact(calm, 60)
    pair.check()
    assert sum(job.binding.token for job in disturbed) > sum(job.binding.token for job in calm) + 5
    for a, b in zip(disturbed, calm, strict=True):
        assert [worker.got for worker in a.workers] == [worker.got for worker in b.workers]


@pytest.mark.parametrize("seed", range(2))
def test_a_long_run_of_the_aggregator_is_exact(seed: int) -> None:
    alone, made = Alone(), jobs(30 + seed, count=7, blocks=110, most_workers=16)
    simulation = Simulation(alone, made, seed)
    simulation.run()
    assert simulation.datagrams > 10_000
    assert_all_exact(made, 110)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_very_long_run_of_the_aggregator_is_exact(seed: int) -> None:
    alone, made = Alone(), jobs(50 + seed, count=7, blocks=300)
    storm = Weather(drop=0.15, repeat=0.15, delay=8, late=0.05, later=400)
    simulation = Simulation(alone, made, seed, storm)
    simulation.run(hostile=partial(_hostile, made))
    assert_all_exact(made, 300)


def _hostile(made: Sequence[Job], rng: np.random.Generator) -> list[Packet]:
    return [refused(rng, [job.binding for job in made], 1000) for _ in range(int(rng.integers(10)))]
