"""Progress of long work, where no terminal is, and results beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from inagg_testbed import progress
from inagg_testbed.bench.results import show
from inagg_testbed.experiments.cli import experiment
from inagg_testbed.option_types import json_option
from inagg_testbed.progress import Steps


@pytest.fixture(autouse=True)
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SAY_EVERY_S", 0.0)


@click.command()
@click.option("--size", default=3)
@click.option("--report")
@json_option()
def measures(size: int, report: str | None, as_json: bool) -> None:
    show(iter([{"n": 1}, {"n": 2}]), [("n", lambda r: str(r["n"]))], as_json, "a title", total=2)


def test_lines_of_json_are_alone_on_standard_output_and_progress_is_told_beside_them() -> None:
    done = CliRunner().invoke(measures, ["--json"])
    assert [json.loads(line)["n"] for line in done.stdout.splitlines()] == [1, 2]
    assert "measuring: step 1 of 2" in done.stderr


def test_a_line_of_json_says_how_it_was_measured() -> None:
    """A year later nobody knows version, machine, and options; where it was written to is of no use."""
    done = CliRunner().invoke(measures, ["--size", "5", "--report", "page.html", "--json"])
    setup: dict[str, Any] = json.loads(done.stdout.splitlines()[0])["setup"]
    assert setup["options"] == {"size": 5}
    assert setup["at"] > 1.7e9, "Unix time"
    assert {"inagg", "processor", "cores"} <= setup.keys()


def test_rows_are_counted_where_their_number_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {}
        yield {}

    show(rows(), [("n", lambda _: "")], False, "a title")
    err = capsys.readouterr().err
    assert ", 1 row\n" in err
    assert ", 2 rows\n" in err


def test_an_experiment_tells_how_far_it_is_without_a_terminal() -> None:
    for more in ([], ["--json"]):
        done = CliRunner().invoke(experiment, ["re-encoding", "--tiny", *more])
        assert done.exit_code == 0
        lines = [line for line in done.stderr.splitlines() if line.startswith("re-encoding")]
        assert any("% after" in line for line in lines)
        assert lines[-1].startswith("re-encoding: done in")


def test_on_a_terminal_results_that_go_elsewhere_are_not_taken_for_the_terminal() -> None:
    """A bar would have what is printed above it."""
    script = (
        "import sys\n"
        "from rich.console import Console\n"
        "from inagg_testbed import progress\n"
        "progress.Console = lambda **how: Console(**how, force_terminal=True)\n"
        "with progress.Steps() as steps:\n"
        "    task = steps.task('measuring', 2)\n"
        "    print('{}')\n"
        "    task.reach(0.5, 'a half')\n"
        "    task.end()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "{}\n"
    assert "measuring" in ended.stderr


def test_bars_do_not_break_lines_of_json_that_go_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "Console", lambda **how: Console(**how, force_terminal=True))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert Steps(as_json=True).bars is None
    assert Steps().bars is not None


def test_progress_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A benchmark that tells of each run has no second display, which would draw over the first."""
    show(iter([{}]), [("n", lambda _: "")], True, "a title", told=True)
    assert capsys.readouterr().err == ""


def test_one_is_no_plural(capsys: pytest.CaptureFixture[str]) -> None:
    with Steps() as steps:
        steps.task("training", 1)
    assert "training: 1 step\n" in capsys.readouterr().err
