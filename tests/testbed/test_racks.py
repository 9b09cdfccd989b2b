"""Racks: a leaf for each, below the switch in the middle, for whatever runs in a testbed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.switch_process import COMMAND
from inagg_testbed.topology.base import TopologyError
from inagg_testbed.topology.opening import open_topology, plan
from inagg_testbed.topology.targets import switch_for

LIMIT_S = 400.0

SUM = """
import os, sys, zlib
import numpy as np
from inagg_host.allreduce import AllReduce
rank, elements = int(os.environ["RANK"]), int(sys.argv[1])
with AllReduce(lanes=1440, window=16, seed=3) as all_reduce:
    ones = all_reduce(np.ones(elements, np.float32))  # a power of two of ranks: nothing is rounded
    assert (ones == int(os.environ["WORLD_SIZE"])).all(), ones
    total = all_reduce(np.random.default_rng(rank).normal(size=elements).astype(np.float32))
print("sum", zlib.crc32(total.tobytes()))
"""

TRAIN = """
import zlib
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from inagg_host.torch import InaggState, inagg_hook
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
images, digits = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
ddp = torch.nn.parallel.DistributedDataParallel(model)
state = InaggState(None)
ddp.register_comm_hook(state, inagg_hook)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.3)
draw = torch.Generator().manual_seed(1)
for _ in range(60):
    mine = torch.randperm(len(x), generator=draw)[:256][rank::world]
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(ddp(x[mine]), y[mine]).backward()
    optimizer.step()
right = (model(x).argmax(1) == y).float().mean().item()
assert right > 0.9, right
crc = 0
for parameter in model.parameters():
    crc = zlib.crc32(parameter.detach().numpy().tobytes(), crc)
print("sum", crc)
state.close()
dist.destroy_process_group()
"""
AS_ONE_SWITCH = {"INAGG_SEED": "11", "INAGG_LANES": "1440", "INAGG_WINDOW": "64", "INAGG_MIN_BYTES": "0"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def sums(
    script: Path, *options: str, arguments: tuple[str, ...] = (), environment: dict[str, str] | None = None
) -> set[str]:
    """What the ranks print of their sums, which must be one thing."""
    settings = [f"{name}={value}" for name, value in (environment or {}).items()]
    done = run("testbed", *options, "--", "env", *settings, COMMAND[0], str(script), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("sum ")[2] for line in done.stdout.splitlines() if "sum " in line}


def test_a_script_gets_the_same_sums_from_racks_as_from_one_switch(tmp_path: Path) -> None:
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    (flat,) = sums(script, "--workers", "2", arguments=("30000",))
    assert sums(script, "--workers", "2", "--racks", "2", arguments=("30000",)) == {flat}


@pytest.mark.slow
def test_sixty_four_processes_in_four_racks_get_one_sum(tmp_path: Path) -> None:
    """More than one switch serves, and the exact one."""
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    assert len(sums(script, "--workers", "64", "--racks", "4", arguments=("2000",))) == 1


@pytest.mark.slow
def test_a_training_in_racks_ends_with_the_parameters_of_one_switch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    (flat,) = sums(script, "--workers", "8", environment=AS_ONE_SWITCH)
    assert sums(script, "--workers", "8", "--racks", "2", environment=AS_ONE_SWITCH) == {flat}


def test_bench_measures_the_tree_beside_the_switch_behind_the_racks() -> None:
    options = ("--workers", "2", "--racks", "2", "--size", "64K", "--seconds", "0.05", "--json")
    done = run("bench", "allreduce", *options)
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    by_system = {line["system"]: line for line in lines if "system" in line}
    assert by_system["inagg"]["topology"] == "flat"
    assert (by_system["inagg-tree"]["topology"], by_system["inagg-tree"]["trunk"]) == ("tree", "exact")
    rounding = by_system["inagg-tree-reencode"]
    assert (rounding["topology"], rounding["trunk"], rounding["format"]) == ("tree", "reencode", "nat8-reencode")
    assert by_system["inagg"]["racks"] == 2
    ratio = by_system["inagg"]["median_s"] / by_system["inagg-tree"]["median_s"]
    assert lines[-1]["tree_to_flat"] == pytest.approx(ratio)
    assert lines[-1]["tree_reencode_to_flat"] == pytest.approx(
        by_system["inagg"]["median_s"] / by_system["inagg-tree-reencode"]["median_s"]
    )


def test_a_rank_tries_its_own_rack_first_and_then_the_others() -> None:
    topology = plan("x", "mark", 6, None, "bridge", 3)
    assert [topology.rack_of(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    assert switch_for(topology, 3, "root:1", ("a:1", "b:1", "c:1")) == "b:1,c:1,a:1"
    assert switch_for(topology, 3, "root:1", ()) == "root:1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--racks", "5", "--workers", "4"), "5 racks for 4 workers"),
        (("--racks", "2", "--trunk", "1gbit"), "give --link too"),
        (("--racks", "2", "--target", "bmv2"), "--racks is not for --target bmv2"),
    ],
)
def test_racks_that_cannot_be_are_refused(options: tuple[str, ...], words: str) -> None:
    done = run("testbed", *options, "--", "true")
    assert done.returncode == 2
    assert words in done.stderr


def test_a_topology_has_no_more_racks_than_workers() -> None:
    with pytest.raises(TopologyError, match="9 racks: choose 1 to 8"), open_topology(2, racks=9):
        pass
