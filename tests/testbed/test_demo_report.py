"""The end of the demo: the report and where it is, or why there is none. The trainings are made up here."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from inagg.cli import COMMANDS, make_root
from inagg.cli import run as root
from inagg_testbed import demo as module
from inagg_testbed import demo_words
from inagg_testbed.demo_training import WORKERS_MAX, Outcome, Training, steps_of_epoch
from inagg_testbed.demo_words import accuracy_text, conclusions, go_on, print_outcomes
from inagg_testbed.report.history import History
from inagg_testbed.tables import console
from inagg_testbed.topology import Topology
from inagg_testbed.training import load_digits


@contextmanager
def no_switch(*_: Any) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(control="127.0.0.1:1")


def outcome(system: str, accuracies: Sequence[float] = (0.95,), seeds: Sequence[int] = (1,)) -> Outcome:
    gloo = system == "gloo"
    return Outcome(
        system, "float32" if gloo else "nat8", list(seeds), list(accuracies), [0.1] * len(seeds), [7] * len(seeds),
        step_ms=15.0 if gloo else 10.0, bytes_up_per_step=430e3 if gloo else 75e3, steps=5, same_parameters=True,
    )  # fmt: skip


def trained(
    trainings: Sequence[Training], _topology: Topology, _epochs: int, seeds: Sequence[int], _progress: Any
) -> list[tuple[Outcome, History]]:
    ones = [outcome(training.system, [0.95] * len(seeds), seeds) for training in trainings]
    return [(one, History(one.system, one.format, [1.0, 0.5], [0.9])) for one in ones]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "start_target", no_switch)
    monkeypatch.setattr(module, "run_trainings", trained)
    monkeypatch.setattr(module, "measure_throughput", lambda *_, **__: [])


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(module.demo, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))


def test_a_line_says_where_the_report_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='a report needs matplotlib: pip install ".[report]"')
    result = run()
    assert f"report: {tmp_path / 'inagg-demo.html'}" in result.stdout.splitlines()
    assert "95.0±0.0%" in (tmp_path / "inagg-demo.html").read_text()


def test_without_matplotlib_the_demo_works_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_matplotlib(monkeypatch)
    result = run()
    assert "95.0±0.0%" in result.stdout
    assert "no report: its pictures need matplotlib; install it: pip install '.[report]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_was_asked_for_is_no_demo_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_matplotlib(monkeypatch)
    assert root(make_root(COMMANDS), ["demo", "--report", "page.html"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_the_demo_works_and_says_so_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/proc")
    result = run()
    assert "95.0±0.0%" in result.stdout
    assert result.stderr.startswith("no report: cannot write into /proc: ")


def test_for_programs_there_is_no_report_unless_they_ask(tmp_path: Path) -> None:
    result = run("--json")
    assert [json.loads(line)["system"] for line in result.stdout.splitlines()] == ["software", "gloo"]
    assert list(tmp_path.iterdir()) == []


def test_an_epoch_has_as_many_steps_as_the_digits_fill() -> None:
    digits, _ = load_digits()
    for workers in (2, 4, 32, WORKERS_MAX):
        assert steps_of_epoch(workers) == sum(1 for _ in digits.batches(16, 0, workers, 0))


def test_the_report_of_racks_says_that_switches_are_a_tree(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='a report needs matplotlib: pip install ".[report]"')
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
        (("--racks", "2", "--trunk", "1gbit"), "give --link too"),
        (("--racks", "2", "--target", "bmv2"), "--racks is not for --target bmv2"),
    ],
)
def test_places_that_cannot_be_are_refused_before_anything_begins(options: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(module.demo, options)
    assert result.exit_code == 2
    assert words in result.output


# --- what is said at the end ---


def test_all_that_is_printed_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut, whatever the format and however large the numbers."""
    console = Console(width=80, file=io.StringIO())
    wide = replace(outcome("tree", [0.951, 0.964], [1, 2]), format="dith8-exact", step_ms=1234.5)
    print_outcomes(console, [wide, outcome("gloo", [1.0, 0.9], [1, 2])], "32 workers in 8 racks")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    assert "dith8-exact" in shown
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # else commands have long paths
    lines = [line for line in run().stdout.splitlines() if not line.startswith("report: ")]
    assert max(map(len, lines)) <= 80


def test_a_narrow_terminal_has_all_columns_in_several_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    console = Console(width=40, file=io.StringIO())
    print_outcomes(console, [outcome("software"), outcome("gloo")], "4 workers")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.count("sums by") > 1
    for cell in ("float32", "95.0%", "430,000", "17%", "bytes/step", "equal"):
        assert cell in shown
    lines = [line for line in run().stdout.split("Go on:")[0].splitlines() if not line.startswith("report: ")]
    assert max(map(len, lines)) <= 40


def test_where_all_reduces_cannot_be_measured_the_table_and_the_report_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /dev/shm is full, of which trainings need nothing."""
    pytest.importorskip("matplotlib", reason='a report needs matplotlib: pip install ".[report]"')
    printed: list[str] = []

    def fail(*_: Any, **__: Any) -> list[Any]:
        printed.append("measured")
        raise click.ClickException("/dev/shm has no room")

    def show(*_: Any) -> None:
        printed.append("table")

    monkeypatch.setattr(module, "measure_throughput", fail)
    monkeypatch.setattr(module, "print_outcomes", show)
    result = run()
    assert printed == ["table", "measured"]
    assert "no all-reduces in the report: /dev/shm has no room" in result.stderr.splitlines()
    assert (tmp_path / "inagg-demo.html").exists()


def test_the_headline_says_how_much_faster_and_how_many_bytes_less(tmp_path: Path) -> None:
    result = run()
    said = "A step over the switch: 1.5 times as fast as with Gloo, 83% fewer bytes."
    assert said in result.stdout
    if (tmp_path / "inagg-demo.html").exists():
        page = (tmp_path / "inagg-demo.html").read_text()
        assert f'<p class="headline">{said}</p>' in page
        assert "seeds 1 to 5" in page


def test_where_the_kernel_does_not_count_bytes_of_gloo_nothing_is_said_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = [outcome("software"), dataclasses.replace(outcome("gloo"), bytes_up_per_step=0.0)]
    assert demo_words.headline(*both) == "A step over the switch: 1.5 times as fast as with Gloo."
    demo_words.print_outcomes(console(), both, "2 workers")
    assert "share" not in capsys.readouterr().out


def test_accuracies_that_differ_less_than_seeds_do_are_no_difference() -> None:
    """95.1 against 96.4 % of one seed each looks like a loss, and is none."""
    ours = outcome("software", [0.951, 0.964, 0.958, 0.962, 0.955], range(1, 6))
    theirs = outcome("gloo", [0.964, 0.955, 0.960, 0.957, 0.958], range(1, 6))
    assert "Accuracy: no difference that 5 seeds can show" in conclusions([ours, theirs])[1]
    worse = outcome("software", [0.901, 0.892, 0.896, 0.895, 0.893], range(1, 6))
    assert "Accuracy: lower than with Gloo over 5 seeds, by -6." in conclusions([worse, theirs])[1]


def test_one_seed_claims_nothing_about_accuracy() -> None:
    assert "one seed cannot tell" in conclusions([outcome("software"), outcome("gloo")])[1]


def test_accuracies_of_seeds_are_told_with_their_spread() -> None:
    assert accuracy_text([0.95]) == "95.0%"
    assert accuracy_text([0.94, 0.96]) == "95.0±1.4%"


def test_without_gloo_there_is_nothing_to_compare() -> None:
    assert conclusions([outcome("software")]) == []


def test_it_says_how_to_go_on_with_commands_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `inagg` is not on PATH, as after `make demo`, commands say where it is."""
    for name in ("inagg", "python", "activate"):
        (tmp_path / ".venv/bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / ".venv/bin" / name).touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.setenv("PATH", "/nowhere")
    lines = go_on()
    assert "    .venv/bin/inagg doctor" in lines
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "To type just `inagg`: . .venv/bin/activate"
    monkeypatch.setenv("PATH", str(tmp_path / ".venv/bin"))
    assert "    inagg doctor" in go_on()
    for line in lines[2:-1:2]:
        assert line.split()[1] in COMMANDS


def test_without_torch_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("torch", "sklearn") else find(name))
    result = CliRunner().invoke(module.demo)
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: this needs torch and sklearn, which are not installed. Install: pip install '.[testbed,torch]' "
        "(in inagg's clone)\n"
    )
