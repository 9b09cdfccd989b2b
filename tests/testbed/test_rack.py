"""What a rack would reach: the least of three bounds, worked out by hand."""

from __future__ import annotations

import pytest

from inagg_testbed.bench.rack import LINK_BITS_PER_S, PIPE_PACKETS_PER_S, predict, wire_bytes


def test_wire_bytes_of_32_codes_are_those_of_a_datagram_with_preamble_and_gap() -> None:
    assert wire_bytes(56, 1) / 32 == pytest.approx(3.81, abs=0.01)


def test_a_slow_worker_is_the_bound() -> None:
    rack = predict(2, 32, 1e8, 3.81)
    assert (rack.bound, rack.elements_per_s) == ("worker", 1e8)


def test_a_link_is_the_bound_of_workers_that_are_faster() -> None:
    rack = predict(2, 32, 1e12, 4.0)
    assert (rack.bound, rack.elements_per_s) == ("link", LINK_BITS_PER_S / 32)


def test_a_pipe_that_all_workers_share_is_the_bound_of_many() -> None:
    rack = predict(32, 256, 1e12, 1.35)
    assert (rack.bound, rack.elements_per_s) == ("switch", PIPE_PACKETS_PER_S / 8 / 32 * 256)
