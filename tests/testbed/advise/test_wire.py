"""Bytes on the wire, by hand."""

from __future__ import annotations

import pytest

from inagg_testbed.advise.wire import bytes_per_element, trunk_bytes
from inagg_wire.formats import job_format
from inagg_wire.layout import HEADER_BYTES

FRAME = 14 + 20 + 8 + HEADER_BYTES


@pytest.mark.parametrize(("workers", "share"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_gloo_moves_two_tensors_less_two_parts_each_way(workers: int, share: float) -> None:
    assert bytes_per_element("gloo", workers) == pytest.approx(share * 4 * 1514 / 1448)


def test_nat8_moves_one_byte_and_its_share_of_headers_and_scales() -> None:
    lanes = 1448
    assert bytes_per_element("nat8", 4) == pytest.approx((FRAME + lanes) / lanes * (1 + 1 / lanes))
    assert bytes_per_element("nat8", 32) == bytes_per_element("nat8", 2)


def test_the_busier_direction_counts() -> None:
    # two bits up, four down (the exact sum) for up to 7 workers, eight beyond
    assert bytes_per_element("tern", 4) == pytest.approx(0.5, rel=0.05)
    assert bytes_per_element("tern", 8) == pytest.approx(1.0, rel=0.05)


def test_formats_stand_in_the_ratio_of_their_sizes() -> None:
    one = bytes_per_element("nat8", 4)
    assert bytes_per_element("fix32", 4) / one == pytest.approx(4, rel=0.01)
    assert one / bytes_per_element("nat4", 4) == pytest.approx(2, rel=0.01)


def test_exact_partial_sums_have_four_bytes_an_element() -> None:
    # a block of 1440 lanes in four parts of 360, and its 1440 scales likewise
    assert trunk_bytes(job_format("nat8"), 16) == pytest.approx(
        4 * (FRAME + 4 * 360) / 1440 + 4 * (FRAME + 360) / 1440 / 1440
    )
    # a block of 360 lanes in one
    assert trunk_bytes(job_format("fix32"), 16) == pytest.approx((FRAME + 4 * 360) / 360 + (FRAME + 360) / 360 / 360)


def test_narrow_sums_go_up_in_one_byte() -> None:
    assert trunk_bytes(job_format("tern"), 16) == pytest.approx(1.0, rel=0.06)
