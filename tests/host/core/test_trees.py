"""Trees of switches over a bad network: real engines, a real aggregator at each node, the oracle of the single switch.

The oracle knows nothing of trees: every rank must get, bit for bit, what one switch with all of them would have sent.
(But for formats whose sums each switch rounds: there it rounds as often, by the reference codec.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.host.sim.network import Weather
from tests.host.sim.runs import make_tree_run
from tests.host.sim.simulation import Restart, Simulation
from tests.host.sim.soak import check_runs
from tests.host.sim.trees import Shape
from tests.host.sim.world import make_world

from inagg_switch.aggregation.aggregator import Aggregator, Send
from inagg_switch.aggregation.validation import KIND_AT
from inagg_switch.binding import Address, Binding
from inagg_wire.formats import CHILDREN_MAX, FORMATS, job_format
from inagg_wire.layout import Kind
from inagg_wire.scale import FloatType

Bytes = npt.NDArray[np.uint8]

RUNS, BATCH = 2_000, 100
CALM = Weather()


@pytest.mark.parametrize("first", range(0, RUNS, BATCH))
def test_a_hundred_runs_are_those_of_one_switch(first: int, record_property: Callable[[str, object], None]) -> None:
    tally = check_runs(first, BATCH, tree=True)
    for what, count in tally.counts().items():
        record_property(f"total simulator, trees, {what}", count)
    report = "\n".join(f"seed {seed}: {why}" for seed, why in tally.failed)
    assert not tally.failed, f"{len(tally.failed)} of {tally.runs} runs failed\n{report}"


def test_the_runs_contain_all_that_can_go_wrong() -> None:
    seen: Counter[str] = Counter()
    for seed in range(0, RUNS, 10):
        run = make_tree_run(seed)
        outcome = run.run()
        nodes = [node for tree in run.trees for node in tree.nodes.values()]
        counts = [counts for node in nodes for counts in node.aggregator.counters().jobs.values()]
        seen["sent up again"] += any(c.partials_again for c in counts)
        seen["answered again"] += any(sum(c.resends) for node in nodes if node.parent
                                      for c in node.aggregator.counters().jobs.values())  # fmt: skip
        seen["a leaf restarted"] += any(r.node is not None and "." in r.node for r in run.restarts)
        seen["restarted twice"] += outcome.epochs > 2
        seen[f"{run.shape.depth} levels"] += 1
        seen[f"{run.shape.parts} parts"] += 1
        seen["one child"] += any(len(c.contributions) == 1 for c in counts)
        seen["shards"] += run.world.shards > 1
        seen["window of one"] += run.world.window == 1
        seen[run.world.format.name] += 1
    assert set(seen) >= {"2 levels", "3 levels", "1 parts", "2 parts", "4 parts"}
    assert min(seen.values()) >= 5, seen


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_thousand_workers_in_two_levels_get_what_one_switch_would_make(name: str) -> None:
    """32 leaves of 32, or of as many as the format takes; one switch cannot have so many, its arithmetic can."""
    fmt = job_format(name)
    workers = min(CHILDREN_MAX**2, fmt.workers_max)
    below = (workers // CHILDREN_MAX,) * CHILDREN_MAX
    world = make_world(3, fmt, workers, 128, 2, 1, [(300, FloatType.FLOAT32)], below=below)
    run = Simulation(world, Weather(lost=0.001), 1, shape=Shape(below, 4))
    outcome = run.run()
    assert outcome.contributions >= world.blocks * workers


def test_a_leaf_that_forgets_all_costs_an_epoch_and_no_bits() -> None:
    world = make_world(4, job_format("nat8"), 4, 32, 2, 1, [(32 * 40, FloatType.FLOAT32)])
    run = Simulation(world, CALM, 1, restarts=(Restart(40, (0,), "root.1"),), shape=Shape((2, 2), 4))
    assert run.run().epochs == 2


# --- each rule of a tree, broken on purpose: the runs find it ---


class NeverUpAgain(Aggregator):
    """A child that asks again is told nothing, and the parent neither."""

    def receive(self, data: Bytes, size: int, source: Address, now: float) -> Iterator[Send]:
        before = self._counts.jobs["partials_again"].copy()
        for send in super().receive(data, size, source, now):
            if (self._counts.jobs["partials_again"] == before).all():
                yield send


class HasAllPartsAtOnce(Aggregator):
    """Takes the first part of a result for all of it."""

    def receive(self, data: Bytes, size: int, source: Address, now: float) -> Iterator[Send]:
        for at in range(0, data.size, size):
            yield from super().receive(data[at : at + size], size, source, now)
            up_full = self._jobs.table["up_full"].max()
            self._slots.table["here"][self._slots.table["here"] != 0] = up_full


class TakesAnyGeneration(Aggregator):
    """Takes an old result of the parent's for that of the slot's present use."""

    def receive(self, data: Bytes, size: int, source: Address, now: float) -> Iterator[Send]:
        data = data.copy()
        for at in range(0, data.size, size):
            row = int(self._jobs.row[int.from_bytes(data[at + 8 : at + 10].tobytes(), "big")])
            if data[at + KIND_AT] == Kind.RESULT and row >= 0:
                bound = self._jobs.table[row]
                above = int.from_bytes(data[at + 16 : at + 20].tobytes(), "big") - int(bound["up_base"])
                slot = int(bound["base"]) + (above >> int(bound["up_bits"]))
                if 0 <= slot < len(self._slots.table):
                    tag = int(self._slots.table["tag"][slot]).to_bytes(4, "big")
                    data[at + 20 : at + 24] = np.frombuffer(tag, np.uint8)
        yield from super().receive(data, size, source, now)


class AnswersBeforeItHasAnAnswer(Aggregator):
    """Takes a complete sum for a result."""

    def receive(self, data: Bytes, size: int, source: Address, now: float) -> Iterator[Send]:
        full, up_full = self._jobs.table["full"].max(), self._jobs.table["up_full"].max()
        self._slots.table["here"][self._slots.table["seen"] == full] = up_full
        yield from super().receive(data, size, source, now)


class NoiseOfItsOwn(Aggregator):
    """Rounds parts of blocks with the noise of their own slots."""

    def bind(self, binding: Binding) -> None:
        super().bind(binding)
        self._jobs.table["part_bits"] = 0


MUTANTS: list[Any] = [
    pytest.param(NeverUpAgain, 14, id="a sum without an answer goes up again"),
    pytest.param(HasAllPartsAtOnce, 14, id="a result has all its parts"),
    pytest.param(TakesAnyGeneration, 80, id="generations of the parent's results are checked"),
    pytest.param(AnswersBeforeItHasAnAnswer, 14, id="a sum is not yet a result"),
    pytest.param(NoiseOfItsOwn, 14, id="parts have the noise of the whole block"),
]
"""With how many blocks a run: old results come late where slots are used again and again."""


@pytest.mark.parametrize(("mutant", "blocks"), MUTANTS)
def test_a_rule_that_is_broken_is_found(monkeypatch: pytest.MonkeyPatch, mutant: type[Aggregator], blocks: int) -> None:
    monkeypatch.setattr("tests.host.sim.trees.Aggregator", mutant)
    monkeypatch.setattr("tests.host.sim.simulation.EVENTS_MAX", 20_000)
    assert any(check_runs(seed, 1, blocks=blocks, tree=True).failed for seed in range(300))
