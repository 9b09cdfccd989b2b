"""`inagg bench switch`: that it measures something, or says that it has not."""

from __future__ import annotations

import json
from typing import NoReturn

import pytest
from click.testing import CliRunner

from inagg_switch.driver import Counters, DriverError
from inagg_switch.software.software_driver import SoftwareDriver
from inagg_testbed.bench import switch
from inagg_testbed.bench.cli import bench
from inagg_testbed.bench.udp_limit import EchoLimit

ARGUMENTS = ["switch", "--workers", "1", "--seconds", "0.1", "--runs", "1", "--json"]


def test_json_lines() -> None:
    result = CliRunner().invoke(bench, [*ARGUMENTS, "--seconds", "1"])  # in less, a busy machine may do nothing
    assert result.exit_code == 0, result.output
    (line,) = [json.loads(text) for text in result.stdout.splitlines()]
    assert (line["bench"], line["workers"], line["format"]) == ("switch", 1, "nat8")
    assert line["elements_per_s"] > 0
    assert line["ratio_to_udp_limit"] > 0


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


def test_a_limit_that_was_measured_for_too_short_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a division by zero."""
    limit = EchoLimit(1, 1472, 44, 32, 0.1, 0, 0, 0.0, 0.0, 0, None)
    monkeypatch.setattr(switch, "udp_echo_limit", lambda *_, **__: limit)
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
