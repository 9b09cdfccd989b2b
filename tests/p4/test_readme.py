"""p4/README.md, followed word by word: its network, bmv2, control plane and workers, and a job that ends."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.switch.e2e.running import environment

ROOT = Path(__file__).parents[2]
README = (ROOT / "p4" / "README.md").read_text()
BLOCK = re.compile(r"<!-- run by tests/p4/test_readme.py -->\n```(\w+)\n(.*?)```", re.S)
LIMIT_S = 900
"""The first workers on a machine compile their kernels."""

TRAIN = """
import os
import numpy as np
from inagg_host.allreduce import AllReduce

rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with AllReduce(switch=os.environ["INAGG_SWITCH"], rank=rank, workers=workers) as all_reduce:
    values = np.ones(5000, np.float32)
    all_reduce(values)
    print(f"{rank} {values.min()} {values.max()}\\n", end="", flush=True)  # in one write: both have one pipe
"""
WAIT = """
until inagg jobs --switch 10.78.0.254:47100 > /dev/null 2>&1; do kill -0 $!; sleep 0.2; done
"""
"""Ends, with what it has said, if the switch has."""
WAITING = " || [ $? -eq 4 ]"
"""What `inagg why` may end with: a job that starts waits for its ranks."""
END = """
trap 'kill $(jobs -p)' EXIT
wait $!
inagg top --once --json --interval 0.1 --switch 10.78.0.254:47100 > top.json
"""


def script() -> str:
    """All its commands, in order: what serves is waited for before anybody asks it, and what ends at the end."""
    network, switch, workers = (text for language, text in BLOCK.findall(README) if language == "sh")
    (why,) = re.findall(r"^inagg why.*$", workers, re.M)
    return f"set -e\n{network}{switch}{WAIT}{workers.replace(why, why + WAITING)}{END}"


@pytest.mark.p4
@pytest.mark.root
@pytest.mark.skipif(shutil.which("ethtool") is None, reason="ethtool, which the page uses, is not installed")
def test_who_does_what_the_page_says_gets_sums(tmp_path: Path) -> None:
    """In a network of its own; `pip install .` is what the tests have done, and root needs no sudo."""
    tools = tmp_path / "bin"
    tools.mkdir()
    run_inagg = f'exec {sys.executable} -m inagg "$@"'
    commands = {"sudo": 'exec "$@"', "pip": "true", "inagg": run_inagg, "python": f'exec {sys.executable} "$@"'}
    for name, does in commands.items():
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    (network,) = (text for language, text in BLOCK.findall(README) if language == "toml")
    for name, text in (("network.toml", network), ("train.py", TRAIN), ("script.sh", script())):
        (tmp_path / name).write_text(text)
    own_names = "mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip link set lo up && exec bash script.sh"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", own_names],
        cwd=tmp_path,
        env=environment(PATH=f"{tools}:{os.environ['PATH']}", PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.endswith("2.0 2.0")) == ["0 2.0 2.0", "1 2.0 2.0"]
    assert '"trailing_bytes"' not in (tmp_path / "top.json").read_text()
