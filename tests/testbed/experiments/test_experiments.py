"""Every experiment, in its tiny configuration: it runs, says what a reader needs, and repeats itself to the bit."""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from click.testing import CliRunner

from inagg_testbed.experiments import registry
from inagg_testbed.experiments.cli import ALL, experiment
from inagg_testbed.experiments.coverage import NO, SHOWN, table
from inagg_testbed.experiments.logistic import parity_of_digits
from inagg_testbed.experiments.model import Experiment, Figure, Outcome, Relation, Run, Source
from inagg_testbed.experiments.noise import parts_of
from inagg_testbed.experiments.page import Record, page, record, write
from inagg_testbed.experiments.rounding import Rounding

EXACT = ("second-moment", "re-encoding", "natural-dithering")
ROWS = range(1, 11)
ON_A_SWITCH = (
    "re-encoding", "terngrad", "end-to-end", "noise", "smoothness", "smoothness-workers", "compressors", "digits",
)  # fmt: skip
"""They start a switch, which takes seconds: the first one is in the default tier, the others are slow."""
NOT_REPEATABLE = ("parallel-mem-sgd",)
UNIT = re.compile(r"\(.+\)$")


def tiered(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Parameters: those that start a switch are slow, but for the ``quick``."""
    slow = [name for name in ON_A_SWITCH if name not in quick]
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


@cache
def tiny(name: str) -> tuple[Outcome, list[float]]:
    """A tiny run of an experiment, and the progress that it told."""
    shares: list[float] = []
    return registry.load(name).run(Run(seed=5, tiny=True, progress=lambda share, doing: shares.append(share))), shares


@pytest.mark.parametrize("name", tiered(registry.EXPERIMENTS, quick=["end-to-end"]))
def test_a_tiny_run_gives_figures_with_reasons_and_plots_with_units(name: str) -> None:
    outcome, shares = tiny(name)
    assert outcome.figures
    assert len({figure.name for figure in outcome.figures}) == len(outcome.figures)
    for figure in outcome.figures:
        assert figure.why
        assert all(math.isfinite(number) for number in (figure.measured, figure.reference, figure.tolerance))
    for plot in outcome.plots:
        assert UNIT.search(plot.x_axis)
        assert UNIT.search(plot.y_axis)
        assert all(len(line.x) == len(line.y) > 0 for line in plot.lines)
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("name", EXACT)
def test_what_is_enumerated_is_exact_at_any_size(name: str) -> None:
    for figure in tiny(name)[0].figures:
        if figure.tolerance == 0:
            assert figure.within_tolerance


@pytest.mark.parametrize("name", tiered((n for n in registry.EXPERIMENTS if n not in NOT_REPEATABLE), quick=[]))
def test_the_same_seed_gives_the_same_figures_to_the_bit(name: str) -> None:
    first, second = tiny(name)[0], registry.load(name).run(Run(seed=5, tiny=True))
    untimed = [[f for f in outcome.figures if not f.timed] for outcome in (first, second)]
    assert untimed[0] == untimed[1]
    assert first.plots == second.plots


def test_the_ten_rows_are_all_there() -> None:
    assert sorted(row for name in registry.EXPERIMENTS if (row := registry.load(name).row) is not None) == list(ROWS)


@pytest.mark.parametrize(
    ("relation", "measured", "within"),
    [
        (Relation.NEAR, 1.1, True),
        (Relation.NEAR, 1.3, False),
        (Relation.NEAR, 0.7, False),
        (Relation.AT_MOST, 0.1, True),
        (Relation.AT_MOST, 1.3, False),
        (Relation.AT_LEAST, 9.0, True),
        (Relation.AT_LEAST, 0.7, False),
        (Relation.NEAR, math.nan, False),
        (Relation.AT_MOST, math.nan, False),
        (Relation.AT_LEAST, math.nan, False),
    ],
)
def test_a_figure_is_within_its_tolerance_or_not(relation: Relation, measured: float, within: bool) -> None:
    assert Figure("f", measured, 1.0, 0.2, Source.OURS, "why", relation).within_tolerance is within


# --- the command ---


def test_json_has_a_line_for_each_figure_and_out_has_page_data_and_plots(tmp_path: Path) -> None:
    done = CliRunner().invoke(experiment, ["re-encoding", "--tiny", "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        assert line["experiment"] == "re-encoding"
        assert {"figure", "measured", "reference", "tolerance", "within_tolerance"} <= line.keys()
    (stored,) = json.loads((tmp_path / "results.json").read_text())
    setups = [line.pop("setup") for line in lines]
    assert stored["figures"] == lines
    assert setups[0]["options"] | {"tiny": True, "seed": 1} == setups[0]["options"]
    shown = (tmp_path / "README.md").read_text()
    assert all(line["figure"] in shown for line in lines)
    assert "(re-encoding.svg)" in shown
    picture = (tmp_path / "re-encoding.svg").read_text()
    assert "(units)" in picture
    again = tmp_path / "again"
    CliRunner().invoke(experiment, ["re-encoding", "--tiny", "--json", "--out", str(again)])
    assert (again / "re-encoding.svg").read_text() == picture


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mem-sgd", "--workers", "3"], "--workers is not for mem-sgd: it is for parallel-mem-sgd, terngrad, diana"),
        (["all", "--seeds", "3"], "--seeds is not for all"),
        (["mem-sgd", "--data", __file__], "--data is not for mem-sgd: it is for mem-sgd-sparse, parallel-mem-sgd, smo"),
        (["mem-sgd-sparse", "--data", "no-file"], "'no-file' does not exist"),
        (["mem-sgd-sparse", "--data", __file__], "is no LIBSVM file (lines of 'label index:value ...')"),
        (["mem-sgd-sparse", "--data", __file__, "--dim", "64"], "--dim and --data exclude each other"),
        (["parallel-mem-sgd", "--data", __file__, "--dim", "64"], "--dim and --data exclude each other"),
        (["parallel-mem-sgd", "--dim", "8"], "10 coordinates are sent of each step: 8 are too few"),
        (["diana", "--workers", "16", "--dim", "8"], "16 workers need as many coordinates"),
        (["block-quantization", "--dim", "100", "--workers", "3"], "100 coordinates cannot be cut into 3 equal blocks"),
        (["smoothness", "--data", __file__], "is no LIBSVM file"),
        (["smoothness-workers", "--data", __file__], "is no LIBSVM file"),
        (["digits", "--workers", "2", "--workers", "4"], "digits has one number of workers, not 2"),
    ],
)
def test_options_that_an_experiment_would_not_heed_are_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(experiment, arguments)
    assert done.exit_code == 2
    assert words in done.output


def run_of_one_figure(monkeypatch: pytest.MonkeyPatch, source: Source, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The command on an experiment whose only figure is far from its reference."""

    def missed(settings: Run) -> Outcome:
        outcome = Outcome()
        outcome.add("far off", 3.0, 1.0, 0.1, source, "because")
        return outcome

    found = Experiment("diana", "Title", "Some paper", "It is so.", missed)
    monkeypatch.setattr(registry, "load", lambda name: found)
    done = CliRunner().invoke(experiment, ["diana", "--json", *arguments], standalone_mode=False)
    return done.return_value, json.loads(done.stdout)


@pytest.mark.parametrize("source", list(Source))
def test_a_figure_that_is_not_within_tolerance_is_exit_status_1_but_in_a_tiny_run(
    monkeypatch: pytest.MonkeyPatch, source: Source
) -> None:
    code, figure = run_of_one_figure(monkeypatch, source)
    assert (code, figure["within_tolerance"]) == (1, False)
    code, figure = run_of_one_figure(monkeypatch, source, "--tiny")
    assert (code, figure["within_tolerance"]) == (0, None)


def test_our_own_references_are_not_compared_with_other_sizes_but_those_of_the_papers_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_of_one_figure(monkeypatch, Source.OURS, "--workers", "3")[0] == 0
    assert run_of_one_figure(monkeypatch, Source.PAPER, "--workers", "3")[0] == 1
    assert run_of_one_figure(monkeypatch, Source.DERIVED, "--workers", "3")[0] == 1


def test_a_tiny_run_says_that_it_compares_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(experiment, ["natural-dithering", "--tiny", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert "4 figures compared with nothing: a tiny run reaches no reference" in " ".join(done.output.split())
    assert "0 of 0 figures are within tolerance" in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_a_dimension_of_ones_own() -> None:
    outcome = registry.load("compressors").run(Run(tiny=True, dim=24))
    assert any("d = 24" in figure.why for figure in outcome.figures)


def test_help_names_every_experiment() -> None:
    shown = CliRunner().invoke(experiment, ["--help"]).output
    for name in (*registry.EXPERIMENTS, ALL):
        assert f"  {name} " in shown


# --- the page ---


def made(name: str, measured: float) -> Record:
    outcome = Outcome(notes=[f"note of {name}"])
    outcome.add("a figure | with a bar", measured, 1.0, 0.1, Source.OURS, "because")
    found = Experiment(name, f"Title of {name}", "Some paper", "It is so.", lambda run: outcome)
    return record(found, outcome, Run(seed=7), cpu_s=2.0)


def test_page_lists_what_was_not_reproduced() -> None:
    shown = page([made("first", 1.05), made("second", 3.0)])
    assert "| not shown |" in shown
    assert "1 of 2 figures are within tolerance" in shown
    assert "- Title of second: a figure | with a bar: 3, not 1." in shown
    assert "| a figure \\| with a bar | 1 | ours | 3 | 0.1 | **no** | because |" in shown
    assert "| a figure \\| with a bar | 1 | ours | 1.05 | 0.1 | yes | because |" in shown
    assert "note of first" in shown


def test_results_of_other_experiments_stay_and_keep_their_order(tmp_path: Path) -> None:
    for records in ([made("second", 3.0), made("first", 1.0)], [made("second", 1.0)]):
        write(records, ["first", "second"], tmp_path)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert [(r["experiment"], r["figures"][0]["measured"]) for r in stored] == [("first", 1.0), ("second", 1.0)]
    assert "2 of 2 figures" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("README.md", "# My project\n", "is another's, and would be replaced"),
        ("results.json", '{"mine": 1}', "has another's results.json"),
        ("results.json", '[{"experiment": "diana"}]', "has another's results.json"),
        ("results.json", '[{"experiment": "dia', "or a broken one"),
    ],
)
def test_files_of_others_are_not_replaced_and_that_is_said_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, content: str, words: str
) -> None:
    monkeypatch.setattr(registry, "load", lambda name: pytest.fail("it works already"))
    (tmp_path / name).write_text(content)
    done = CliRunner().invoke(experiment, ["diana", "--out", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.output.split())
    assert (tmp_path / name).read_text() == content


def test_without_matplotlib_pictures_are_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    monkeypatch.setattr(registry, "load", lambda name: pytest.fail("it works already"))
    done = CliRunner().invoke(experiment, ["diana", "--out", str(tmp_path / "new")])
    assert done.exit_code == 2
    assert "pip install '.[report]'" in done.output
    assert not (tmp_path / "new").exists()


def test_a_picture_that_fails_leaves_the_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError("no room for a picture")

    monkeypatch.setattr("inagg_testbed.experiments.cli.draw_all", fail)
    done = CliRunner().invoke(experiment, ["re-encoding", "--tiny", "--out", str(tmp_path)])
    assert "no room for a picture" in str(done.exception)
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "README.md"}


def test_a_folder_without_a_name_is_not_the_one_where_one_is() -> None:
    done = CliRunner().invoke(experiment, ["diana", "--out", ""])
    assert done.exit_code == 2
    assert "no folder is named" in done.output


def test_results_that_cannot_be_written_leave_those_that_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write([made("first", 1.0)], ["first", "second"], tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}

    opened = Path.open

    def full(path: Path, mode: str = "r", **how: Any) -> Any:
        file = opened(path, mode, **how)
        if mode == "r":
            return file
        with file:
            file.write("half of it")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space left"):
        write([made("second", 1.0)], ["first", "second"], tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


# --- what the experiments are made of ---


def test_workers_have_the_same_digits_whatever_the_processor() -> None:
    """Many digits tie in what they are sorted by, and sorts of other vector instructions put ties in other orders."""
    samples, labels = parity_of_digits()
    keys = (samples[:, :32].sum(axis=1) - samples[:, 32:].sum(axis=1)).tolist()
    order = sorted(range(len(keys)), key=keys.__getitem__)
    assert len(set(keys)) < len(keys)
    parts = parts_of(4)
    assert np.array_equal(np.concatenate([part.samples for part in parts]), samples[order])
    assert np.array_equal(np.concatenate([part.labels for part in parts]), labels[order])


def test_a_mean_error_is_told_in_its_standard_errors() -> None:
    rng = np.random.default_rng(1)
    fair = Rounding(rng.standard_normal(100_000), np.ones(100_000), 100)
    assert abs(fair.z) < 4.5
    assert abs(Rounding(fair.errors + 0.05, fair.variances, 100).z) > 10
    ratio, error = fair.variance_ratio
    assert abs(ratio - 1) < 4.5 * error < 0.05


def test_a_table_says_what_papers_show_and_the_experiments_do_not() -> None:
    shown = table()
    assert all(f"`{name}`" in shown for name in registry.EXPERIMENTS)
    assert any(each.verdict == NO for each in SHOWN)
    assert all(each.ours for each in SHOWN)
