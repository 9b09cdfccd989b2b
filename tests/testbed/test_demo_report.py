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
from inagg_testbed.demo_training import WORKERS_MAX, Outcome, steps_of_epoch
from inagg_testbed.report.history import History
from inagg_testbed.topology import Topology
from inagg_testbed.training import load_digits


@contextmanager
def no_switch(*_: Any) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(control="127.0.0.1:1")


def training(
    system: str, _topology: Topology, _epochs: int, options: dict[str, Any], *_: Any
) -> tuple[Outcome, History]:
    format_ = options.get("format", "float32")
    outcome = Outcome(system, format_, 0.95, 0.1, 10.0, 430e3 if system == "gloo" else 75e3, 5, True, 7)
    return outcome, History(system, format_, [1.0, 0.5], [0.9])


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "start_target", no_switch)
    monkeypatch.setattr(module, "run_training", training)
    monkeypatch.setattr(module, "measure_throughput", lambda *_: [])


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
    for workers in (2, 4, 32, WORKERS_MAX):
        assert steps_of_epoch(workers) == sum(1 for _ in digits.batches(16, 0, workers, 0))


def test_the_report_of_racks_says_that_switches_are_a_tree(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='a report needs matplotlib: pip install "inagg[report]"')
    result = run("--racks", "2")
    assert "4 workers in 2 racks" in " ".join(result.stdout.split())
    assert "a tree of 3 switches on 127.0.0.1:1" in " ".join(result.stderr.split())
    page = (tmp_path / "inagg-demo.html").read_text()
    assert "4 workers over loopback, in 2 racks" in page
    assert "exact partial sums of the leaves" in page


def test_racks_stand_in_what_programs_read() -> None:
    lines = [json.loads(line) for line in run("--json", "--racks", "2").stdout.splitlines()]
    assert [(line["system"], line["racks"]) for line in lines] == [("tree", 2), ("gloo", 2)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--racks", "5", "--workers", "4"), "5 racks for 4 workers"),
        (("--workers", "33"), "33 workers: one switch serves 1 to 32"),
        (("--racks", "2", "--trunk", "1gbit"), "--trunk is for --racks with --link"),
        (("--racks", "2", "--target", "bmv2"), "--racks is not for --target bmv2"),
    ],
)
def test_places_that_cannot_be_are_refused_before_anything_begins(options: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(module.demo, options)
    assert result.exit_code == 2
    assert words in result.output
