"""`inagg bench overlap`: what it counts, and that it writes traces."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from inagg_testbed.bench.cli import bench
from inagg_testbed.bench.overlap import BUCKET_MB, COLUMNS, LAYERS, PLAIN, WIDTH, Overlap, measure, overlap
from inagg_testbed.experiments.cli import experiment


def test_intervals_that_overlap_count_once() -> None:
    assert measure([(0.0, 4.0), (1.0, 2.0), (3.0, 6.0), (8.0, 9.0)], 0.0, 10.0) == (7.0, 7.0)


def test_what_comes_after_the_last_gradient_is_not_hidden() -> None:
    assert measure([(2.0, 6.0), (7.0, 9.0)], 1.0, 5.0) == (6.0, 3.0)


def test_nothing_travels_without_buckets() -> None:
    assert measure([], 0.0, 1.0) == (0.0, 0.0)


def test_what_a_person_reads_has_buckets_where_something_is_known_of_them() -> None:
    def row(found: Overlap) -> list[str]:
        return [text(asdict(found)) for _, text in COLUMNS]

    ours = Overlap(0, "inagg", 0.012, 0.009, 8, 7, 5, 0.006, 0.004, 0.003, "")
    assert row(ours) == ["0", "inagg", "12.0", "9.0", "6.0", "8", "7", "5", "4.0", "3.0", ""]
    others = Overlap(1, "gloo", 0.013, 0.009, 0, 0, 0, 0.0, 0.0, 0.0, "")
    assert row(others) == ["1", "gloo", "13.0", "9.0", "", "", "", "", "", "", ""]


@pytest.mark.parametrize("command", [overlap, experiment])
def test_a_folder_is_not_made_with_another_around_it(command: click.Command, tmp_path: Path) -> None:
    option = next(each for each in command.params if each.name in ("trace_dir", "out"))
    context = click.Context(command)
    assert option.type.convert(str(tmp_path / "traces"), option, context) == tmp_path / "traces"
    with pytest.raises(click.UsageError, match=f"there is no folder {tmp_path}/slip to make it in"):
        option.type.convert(str(tmp_path / "slip" / "traces"), option, context)


@pytest.mark.slow
def test_rank_0_can_compute_alone() -> None:
    result = CliRunner().invoke(bench, ["overlap", "--runs", "2", "--alone", "--against", "gloo", "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["system"], line["rank"]) for line in lines] == [("inagg", 0), ("gloo", 0)]
    assert lines[0]["began_before"] > 0


@pytest.mark.slow
def test_buckets_travel_during_backward_and_a_trace_shows_it(tmp_path: Path) -> None:
    arguments = ["overlap", "--trace-dir", str(tmp_path), "--runs", "2", "--against", "gloo", "--json"]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    every = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["system"], line["rank"]) for line in every] == [("inagg", 0), ("inagg", 1), ("gloo", 0), ("gloo", 1)]
    assert all(min(line["computed_s"], line["step_s"]) > 0 for line in every)
    lines = every[:2]
    least = LAYERS * WIDTH * WIDTH * 4 / (BUCKET_MB[PLAIN] * 2**20)
    for line in lines:
        assert line["buckets"] >= least / 2
        assert line["began_before"] >= line["buckets"] / 2
        assert 0 < line["hidden_s"] <= line["travelling_s"]
        events = json.loads(Path(line["trace"]).read_text())["traceEvents"]
        assert sum(event.get("name") == "inagg::all_reduce" for event in events) >= line["buckets"]
