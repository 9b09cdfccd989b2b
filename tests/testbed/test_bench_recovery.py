"""`inagg bench recovery`: what it prints, of real processes that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from inagg import extras
from inagg_testbed.bench import recovery as bench
from inagg_testbed.bench import recovery_command
from inagg_testbed.bench.recovery import RANKS
from inagg_testbed.bench.recovery_command import (
    CASES,
    SWITCH_RESTART,
    TORCHFT_CRASH,
    TORCHRUN_RESIZE,
    TORCHRUN_RESTART,
    recovery,
)


def measured(*arguments: str) -> list[dict[str, object]]:
    done = CliRunner().invoke(recovery, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_help_imports_nothing_that_measures() -> None:
    script = (
        "import sys, inagg_testbed.bench.recovery_command;"
        "print(sorted({'numpy', 'grpc', 'inagg_testbed.bench.recovery'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_a_line_is_printed_when_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_off(*_: object) -> Iterator[dict[str, object]]:
        yield {"case": SWITCH_RESTART, "system": "inagg"}
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "bench_recovery", broken_off)
    done = CliRunner().invoke(recovery, ["--json"])
    assert json.loads(done.stdout)["case"] == SWITCH_RESTART


def test_every_case_in_which_training_did_not_go_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {"system": "inagg", "failed": ["no step"], "logs": ["a traceback"], "runs": 1}
    monkeypatch.setattr(bench, "bench_recovery", lambda *_: [{"case": case} | lost for case in CASES])
    done = CliRunner().invoke(recovery, [])
    assert done.exit_code == 1
    assert [case for case in CASES if f"{case}: no step" in done.stderr] == list(CASES)


@pytest.mark.slow
def test_training_goes_on_at_a_switch_that_was_killed_and_started_again() -> None:
    ours, gloo = measured("--case", SWITCH_RESTART, "--against", "gloo", "--runs", "1")
    assert "failed" not in ours
    assert gloo["skipped"] == "there is no switch"


@pytest.mark.slow
def test_torchrun_needs_one_restart_every_time() -> None:
    """Keys of the attempt before lie in the store that torchrun keeps."""
    (line,) = measured("--case", TORCHRUN_RESTART, "--runs", "3")
    assert "failed" not in line
    assert line["restarts"] == 1
    commands = [path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if RANKS.encode() in command and b"torchrun" in command]


def _noted(asked: list[str], cases: Sequence[str]) -> list[dict[str, object]]:
    asked += cases
    return []


def without_torchft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "missing", lambda *names: [name for name in names if name == "torchft"])
    monkeypatch.setattr(recovery_command, "missing", extras.missing)


def test_a_case_that_is_asked_for_and_cannot_be_measured_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script would take it for measured."""
    without_torchft(monkeypatch)
    done = CliRunner().invoke(recovery, ["--case", TORCHFT_CRASH])
    assert done.exit_code == 2
    assert "pip install '.[torchft]'" in done.stderr


def test_of_all_cases_those_are_left_out_that_cannot_be_measured_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_torchft(monkeypatch)
    asked: list[str] = []
    monkeypatch.setattr(bench, "bench_recovery", lambda cases, *_: _noted(asked, cases))
    done = CliRunner().invoke(recovery, [])
    assert done.exit_code == 0
    assert asked == [SWITCH_RESTART, TORCHRUN_RESTART, TORCHRUN_RESIZE]
    assert f"not measured: {TORCHFT_CRASH}: this needs torchft" in done.stderr


def test_a_case_is_named_with_hyphens_or_as_the_table_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(bench, "bench_recovery", lambda cases, *_: _noted(asked, cases))
    CliRunner().invoke(recovery, ["--case", "switch-restart", "--case", TORCHRUN_RESIZE], catch_exceptions=False)
    assert asked == [SWITCH_RESTART, TORCHRUN_RESIZE]


@pytest.mark.slow
def test_two_nodes_go_on_without_the_third() -> None:
    (line,) = measured("--case", TORCHRUN_RESIZE, "--runs", "1")
    assert "failed" not in line
