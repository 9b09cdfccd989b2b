"""`inagg bench stages`: what each stage costs, measured."""

from __future__ import annotations

from typing import Any

import pytest

from inagg_testbed.bench.stages import bench_stages
from inagg_wire.formats import job_format

LANE_US = 1e-5
"""A hundredth of a nanosecond: no core adds a lane in less."""


def measured(name: str, workers: int, lanes: int = 1448) -> dict[str, dict[str, Any]]:
    return {line["stage"]: line for line in bench_stages(job_format(name), workers, lanes, 40)}


@pytest.mark.parametrize("name", ["nat8", "fix32"])
def test_to_add_takes_time_for_every_lane(name: str) -> None:
    """It was the difference of two rounds, and often nothing; a block of 64 lanes is added in a few nanoseconds."""
    lanes = job_format(name).max_lanes(8)
    add, small = measured(name, 8, lanes)["add"], measured(name, 8, 64)["add"]
    assert add["us_per_batch"] > add["datagrams"] * lanes * LANE_US
    assert add["us_per_batch"] / add["datagrams"] > 2 * small["us_per_batch"] / small["datagrams"]


@pytest.mark.parametrize(
    ("name", "workers", "batches"),
    [
        ("nat8", 8, {"receive": 8, "parse": 8, "add": 8, "re-encode": 1, "send": 8}),
        ("nat8", 4, {"receive": 4, "parse": 4, "keep": 3, "add, re-encode": 1, "send": 4}),
        ("nat4", 2, {"receive": 2, "parse": 2, "keep": 1, "add, re-encode": 1, "send": 2}),
        ("nat8", 1, {"receive": 1, "parse": 1, "add, re-encode": 1, "send": 1}),
        ("tern", 1, {"receive": 1, "parse": 1, "add": 1, "re-encode": 1, "send": 1}),
    ],
)
def test_shares_are_those_of_the_batches_of_a_round(name: str, workers: int, batches: dict[str, int]) -> None:
    found = measured(name, workers, 64)
    assert {stage: line["batches_per_round"] for stage, line in found.items()} == batches
    round_us = sum(line["us_per_batch"] * line["batches_per_round"] for line in found.values())
    for line in found.values():
        assert line["share_of_round"] == pytest.approx(line["us_per_batch"] * line["batches_per_round"] / round_us)
        assert line["us_per_batch"] >= 0
        assert line["elements_per_s"] == pytest.approx(workers * line["datagrams"] * 64 / round_us * 1e6)
