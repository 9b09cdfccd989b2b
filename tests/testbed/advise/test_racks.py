"""Trunks and trees in the cost model, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from tests.testbed.advise.reencoding import reencoded

from inagg_testbed.advise.model import Costs, Curve
from inagg_testbed.advise.predict import Prediction, advice, predict
from inagg_testbed.advise.racks import Racks, flat_cost, flat_trunk_bytes, pays_from, tree_cost
from inagg_testbed.advise.tree_advice import tree_advice
from inagg_testbed.advise.wire import bytes_per_element, trunk_bytes
from inagg_testbed.profiles.compute import Compute
from inagg_wire.formats import FORMATS, job_format

ALPHA, BETA, WORKER = 1e-3, 4e-9, 1e-9
NAT8_CHILD, FIX32_CHILD = 0.25e-9, 0.5e-9
"""What a switch spends on an element of one child."""
ELEMENTS = 10_000_000


def flat(value: float) -> Curve:
    return Curve(((2, value), (8, value)))


def line(slope: float) -> Curve:
    return Curve(((2, 2 * slope), (8, 8 * slope)))


COSTS = {
    name: Costs(name, flat(ALPHA), flat(BETA), flat(BETA), flat(WORKER), line(child))
    for name, child in (("gloo", 0.0), ("nat8", NAT8_CHILD), ("fix32", FIX32_CHILD))
}
SLOW = Racks(2, 200e6)


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "nat8-reencode", reencoded("nat8"))


def test_the_ring_of_gloo_leaves_a_rack_once() -> None:
    assert flat_trunk_bytes("gloo", 16, SLOW) == bytes_per_element("gloo", 16)
    assert flat_trunk_bytes("gloo", 16, Racks(1, 200e6)) == 0.0


def test_one_switch_behind_the_trunks_gets_each_worker_of_a_rack_through_one() -> None:
    assert flat_trunk_bytes("nat8", 16, SLOW) == pytest.approx(8 * bytes_per_element("nat8", 16))
    assert flat_trunk_bytes("nat8", 17, SLOW) == pytest.approx(9 * bytes_per_element("nat8", 17))


def test_a_tree_pays_from_five_workers_a_rack_on_with_nat8_and_from_two_with_four_bytes_up() -> None:
    # nat8: 4.18 bytes against 1.046 for each worker, 4.18 for four; nat4: 2.09 against 0.53; fix32: 4.18 each
    assert pays_from(job_format("nat8"), SLOW) == 5
    assert pays_from(job_format("nat4"), SLOW) == 5
    assert pays_from(job_format("fix32"), SLOW) == 2


@pytest.mark.usefixtures("again")
def test_a_tree_that_rounds_again_pays_from_two() -> None:
    fmt = job_format("nat8-reencode")
    assert trunk_bytes(fmt, 16) == pytest.approx(bytes_per_element("nat8", 16))
    assert pays_from(fmt, SLOW) == 2


def test_on_slow_trunks_their_bytes_count() -> None:
    through_one = flat_cost(COSTS, "nat8", 16, 1e9, "one-machine", SLOW)
    assert through_one.limit == "trunk"
    # 1514 bytes for 1448 elements of each of eight workers, and a byte for each 1448 of scales, at 25 MB a second
    assert through_one.element_s == pytest.approx(8 * 1514 / 1448 * (1 + 1 / 1448) / 25e6)
    tree = tree_cost(COSTS, "nat8", 16, 1e9, "one-machine", SLOW)
    assert tree.limit == "trunk"
    assert tree.element_s == pytest.approx((4 * 1506 / 1440 + 4 * 426 / 1440 / 1440) / 25e6)
    assert tree.alpha_s == 2 * ALPHA
    gloo = flat_cost(COSTS, "gloo", 16, 1e9, "one-machine", SLOW)
    assert gloo.element_s == pytest.approx(2 * 15 / 16 * 4 * 1514 / 1448 / 25e6)


def test_on_fast_trunks_a_workers_link_counts() -> None:
    fast = Racks(2, 100e9)
    tree, one = (cost(COSTS, "nat8", 16, 1e8, "one-machine", fast) for cost in (tree_cost, flat_cost))
    assert (tree.limit, one.limit) == ("link", "link")
    assert tree.element_s == one.element_s


def test_trunks_without_a_rate_cost_nothing() -> None:
    none = Racks(2, 0.0)
    assert flat_cost(COSTS, "nat8", 16, 1e9, "own-machines", none) == COSTS["nat8"].cost(16, 1e9, "own-machines")


def test_with_machines_of_their_own_the_busiest_switch_counts() -> None:
    none = Racks(4, 0.0)
    # root: four children with four bytes; a leaf: eight workers, and as much for its uplink as the root for one child
    root, leaf = 4 * FIX32_CHILD, 8 * NAT8_CHILD + FIX32_CHILD
    assert leaf > root
    tree = tree_cost(COSTS, "nat8", 32, 0, "own-machines", none)
    assert tree.limit == "switch CPU"
    assert tree.element_s == pytest.approx(leaf)
    assert flat_cost(COSTS, "nat8", 32, 0, "own-machines", none).element_s == pytest.approx(32 * NAT8_CHILD)


def test_on_one_machine_processor_times_add_up() -> None:
    before = 16 * WORKER + 16 * NAT8_CHILD
    after = 16 * WORKER + 2 * (8 * NAT8_CHILD + FIX32_CHILD) + 2 * FIX32_CHILD
    tree = tree_cost(COSTS, "nat8", 16, 0, "one-machine", Racks(2, 0.0))
    assert tree.element_s == pytest.approx(BETA * after / before)


def predictions(workers: int, racks: Racks, *systems: str, link: float = 1e9) -> list[Prediction]:
    compute = Compute(0.0, 0.0, ((ELEMENTS, 0.0),), "")
    return predict(compute, COSTS, systems, workers, link, "own-machines", racks)


def words(workers: int, racks: Racks, *systems: str, link: float = 1e9) -> str:
    return " ".join(tree_advice(predictions(workers, racks, *systems, link=link), workers, racks))


@pytest.mark.usefixtures("again")
def test_one_switch_and_a_tree_stand_beside_each_other() -> None:
    found = [(p.system, p.tree) for p in predictions(16, SLOW, "nat8", "nat8-reencode")]
    assert found == [("gloo", False), ("nat8", False), ("nat8", True), ("nat8-reencode", True)]
    assert [(p.system, p.tree) for p in predictions(64, SLOW, "nat8")] == [("gloo", False), ("nat8", True)]


def test_in_words_a_format_through_a_tree_is_told_from_one_through_a_switch() -> None:
    text = " ".join(advice(predictions(16, SLOW, "nat8", "fix32")))
    assert text.startswith("It will help: nat8 (tree) takes 4")
    assert "Adding in the network alone, without fewer bytes for a number: fix32 (tree) takes 4" in text
    assert "Slower than Gloo: nat8, fix32." in text


def test_where_trunks_are_slow_and_racks_full_a_tree_helps() -> None:
    assert words(16, SLOW, "fix32", "nat8") == (
        "A tree helps: a step takes 50% less than through one switch behind the trunks; its trunks carry 4.2 bytes an "
        "element, and those before one switch 8.4, with 8 workers a rack and nat8."
    )


def test_where_racks_have_few_workers_it_takes_longer_and_the_number_that_pays_is_said() -> None:
    text = words(4, SLOW, "nat8")
    assert text.startswith("A tree takes 100% more than one switch behind the trunks: its trunks carry 4.2 bytes")
    assert text.endswith("It pays from 5 on.")


def test_where_trunks_are_fast_it_changes_little() -> None:
    assert words(16, Racks(2, 100e9), "nat8") == "A tree changes little here: the trunks are not the limit."


def test_more_workers_than_one_switch_serves_need_a_tree() -> None:
    assert words(64, SLOW, "nat8") == "Only a tree serves 64 workers: one switch has too few places for them."


def test_one_switch_that_is_too_slow_is_a_reason() -> None:
    text = words(32, Racks(8, 0.0), "nat8", link=1e10)
    assert text.endswith("one switch for all would be limited by its processor.")


@pytest.mark.usefixtures("again")
def test_rounding_again_is_set_against_exact_sums() -> None:
    assert "Rounding partial sums again (nat8-reencode) takes 75% less than exact ones, with more noise" in words(
        16, SLOW, "nat8", "nat8-reencode"
    )
