"""`inagg bench overlap`: what it counts, and that it writes traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from inagg_testbed.bench.cli import bench
from inagg_testbed.bench.overlap import BUCKET_MB, LAYERS, PLAIN, WIDTH, measure


def test_intervals_that_overlap_count_once() -> None:
    assert measure([(0.0, 4.0), (1.0, 2.0), (3.0, 6.0), (8.0, 9.0)], 0.0, 10.0) == (7.0, 7.0)


def test_what_comes_after_the_last_gradient_is_not_hidden() -> None:
    assert measure([(2.0, 6.0), (7.0, 9.0)], 1.0, 5.0) == (6.0, 3.0)


def test_nothing_travels_without_buckets() -> None:
    assert measure([], 0.0, 1.0) == (0.0, 0.0)


@pytest.mark.slow
def test_buckets_travel_during_backward_and_a_trace_shows_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["overlap", "--trace-dir", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["rank"] for line in lines] == [0, 1]
    least = LAYERS * WIDTH * WIDTH * 4 / (BUCKET_MB[PLAIN] * 2**20)
    for line in lines:
        assert line["buckets"] >= least / 2
        assert line["began_before"] >= line["buckets"] / 2
        assert 0 < line["hidden_s"] <= line["travelling_s"]
        events = json.loads(Path(line["trace"]).read_text())["traceEvents"]
        assert sum(event.get("name") == "inagg::all_reduce" for event in events) >= line["buckets"]
