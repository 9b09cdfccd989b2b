"""All interleavings of small worlds, over the real engine and the real aggregator: see `tests.host.sim.search`.

That nothing is found says something only because what is wrong on purpose is found.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.host.sim.fabrics import OneSwitch
from tests.host.sim.search import Search
from tests.host.sim.searches import Plan, describe, plans, two_tensors
from tests.host.sim.switchml import VersionBitSwitch


def walk(plan: Plan, record_property: Callable[[str, object], None]) -> None:
    search = plan.search()
    found = search.run()
    record_property("figure", f"search, {describe(plan, found)}")
    assert found.states >= plan.states
    assert found.transitions > 3 * found.states
    if plan.restarts:
        assert search.check_old_epochs() > 100


@pytest.mark.parametrize("plan", plans(slow=False), ids=lambda plan: plan.name)
def test_every_interleaving_is_exact_and_ends(plan: Plan, record_property: Callable[[str, object], None]) -> None:
    walk(plan, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("plan", plans(slow=True), ids=lambda plan: plan.name)
def test_every_interleaving_of_a_larger_world_is_exact_and_ends(
    plan: Plan, record_property: Callable[[str, object], None]
) -> None:
    walk(plan, record_property)


@pytest.mark.parametrize("everlasting", [True, False])
def test_a_version_bit_in_place_of_generations_is_found(everlasting: bool) -> None:
    """SwitchML's: it takes a copy that is two uses of a slot late for a new contribution."""
    search = Search(two_tensors(2), OneSwitch(VersionBitSwitch), everlasting, repeated=1)
    with pytest.raises(AssertionError, match="is not the sum") as caught:
        search.run()
    assert "rank 0's block 0 (epoch 1) arrives" in str(caught.value)
