"""`inagg bench kernels`: that it measures, not what."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from inagg_testbed.bench.cli import bench

SMALL = ["kernels", "--format", "nat8", "--float-type", "float32", "--elements", "10000", "--runs", "3"]


def test_json_lines() -> None:
    result = CliRunner().invoke(bench, [*SMALL, "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["kernel"] for line in lines] == ["absmax", "copy", "encode", "copy", "decode", "copy"]
    for line, copy in zip(lines[::2], lines[1::2], strict=True):
        assert list(line) == [
            "bench",
            "kernel",
            "format",
            "float_type",
            "elements",
            "median_s",
            "elements_per_s",
            "bytes_per_s",
            "ratio_to_copy",
            "runs",
        ]
        assert (line["bench"], line["format"], line["float_type"]) == ("kernels", "nat8", "float32")
        assert (line["elements"], line["runs"]) == (10000, 3)
        assert line["elements_per_s"] == pytest.approx(10000 / line["median_s"])
        assert line["bytes_per_s"] == pytest.approx(40000 / line["median_s"])
        assert line["ratio_to_copy"] == pytest.approx(copy["median_s"] / line["median_s"])
        assert copy["ratio_to_copy"] == 1


def test_the_table_for_people() -> None:
    result = CliRunner().invoke(bench, SMALL)
    assert result.exit_code == 0, result.output
    for word in ("absmax", "encode", "decode", "nat8", "float32"):
        assert word in result.output
