"""The end of the demo: the report and where it is, or why there is none. The trainings are made up here."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inagg_testbed import demo as module
from inagg_testbed.demo import Outcome, steps_of_epoch
from inagg_testbed.report.history import History
from inagg_testbed.training import load_digits


@contextmanager
def no_switch(*_options: str) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(control="127.0.0.1:1")


def training(system: str, workers: int, epochs: int, options: dict[str, Any], *_: Any) -> tuple[Outcome, History]:
    format_ = options.get("format", "float32")
    outcome = Outcome(system, format_, 0.95, 0.1, 10.0, 75e3 if system == "soft" else 430e3, 5, True, 7)
    return outcome, History(system, format_, [1.0, 0.5], [0.9])


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "SwitchProcess", no_switch)
    monkeypatch.setattr(module, "run_training", training)
    monkeypatch.setattr(module, "measure_throughput", lambda workers, format_: [])


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(module.demo, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))


def test_the_last_line_says_where_the_report_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='a report needs matplotlib: pip install "inagg[report]"')
    result = run()
    assert result.stdout.splitlines()[-1] == f"report: {tmp_path / 'inagg-demo.html'}"
    assert "95.00%" in (tmp_path / "inagg-demo.html").read_text()


def test_without_matplotlib_the_demo_works_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_matplotlib(monkeypatch)
    result = run()
    assert "95.00%" in result.stdout
    assert "no report: its pictures need matplotlib; install it: pip install 'inagg[report]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_for_programs_there_is_no_report_unless_they_ask(tmp_path: Path) -> None:
    result = run("--json")
    assert [json.loads(line)["system"] for line in result.stdout.splitlines()] == ["soft", "gloo"]
    assert list(tmp_path.iterdir()) == []


def test_an_epoch_has_as_many_steps_as_the_digits_fill() -> None:
    digits, _ = load_digits()
    for workers in (2, 4, 32):
        assert steps_of_epoch(workers) == sum(1 for _ in digits.batches(16, 0, workers, 0))
