"""Options of experiments that cannot be met are told in a line, before any work."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from inagg_host.compress import parse
from inagg_testbed.experiments import cli, registry
from inagg_testbed.experiments.cli import experiment
from inagg_testbed.experiments.compressors import drawn
from inagg_testbed.experiments.model import Run, SettingsError
from inagg_testbed.experiments.training import check_batch


@pytest.mark.parametrize(("name", "batch"), [("terngrad", 128), ("digits", 64), ("end-to-end", 64)])
def test_workers_who_cannot_share_a_batch_are_refused_before_the_work(
    name: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback, of two of them after the first part of the work."""
    module = f"inagg_testbed.experiments.{registry.EXPERIMENTS[name].module}"
    registry.load(name)
    monkeypatch.setattr(f"{module}.SwitchProcess", lambda: pytest.fail("a switch was started"))
    done = CliRunner().invoke(experiment, [name, "--tiny", "--workers", "3"])
    assert done.exit_code == 2
    assert f"3 workers cannot share a batch of {batch} equally: give one of 1, 2, 4, 8, 16, 32" in done.stderr


def test_of_several_numbers_of_workers_each_must_share_the_batch() -> None:
    check_batch(64, 2, 4)
    with pytest.raises(SettingsError, match=r"^5 workers"):
        check_batch(64, 2, 5)


@pytest.mark.parametrize("d", [8, 100, 1001])
def test_errors_of_vectors_of_any_size_are_told_in_their_standard_errors(d: int) -> None:
    """A size that is no multiple of eight could not be cut into pieces."""
    assert np.isfinite(drawn(parse("natural"), d, 4, "float64", Run()).z)


def test_an_option_is_refused_without_an_import_of_the_experiments() -> None:
    """It took a quarter of a minute to say who takes it."""
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from inagg_testbed.experiments.cli import experiment\n"
        "done = CliRunner().invoke(experiment, ['mem-sgd', '--dim', '9'])\n"
        "assert 'it is for mem-sgd-sparse, parallel-mem-sgd, diana' in done.stderr, done.output\n"
        "sys.exit('torch' in sys.modules or 'inagg_testbed.experiments.diana' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", [name for name, listed in registry.EXPERIMENTS.items() if listed.one_count])
def test_an_experiment_with_one_number_of_workers_refuses_two(name: str) -> None:
    done = CliRunner().invoke(experiment, [name, "--workers", "2", "--workers", "4"])
    assert done.exit_code == 2
    assert f"{name} has one number of workers, not 2" in done.stderr


def test_the_help_tells_what_each_is_about_in_80_columns() -> None:
    shown = CliRunner().invoke(experiment, ["--help"], terminal_width=80).stdout
    assert all(f"{name:<18}  {listed.line}" in shown for name, listed in registry.EXPERIMENTS.items())
    assert max(map(len, shown.splitlines())) <= 80
    assert cli.ALL in shown
