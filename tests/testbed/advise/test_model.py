"""The cost model: that a fit finds the constants that made its data, and what follows from them."""

from __future__ import annotations

import math

import pytest

from inagg_testbed.advise.fit import fit
from inagg_testbed.advise.model import LARGE, Cost, Curve, Sample, fit_costs, norm
from inagg_testbed.advise.step import step_time
from inagg_testbed.advise.wire import bytes_per_element
from inagg_testbed.profiles.compute import Compute

A0, A1, B0, B1, CPU0, CPU1, SWITCH0, SWITCH1 = 1e-4, 3e-4, 2e-9, 1e-9, 1e-9, 0.0, 0.5e-9, 0.25e-9


def samples(system: str) -> list[Sample]:
    return [
        Sample(system, n, e, A0 + A1 * n + e * (B0 + B1 * n), e * (CPU0 + CPU1 * n), e * (SWITCH0 + SWITCH1 * n))
        for n in (2, 4, 8)
        for e in (1 << 14, 1 << 20, LARGE)
    ]


COSTS = fit_costs(samples("gloo") + samples("nat8"))


def test_a_fit_finds_the_coefficients() -> None:
    rows = [(1, n, e) for n in (1, 2, 3) for e in (10, 1000, 100_000)]
    assert fit(rows, [5 + 7 * n + 0.25 * e for _, n, e in rows]) == pytest.approx((5, 7, 0.25))


def test_no_coefficient_is_negative() -> None:
    # the best line falls, so the best that does not is flat: the mean that minimizes relative errors
    constant, slope = fit([(1, 1), (1, 2)], [4.0, 2.0])
    assert slope == 0
    assert constant == pytest.approx((1 / 4 + 1 / 2) / (1 / 16 + 1 / 4))


def test_a_fit_needs_times() -> None:
    with pytest.raises(ValueError, match="above zero"):
        fit([], [])
    with pytest.raises(ValueError, match="above zero"):
        fit([(1,)], [0.0])


def test_the_constants_are_those_of_the_data() -> None:
    costs = COSTS["nat8"]
    for n in (2, 4, 8):
        assert costs.alpha.at(n) == pytest.approx(A0 + A1 * n)
        assert costs.beta.at(n) == pytest.approx(B0 + B1 * n)
    assert costs.worker.at(4) == pytest.approx(CPU0)
    assert costs.switch.at(4) == pytest.approx(SWITCH0 + 4 * SWITCH1)
    assert COSTS["gloo"].switch.at(4) == 0


def test_between_measured_numbers_of_workers_a_constant_is_on_a_line_and_beyond_on_the_last_one() -> None:
    curve = Curve(((2, 1.0), (4, 2.0), (8, 10.0)))
    assert [curve.at(n) for n in (2, 3, 4, 6, 8, 9)] == [1.0, 1.5, 2.0, 6.0, 10.0, 12.0]
    assert Curve(((2, 3.0), (4, 1.0))).at(32) == 0.0


def test_a_norm_is_between_the_larger_and_the_sum() -> None:
    assert norm((3.0, 4.0), 1.0) == pytest.approx(7.0)
    assert norm((3.0, 4.0), 2.0) == pytest.approx(5.0)
    assert norm((3.0, 4.0), math.inf) == 4.0
    assert norm((0.0, 0.0), 2.0) == 0.0


def test_how_much_link_and_processors_wait_for_each_other_is_fitted() -> None:
    wire, elements = bytes_per_element("nat8", 4) * 8 / 5e9, 1 << 22
    together = (wire**2 + (B0 + 4 * B1) ** 2) ** 0.5
    shaped = Sample("nat8", 4, elements, A0 + 4 * A1 + elements * together, 0.0, 0.0, 5e9)
    costs = fit_costs([*samples("gloo"), *samples("nat8"), shaped])
    assert {cost.sharpness for cost in costs.values()} == {2.0}  # Gloo, of which nothing else is known, shares it
    assert costs["nat8"].cost(4, 5e9).seconds(elements) == pytest.approx(shaped.seconds)
    assert COSTS["nat8"].sharpness == math.inf


def test_each_system_has_an_exponent_of_its_own() -> None:
    shaped = []
    for system, exponent in (("nat8", 1.0), ("gloo", math.inf)):
        seconds = norm((bytes_per_element(system, 4) * 8 / 5e9, B0 + 4 * B1), exponent)
        shaped.append(Sample(system, 4, 1 << 22, A0 + 4 * A1 + (1 << 22) * seconds, 0.0, 0.0, 5e9))
    costs = fit_costs([*samples("gloo"), *samples("nat8"), *shaped])
    assert (costs["nat8"].sharpness, costs["gloo"].sharpness) == (1.0, math.inf)


def test_all_reduces_too_large_for_memory_that_is_kept_cost_more_for_an_element() -> None:
    alpha_s, large_s = A0 + 4 * A1, 3 * (B0 + 4 * B1)
    above = [Sample("nat8", n, 4 * LARGE, A0 + n * A1 + 4 * LARGE * 3 * (B0 + n * B1), 0.0, 0.0) for n in (2, 4, 8)]
    cost = fit_costs([*samples("nat8"), *above])["nat8"].cost(4, 0)
    assert cost.seconds(LARGE) == pytest.approx(alpha_s + LARGE * (B0 + 4 * B1))
    assert cost.seconds(2 * LARGE) == pytest.approx(alpha_s + 2 * LARGE * large_s)


def test_one_number_of_workers_or_one_size_is_not_enough() -> None:
    for few in ([s for s in samples("nat8") if s.workers == 2], [s for s in samples("nat8") if s.elements == 1 << 20]):
        with pytest.raises(ValueError, match=r"nat8: .*two numbers of workers, and two sizes with each"):
            fit_costs(few)


def test_on_a_slow_link_the_link_counts() -> None:
    cost = COSTS["nat8"].cost(4, 1e8)
    assert cost.limit == "link"
    assert cost.seconds(1000) == pytest.approx(A0 + 4 * A1 + 1000 * bytes_per_element("nat8", 4) * 8 / 1e8)


def test_on_a_fast_link_the_processors_count() -> None:
    assert COSTS["nat8"].cost(4, 1e11) == COSTS["nat8"].cost(4, 0)
    assert COSTS["nat8"].cost(4, 0).limit == "CPU"
    assert COSTS["nat8"].cost(4, 0).element_s == pytest.approx(B0 + 4 * B1)


def test_with_machines_of_their_own_the_switch_grows_with_the_workers_and_they_do_not() -> None:
    few, many = COSTS["nat8"].cost(2, 0, "own-machines"), COSTS["nat8"].cost(32, 0, "own-machines")
    assert (few.limit, many.limit) == ("CPU", "switch CPU") or few.element_s == pytest.approx(CPU0)
    assert many.element_s == pytest.approx(SWITCH0 + 32 * SWITCH1)
    assert many.alpha_s == few.alpha_s


def test_the_ring_of_gloo_gets_slower_with_every_worker() -> None:
    alpha = [COSTS["gloo"].cost(n, 0, "own-machines").alpha_s for n in (2, 3, 5)]
    assert alpha == pytest.approx([A0 + 2 * A1, 2 * (A0 + 2 * A1), 4 * (A0 + 2 * A1)])


def test_small_tensors_are_limited_by_latency() -> None:
    cost = Cost(1e-3, 1e-9, 1e-9, "link")
    assert cost.limit_of(100) == "latency"
    assert cost.limit_of(10**8) == "link"


def test_communication_that_fits_the_backward_pass_is_hidden_but_for_the_last_bucket() -> None:
    compute = Compute(1.0, 2.0, ((10, 0.5), (10, 1.0), (10, 2.0)), "")
    time = step_time(compute, lambda elements: 0.25)
    assert time.step_s == 3.25
    assert time.exposed_s == 0.25
    assert time.communication_s == 0.75


def test_buckets_wait_for_one_another() -> None:
    compute = Compute(1.0, 2.0, ((100, 0.5), (10, 2.0)), "")
    time = step_time(compute, lambda elements: elements / 10)
    assert time.step_s == 1.0 + 0.5 + 10 + 1
    assert time.exposed_s == 9.5


def test_free_communication_costs_nothing() -> None:
    compute = Compute(1.0, 2.0, ((100, 2.0),), "")
    assert step_time(compute, lambda _: 0.0).step_s == 3.0
    assert math.isclose(step_time(compute, lambda _: 0.0).exposed_s, 0.0)
