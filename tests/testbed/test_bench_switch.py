"""`inagg bench switch`: that it measures something, or says that it has not."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from inagg_switch.driver import Counters, DriverError
from inagg_switch.software.software_driver import SoftwareDriver
from inagg_testbed.bench import switch
from inagg_testbed.bench.cli import bench
from inagg_testbed.bench.echo import EchoRate, Load
from inagg_wire.formats import job_format

ARGUMENTS = ["switch", "--workers", "1", "--seconds", "0.1", "--runs", "1", "--json"]


def test_json_lines() -> None:
    result = CliRunner().invoke(bench, [*ARGUMENTS, "--seconds", "1"])  # in less, a busy machine may do nothing
    assert result.exit_code == 0, result.output
    (line,) = [json.loads(text) for text in result.stdout.splitlines()]
    assert (line["bench"], line["workers"], line["format"]) == ("switch", 1, "nat8")
    assert line["elements_per_s"] > 0
    assert line["ratio_to_echo"] > 0


def test_a_run_that_was_too_short_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had come since the first look."""
    counters, seen = SoftwareDriver.counters, dict[int, Counters]()

    def first_seen(driver: SoftwareDriver, shard: int) -> Counters:
        found = seen.get(shard) or counters(driver, shard)
        if found.jobs[1].results:
            seen[shard] = found
        return found

    monkeypatch.setattr(SoftwareDriver, "counters", first_seen)
    result = CliRunner().invoke(bench, ARGUMENTS)
    assert result.exit_code == 1
    assert "the switch has taken nothing in 0.1 s: measure for longer with --seconds" in result.output


def test_an_echo_that_was_measured_for_too_short_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a division by zero."""
    found = EchoRate(Load(1472, 1472, 44, 8), 0.1, 0, 0)
    monkeypatch.setattr(switch, "measure_echo", lambda *_, **__: found)
    result = CliRunner().invoke(bench, ARGUMENTS)
    assert result.exit_code == 1
    assert "has received nothing in 0.1 s: measure for longer with --seconds" in result.output


def test_why_the_switch_did_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise DriverError("shard 0: there is no room")

    monkeypatch.setattr(switch, "SoftwareDriver", refuse)
    result = CliRunner().invoke(bench, ARGUMENTS)
    assert result.exit_code == 1
    assert result.stderr.endswith("\nError: the switch did not start: shard 0: there is no room\n")


@pytest.mark.parametrize(
    ("name", "up", "down"), [("nat8", 1472, 1472), ("tern", 748, 1472), ("dith8-exact", 744, 1464)]
)
def test_switch_and_echo_have_the_same_load(name: str, up: int, down: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those whose results are larger the echo sent half of the bytes, in other batches, for one shard of several,
    and where receive buffers are small it alone had a smaller load."""
    seen: list[tuple[Load, int]] = []

    def echoed(_workers: int, load: Load, *_: Any, shards: int) -> EchoRate:
        seen.append((load, shards))
        return EchoRate(load._replace(window=2), 0.1, 100, 100)

    def measured(*_: Any, load: Load, shards: int) -> Any:
        seen.append((load, shards))
        return SimpleNamespace(elements_per_s=1.0, packets_per_s=1.0, cpu_s_per_gelement=1.0, retries=0)

    monkeypatch.setattr(switch, "measure_echo", echoed)
    monkeypatch.setattr(switch, "measure", measured)
    fmt = job_format(name)
    line = switch.bench_switch(fmt, 4, lanes=None, seconds=1.0, runs=2, shards=3, window=8)
    asked, *others = (load for load, _ in seen)
    assert (asked.size, asked.answer_size, asked.batch_datagrams, asked.window) == (up, down, 44, 8)
    assert set(others) == {asked._replace(window=2)}
    assert {shards for _, shards in seen} == {3}
    assert (line["window"], line["batch_datagrams"]) == (2, 44)


def test_a_smaller_load_than_was_asked_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {
        "workers": 1, "format": "nat8", "shards": 1, "elements_per_s": 1.0, "packets_per_s": 1.0,
        "cpu_s_per_gelement": 1.0, "echo_elements_per_s": 1.0, "ratio_to_echo": 1.0,
    }  # fmt: skip
    monkeypatch.setattr(switch, "bench_switch", lambda *_, **__: line | {"window": 2})
    result = CliRunner().invoke(bench, ARGUMENTS)
    assert "hold 2 batches of a worker, not 8" in result.stderr
    assert "sysctl -w net.core.rmem_max" in result.stderr
