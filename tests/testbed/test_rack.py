"""What a rack would reach: the least of three bounds, worked out by hand."""

from __future__ import annotations

import pytest

from inagg_testbed.bench.allreduce import of_packets
from inagg_testbed.bench.allreduce_ranks import COUNTED
from inagg_testbed.bench.rack import LINK_BITS_PER_S, PIPE_PACKETS_PER_S, pipe_packets_per_s, predict, wire_bytes


def test_wire_bytes_of_32_codes_are_those_of_a_datagram_with_preamble_and_gap() -> None:
    assert wire_bytes(56, 1) / 32 == pytest.approx(3.81, abs=0.01)


def test_a_slow_worker_is_the_bound() -> None:
    rack = predict(2, 32, 1e8, 3.81)
    assert rack is not None
    assert (rack.bound, rack.elements_per_s) == ("worker", 1e8)


def test_a_link_is_the_bound_of_workers_that_are_faster() -> None:
    rack = predict(2, 32, 1e12, 4.0)
    assert rack is not None
    assert (rack.bound, rack.elements_per_s) == ("link", LINK_BITS_PER_S / 32)


def test_a_pipe_that_all_workers_share_is_the_bound_of_many() -> None:
    rack = predict(16, 32, 1e12, 3.81)
    assert rack is not None
    assert (rack.bound, rack.elements_per_s) == ("switch", PIPE_PACKETS_PER_S / 16 * 32)


def test_ports_in_loopback_are_the_bound_of_further_passes_in_one_pipe() -> None:
    """Of 17 ports, 8 have workers, and the other 9 carry three times what these send, 4 bytes longer."""
    rate = pipe_packets_per_s(8, 4, 218, chained=False)
    assert rate == pytest.approx(9 * LINK_BITS_PER_S / (8 * 222 * 8 * 3))


def test_a_pipe_for_each_pass_leaves_all_ports_to_workers() -> None:
    rate = pipe_packets_per_s(16, 4, 218, chained=True)
    assert rate == pytest.approx(17 * LINK_BITS_PER_S / (8 * 222 * 16))
    rack = predict(16, 128, 1e12, 218 / 128)
    assert rack is not None
    assert rack.bound == "link"


@pytest.mark.parametrize(("lanes", "there"), [(128, True), (256, False)])
def test_a_measurement_has_a_prediction_if_there_is_one(lanes: int, there: bool) -> None:
    counted = dict.fromkeys(COUNTED, 1.0) | {
        "bytes_out": 1e6,
        "bytes_in": 1e6,
        "datagrams_out": 1e4,
        "datagrams_in": 1e4,
    }
    line = of_packets(lanes, 2, {"elements": 1 << 20, "median_s": 0.01}, counted)
    assert ("rack_elements_per_s" in line, "rack_bound" in line) == (there, there)


@pytest.mark.parametrize(("workers", "lanes"), [(17, 32), (2, 160)])
def test_nothing_is_predicted_of_what_a_tofino_cannot(workers: int, lanes: int) -> None:
    assert predict(workers, lanes, 1e8, 2.0) is None
