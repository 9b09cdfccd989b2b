"""Progress of long work, where no terminal is, and results beside it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from inagg_testbed import progress
from inagg_testbed.bench.results import Bars, Line, Table, output_options, show
from inagg_testbed.experiments.cli import experiment
from inagg_testbed.progress import Doing, Steps, measuring


@pytest.fixture(autouse=True)
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SAY_EVERY_S", 0.0)


def rows(progress: Doing) -> Iterator[Line]:
    for n in (1, 2):
        progress(f"row {n}")
        yield {"n": n}


@click.command()
@click.option("--size", default=3)
@output_options
def measures(size: int, report: Path | None, as_json: bool) -> None:
    table = Table("a title", [("n", lambda r: str(r["n"]))], Bars("n", lambda r: r["n"]))
    show(rows, table, total=2, as_json=as_json)


def test_lines_of_json_are_alone_on_standard_output_and_progress_is_told_beside_them() -> None:
    done = CliRunner().invoke(measures, ["--json"])
    assert [json.loads(line)["n"] for line in done.stdout.splitlines()] == [1, 2]
    assert re.search(r"measuring: step 1 of 2, row 1\nmeasuring: step 2 of 2, about \S+ s left, row 2\n", done.stderr)


def test_a_line_of_json_says_how_it_was_measured(tmp_path: Path) -> None:
    """A year later nobody knows version, machine, and options; where it was written to is of no use."""
    done = CliRunner().invoke(measures, ["--size", "5", "--report", str(tmp_path / "page.html"), "--json"])
    setup: dict[str, Any] = json.loads(done.stdout.splitlines()[0])["setup"]
    assert setup["options"] == {"size": 5}
    assert setup["time_s"] > 1.7e9, "Unix time"
    assert {"inagg", "processor", "cores"} <= setup.keys()


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


def test_what_has_begun_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal: of three measurements, while the third one runs, two are done."""
    monkeypatch.setattr(progress, "Console", lambda **how: Console(**how, force_terminal=True))
    with Steps() as steps:
        assert steps.bars is not None
        task = steps.task("measuring", 3)
        for doing in ("one", "two", "three"):
            task.begin(doing)
        (bar,) = steps.bars.tasks
        assert (bar.completed, bar.total, bar.description) == (2, 3, "measuring  three")
        task.end()
        assert bar.completed == 3


def test_what_is_left_is_reckoned_from_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("inagg_testbed.progress.time.monotonic", lambda: now_s[0])
    with measuring(4) as doing:
        now_s[0] += 60  # processes start: that is once
        for step in range(4):
            doing(f"step {step}")
            now_s[0] += 10
    assert capsys.readouterr().err.splitlines()[1:4] == [
        "measuring: step 1 of 4, step 0",
        "measuring: step 2 of 4, about 30.0 s left, step 1",
        "measuring: step 3 of 4, about 20.0 s left, step 2",
    ]


def test_what_was_done_in_turns_has_one_time(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo said the same time of both its trainings, as if each had taken that."""
    with Steps() as steps:
        first, second = steps.task("software", 2), steps.task("gloo", 2)
        first.end(second)
    *_, said = capsys.readouterr().err.splitlines()
    assert re.fullmatch("software and gloo: done in .* s, in turns", said)


def test_tasks_that_end_together_all_have_full_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "Console", lambda **how: Console(**how, force_terminal=True))
    with Steps() as steps:
        assert steps.bars is not None
        first, second = steps.task("software", 2), steps.task("gloo", 3)
        first.end(second)
        assert [bar.completed for bar in steps.bars.tasks] == [2, 3]


def test_one_is_no_plural(capsys: pytest.CaptureFixture[str]) -> None:
    with Steps() as steps:
        steps.task("training", 1)
    assert "training: 1 step\n" in capsys.readouterr().err


def test_what_begins_first_is_told_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Processes that start may take half a minute; the next lines come now and then."""
    monkeypatch.setattr(progress, "SAY_EVERY_S", 1000.0)
    with measuring(3) as doing:
        doing("starting 2 workers")
        doing("64 KiB")
    assert capsys.readouterr().err.splitlines()[:-1] == [
        "measuring: 3 steps",
        "measuring: step 1 of 3, starting 2 workers",
    ]
