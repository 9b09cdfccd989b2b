"""The control plane of a bmv2 switch dies in mid-run, or the switch itself: the sums are those of a calm run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.switch.e2e.running import until

from inagg_switch.p4.network import network_toml
from inagg_testbed import bmv2
from inagg_testbed.switch_process import SwitchProcess
from inagg_testbed.testbed.running import run_script
from inagg_testbed.topology import Topology, open_topology

pytestmark = [pytest.mark.p4, pytest.mark.root]

STEPS = 12
SCRIPT = """
import os, sys, time, zlib
import numpy as np
from inagg_host.allreduce import AllReduce

rank = int(os.environ["RANK"])
with AllReduce(switch=os.environ["INAGG_SWITCH"], rank=rank, workers=2, seed=7) as all_reduce:
    for step in range(int(sys.argv[1])):
        values = np.random.default_rng((rank, step)).standard_normal(4000, np.float32)
        all_reduce(values)
        print(step, zlib.crc32(values), flush=True)
        time.sleep(0.1)
"""


class Middle:
    """bmv2 and what drives it."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        self._topology = topology
        self._network = folder / "network.toml"
        self._network.write_text(network_toml(bmv2.network_of(topology)))
        self.start_switch()
        self.start_ruler()

    def start_switch(self) -> None:
        node = self._topology.switch
        self.switch = bmv2.Bmv2Process(node, node.interfaces)

    def start_ruler(self) -> None:
        self.ruler: SwitchProcess = bmv2.ruler(self._topology, self._network, ["--program", "nat8-32"])

    def stop(self) -> None:
        self.ruler.stop()
        self.switch.stop()


def restart_ruler(middle: Middle) -> None:
    middle.ruler.kill()
    middle.start_ruler()


def restart_switch(middle: Middle) -> None:
    middle.switch.kill()
    middle.ruler.process.wait(20)  # it ends by itself, since it has nothing to rule
    middle.ruler.kill()
    middle.start_switch()
    middle.start_ruler()


def sums(script: Path, disturb: Callable[[Middle], None] | None = None) -> list[list[str]]:
    """What each rank printed, by rank. ``disturb``: done after some sums."""
    with ExitStack() as stack:
        topology = stack.enter_context(open_topology(2, "none", name=f"restart-{os.getpid()}", wiring="ports"))
        middle = Middle(topology, script.parent)
        stack.callback(lambda: middle.stop())
        environment = {"INAGG_SWITCH": middle.ruler.control}
        said: dict[tuple[int, str], list[str]] = {(rank, kind): [] for rank in range(2) for kind in ("out", "err")}
        command = [sys.executable, str(script), str(STEPS)]
        # A process is killed when the thread ends that has started it: so the ranks' is another one.
        ranks = stack.enter_context(ThreadPoolExecutor(1))
        run = ranks.submit(run_script, topology, command, environment, lambda *line: said[line[:2]].append(line[2]))
        if disturb is not None:
            until(lambda: len(said[0, "out"]) >= 3 or run.done(), what="some sums")
            disturb(middle)
            assert len(said[0, "out"]) < STEPS
        assert [end.exit_code for end in run.result()] == [0, 0], said
        return [said[rank, "out"] for rank in range(2)]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("restart") / "sum.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def calm(script: Path) -> list[list[str]]:
    """What a run prints that nobody disturbs."""
    said = sums(script)
    assert [len(of_rank) for of_rank in said] == [STEPS, STEPS]
    assert said[0] == said[1]
    return said


def test_a_control_plane_that_is_killed_and_comes_back_changes_no_bit(script: Path, calm: list[list[str]]) -> None:
    assert sums(script, restart_ruler) == calm


def test_a_switch_that_is_killed_and_comes_back_changes_no_bit(script: Path, calm: list[list[str]]) -> None:
    assert sums(script, restart_switch) == calm
