"""Code blocks of the pages run, in their tiers, around a switch.

Commands find `train.py` (the script of the first page) and `examples/` in their folder. Python blocks run one after the
other in one process, which imports PyTorch once (`tests/docs/run_python.py`).
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg_docs.blocks import Block, blocks
from inagg_docs.tree import ROOT
from inagg_testbed.switch_process import COMMAND, SwitchProcess

BLOCKS = [block for block in blocks() if block.run]
SHELL = [block for block in BLOCKS if block.language == "sh"]
PYTHON = [block for block in BLOCKS if block.language == "python"]
WRITTEN = "127.0.0.1:47100"
"""Where the switch is in the pages."""
LIMIT_S = 300.0

(TRAIN,) = (block for block in PYTHON if block.file == "README.md")


@pytest.fixture(scope="module")
def switch() -> Iterator[str]:
    with SwitchProcess() as running:
        yield running.control


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the commands that the pages use: `inagg`, `torchrun`, `python` of this environment, a sudo that asks not."""
    shims = tmp_path / "bin"
    shims.mkdir()
    inagg = f'exec {COMMAND[0]} {COMMAND[1]} "{COMMAND[2]}" "$@"'
    commands = {
        "inagg": inagg,
        "python": f'exec {sys.executable} "$@"',
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
        "sudo": 'exec "$@"',
    }
    for name, text in commands.items():
        (shims / name).write_text(f"#!/bin/sh\n{text}\n")
        (shims / name).chmod(stat.S_IRWXU)
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").write_text(TRAIN.text)
    return tmp_path


def run(block: Block, folder: Path, switch: str) -> str:
    """What a block of commands printed, which end well."""
    environment = {
        **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "INAGG_SWITCH": switch, "OMP_NUM_THREADS": "1"
    }  # fmt: skip
    script = "set -eo pipefail\n" + block.text.replace(WRITTEN, switch)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{block.place}\n{done.stdout}{done.stderr}"
    return done.stdout


def in_tiers(*tiers: str) -> list[Block]:
    return [block for block in SHELL if set(block.tiers) == set(tiers)]


def test_every_block_that_is_run_is_run_here() -> None:
    assert len(SHELL) == sum(len(in_tiers(*tiers)) for tiers in ((), ("slow",), ("root", "slow")))
    assert {block.tiers for block in PYTHON} == {()}


@pytest.mark.parametrize("block", in_tiers(), ids=lambda block: block.place)
def test_commands(block: Block, folder: Path, switch: str) -> None:
    printed = run(block, folder, switch)
    if block.file == "README.md":
        norms = re.findall(r"rank (\d): ([\d.]+)", printed)
        assert [rank for rank, _ in sorted(norms)] == ["0", "1"]
        assert len({norm for _, norm in norms}) == 1
        assert float(norms[0][1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("block", in_tiers("slow"), ids=lambda block: block.place)
def test_commands_that_take_longer(block: Block, folder: Path, switch: str) -> None:
    run(block, folder, switch)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("block", in_tiers("root", "slow"), ids=lambda block: block.place)
def test_commands_that_need_root(block: Block, folder: Path, switch: str) -> None:
    run(block, folder, switch)


def test_python(switch: str, tmp_path: Path) -> None:
    sources = [[block.place, block.text.replace(WRITTEN, switch)] for block in PYTHON]
    environment = {
        **os.environ, "INAGG_SWITCH": switch, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).parent / "run_python.py")]
    done = subprocess.run(
        command,
        input=json.dumps(sources),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("ran ")] == [f"ran {b.place}" for b in PYTHON]
