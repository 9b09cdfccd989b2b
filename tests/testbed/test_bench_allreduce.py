"""`inagg bench allreduce`: the lines that it gives."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from inagg_testbed.bench.allreduce import bench_allreduce
from inagg_testbed.bench.allreduce_ranks import COUNTED, LOSSLESS, open_ranks
from inagg_testbed.bench.cli import bench
from inagg_testbed.bench.turns import RUNS_MAX, TURNS, turns

FIELDS = {
    "bench", "system", "workers", "format", "elements", "median_s", "elements_per_s", "wire_bytes_up",
    "wire_bytes_down", "runs", "runs_s",
}  # fmt: skip

OF_PACKETS = {"lanes", "packets_per_s", "busy_packets_per_s", "wire_bytes_per_element"}


def test_a_line_for_each_system_and_one_that_compares_them() -> None:
    lossy, calm, ratio = bench_allreduce(1, "nat4", [1 << 16], against=None, seconds=0.01, loss=0.01)
    assert (lossy["system"], calm["system"]) == ("inagg", LOSSLESS)
    assert set(calm) == FIELDS
    assert set(lossy) == {*FIELDS, "loss"}
    for line in (lossy, calm):
        assert (line["workers"], line["format"], line["elements"]) == (1, "nat4", 1 << 14)
        assert line["elements_per_s"] == line["elements"] / line["median_s"]
        assert len(line["runs_s"]) == line["runs"]
        assert statistics.median(line["runs_s"]) == pytest.approx(line["median_s"])
    blocks = -(-(1 << 14) // 2896)  # of the values, and one of scales
    assert calm["wire_bytes_up"] >= (blocks + 1) * 1472
    assert calm["wire_bytes_down"] >= (blocks + 1) * 1472
    assert ratio == {
        "bench": "allreduce", "workers": 1, "format": "nat4", "elements": 1 << 14,
        "ratio_to_lossless": calm["median_s"] / lossy["median_s"],
    }  # fmt: skip


def test_bytes_are_those_of_the_runs_without_what_keeps_ranks_together() -> None:
    line, *_ = bench_allreduce(1, "nat4", [1 << 10], against=None, seconds=0.01, lanes=2896)
    for way in ("wire_bytes_up", "wire_bytes_down"):
        assert 2 * 1472 <= line[way] < 4 * 1472, "one block of scales and one of values"
    assert set(line) == {*FIELDS, *OF_PACKETS}, "no Tofino adds up so many lanes"
    assert round(line["packets_per_s"] * line["median_s"], 6) >= 4, "each up and down"
    assert line["wire_bytes_per_element"] * line["elements"] >= 2 * (1472 + 66)


def test_packets_are_told_of_ours_alone() -> None:
    """Gloo's are counted nowhere, also where it scatters, of whatever size."""
    sizes = [1 << 10, 1 << 9]
    lines = list(bench_allreduce(1, "nat8", sizes, against="gloo", ways=["scattered"], seconds=0.01, lanes=8))
    for of_size, size in zip((lines[:5], lines[5:]), sizes, strict=True):
        told = {line["system"]: "packets_per_s" in line for line in of_size[:4]}
        assert told == {"inagg": True, "inagg scattered": True, "gloo": False, "gloo scattered": False}
        assert {line["elements"] for line in of_size} == {size // 4}


def test_the_switch_is_asked_what_it_has_counted() -> None:
    """As `inagg bench bmv2` does, around its runs."""
    with open_ranks(1, "nat8", against=False) as ranks:
        before_in, before_out = ranks.datagrams()
        ranks.run(1 << 10, "inagg", 1)
        after_in, after_out = ranks.datagrams()
    assert after_in - before_in >= 2, "a block of scales and one of values"
    assert after_out - before_out >= 2


def test_what_is_dropped_follows_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def noted(*_: object, seed: int, **__: object) -> list[dict[str, object]]:
        given.append(seed)
        return []

    monkeypatch.setattr("inagg_testbed.bench.allreduce.bench_allreduce", noted)
    CliRunner().invoke(bench, ["allreduce", "--loss", "0.1", "--seed", "7"], catch_exceptions=False)
    assert given == [7]


def test_a_seed_of_nothing_is_refused() -> None:
    done = CliRunner().invoke(bench, ["allreduce", "--seed", "7"])
    assert done.exit_code == 2
    assert "--seed is for --loss" in done.stderr


@contextmanager
def ranks_of_no_time(*_: object, **__: object) -> Iterator[Any]:
    """In place of `open_ranks`."""
    counted = dict.fromkeys(COUNTED, 1e3)
    yield SimpleNamespace(
        run=lambda elements, system, runs: ([1e-3] * runs, counted), topology=SimpleNamespace(link=None, trunk=None)
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--against", "gloo", "--way", "scattered"], ["--racks", "1"], ["--size", "1K,2K"], [],
        ["--format", "nat8", "--format", "fix32"], ["--lanes", "32,64"],
    ],
)  # fmt: skip
def test_progress_has_a_step_for_each_size_of_each_format_and_number_of_lanes(
    options: list[str], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inagg_testbed.bench.allreduce.open_ranks", ranks_of_no_time)
    asked = ["allreduce", "--workers", "1", "--size", "1K", "--seconds", "0.01", "--json", *options]
    done = CliRunner().invoke(bench, asked, catch_exceptions=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    cases = {(line["format"], line["elements"], line.get("lanes")) for line in lines if line.get("system") == "inagg"}
    starts = {(name, lanes) for name, _, lanes in cases}
    assert f"measuring: {len(cases) + len(starts)} steps" in done.stderr
    assert len(told) == len(cases) + len(starts)


def test_make_bench_is_a_command_that_can_be_run() -> None:
    """Without BENCH_ARGS it would show how it is used, and fail."""
    makefile = Path(__file__).parents[2] / "Makefile"
    (line,) = (line for line in makefile.read_text().splitlines() if line.startswith("BENCH_ARGS"))
    name, *options = shlex.split(line.partition("=")[2])
    command = bench.get_command(click.Context(bench), name)
    assert command is not None
    assert command.make_context(name, options).params["against"] == "gloo"


# --- how long it measures ---


def test_the_seconds_that_were_asked_for_are_not_cut_short() -> None:
    """In runs of half a millisecond, 200 of which would be over in a tenth of a second."""
    asked = ["allreduce", "--workers", "1", "--size", "4K", "--seconds", "2", "--json"]
    (line,) = map(json.loads, CliRunner().invoke(bench, asked, catch_exceptions=False).stdout.splitlines())
    assert line["runs"] > RUNS_MAX


def test_unless_seconds_are_asked_for_two_hundred_runs_are_enough() -> None:
    assert list(turns(1e-6, 2.0, 3, whole=False)) == [RUNS_MAX // TURNS] * TURNS


def test_a_run_that_takes_long_is_done_five_times() -> None:
    assert list(turns(100.0, 2.0, 1, whole=False)) == [1] * 5


def test_turns_go_on_until_all_systems_have_had_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("inagg_testbed.bench.turns.time.monotonic", lambda: now_s[0])
    runs = 0
    for of_turn in turns(0.01, 60.0, 2, whole=True):
        runs += of_turn
        now_s[0] += 2 * of_turn * 0.01
    assert runs == 60.0 / 0.01
