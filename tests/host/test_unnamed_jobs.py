"""A job that nobody has named is called after its script, on all ranks alike: two scripts are not summed together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inagg_host.config import Config

RANKS = """
import multiprocessing
from inagg_host.config import Config

def say(rank):
    print(Config.from_environment(switch="h:1", rank=rank, workers=3).job, flush=True)

def main():
    say(0)
    for rank, way in enumerate(("spawn", "forkserver"), 1):
        process = multiprocessing.get_context(way).Process(target=say, args=(rank,))
        process.start()
        process.join()
"""
SCRIPT = """
from ranks import main

if __name__ == "__main__":
    main()
"""


def config(**given: Any) -> Config:
    return Config.from_environment(environ={}, switch="h:1", rank=0, workers=2, **given)


def jobs(folder: Path, *command: str, **variables: str) -> list[str]:
    """Those of three ranks that a command starts, two of them by `multiprocessing`."""
    inherited = {name: value for name, value in os.environ.items() if name != "INAGG_JOB"}
    environment = inherited | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | variables
    ran = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a script, which is a module, too, and with a package that can be run."""
    (tmp_path / "big_training").mkdir()
    (tmp_path / "big_training" / "__init__.py").touch()
    (tmp_path / "ranks.py").write_text(RANKS)
    for script in ("train.py", "big_training/__main__.py"):
        (tmp_path / script).write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "name"),
    [(["train.py"], "train"), (["-m", "train"], "train"), (["-m", "big_training"], "big_training")],
)
def test_all_ranks_of_a_script_have_its_name(folder: Path, command: list[str], name: str) -> None:
    assert jobs(folder, *command) == [name] * 3


def test_a_name_that_was_given_comes_first(folder: Path) -> None:
    assert jobs(folder, "train.py", INAGG_JOB="mine") == ["mine"] * 3
    assert config(job="mine").job == "mine"


def test_without_a_script_a_job_has_a_name_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an interactive interpreter."""
    monkeypatch.setattr("sys.argv", [""])
    assert config().job == "default"


def test_long_names_of_scripts_differ_as_far_as_a_switch_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No nickname follows that would tell them apart."""
    names = []
    for script in ("train_resnet50_on_imagenet_small_batch.py", "train_resnet50_on_imagenet_large_batch.py"):
        monkeypatch.setattr("sys.argv", [script])
        names.append(config().job)
    assert names[0] != names[1]
    monkeypatch.setattr("sys.argv", ["x" * 100 + ".py"])
    assert len(config().job) == 64
