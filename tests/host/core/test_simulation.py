"""Ten thousand seeded runs of real engines and real aggregators over a bad network: see `tests.host.sim`.

Each run checks that every sum is exact, to the bit, on every rank, written once and nowhere else; that the rules of the
protocol hold at every datagram; and that nothing hangs, storms or loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from tests.host.sim.runs import check_run, make_run
from tests.host.sim.soak import check_runs

from inagg_wire.layout import GENERATION_MAX

RUNS, BATCH = 10_000, 100


@pytest.mark.parametrize("first", range(0, RUNS, BATCH))
def test_a_hundred_runs_are_exact(first: int, record_property: Callable[[str, object], None]) -> None:
    tally = check_runs(first, BATCH)
    for what, count in tally.counts().items():
        record_property(f"total simulator, {what}", count)
    report = "\n".join(f"seed {seed}: {why}" for seed, why in tally.failed)
    assert not tally.failed, f"{len(tally.failed)} of {tally.runs} runs failed\n{report}"


def test_a_rank_that_is_refused_by_mistake_joins_again() -> None:
    """A bit of the token flips on the way to the switch, and the same one on the way back of its notice."""
    assert check_run(1_006_458, blocks=150).epochs > 1


def test_the_runs_contain_all_that_can_go_wrong() -> None:
    """So that nobody trusts ten thousand runs in which the sun shone."""
    seen: Counter[str] = Counter()
    for seed in range(0, RUNS, 40):
        run = make_run(seed)
        outcome, world = run.run(), run.world
        seen.update({**run.up.counts, **run.down.counts})
        seen["restarted"] += outcome.epochs > 1
        seen["restarted twice"] += outcome.epochs > 2
        seen["straggler"] += run.pace.straggler_s > 0.05
        seen["generations ran out"] += (
            world.first > 0 and world.first < GENERATION_MAX * 2 * world.window * world.shards
        )
        seen["shards"] += world.shards > 1
        seen["window of one"] += world.window == 1
        seen["calm"] += run.up.weather.calm
        seen[f"{world.workers} ranks"] += 1
        seen[world.format.name] += 1
        seen.update(tensor.float_type.name for tensor in world.tensors)
        seen["in place"] += any(tensor.in_place for tensor in world.tensors)
        seen["scattered"] += any(tensor.scatters for tensor in world.tensors)
        seen["several tensors"] += len(world.tensors) > 1
    del seen["overrun"]  # these links have queues without end; see test_rates
    assert min(seen.values()) >= 5, seen


def test_a_run_can_be_repeated() -> None:
    assert make_run(4711).run() == make_run(4711).run()
