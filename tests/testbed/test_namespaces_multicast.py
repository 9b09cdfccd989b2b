"""Results by multicast over links between namespaces, through a bridge. Needs root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.switch_process import SwitchProcess
from inagg_testbed.topology import open_topology, state

pytestmark = pytest.mark.root

SUM = """
import json, sys, zlib
import numpy as np
from inagg_host.allreduce import AllReduce
from inagg_switch.service.control_client import ControlClient
switch, rank, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with AllReduce(switch=switch, rank=rank, workers=workers, seed=5, timeout_s=30.0) as all_reduce:
    sums = [all_reduce(np.random.default_rng(rank).standard_normal(size, np.float32)) for size in (10, 300_000)]
    with ControlClient(switch) as client:
        shard = client.stats().shards[0]
    print(json.dumps([[zlib.crc32(a.tobytes()) for a in sums], shard.datagrams_in, shard.datagrams_out]))
"""
WORKERS = 3


def run(multicast: str) -> tuple[list[list[Any]], str | None]:
    """What each rank prints, and the prefix of which the switch tells."""
    with open_topology(WORKERS, "1gbit") as topology:
        host, command = topology.switch.host, [sys.executable, "-c", SUM]
        options = ("--insecure", "--multicast", multicast)
        with SwitchProcess(*options, control=f"{host}:0", data=f"{host}:0", node=topology.switch) as switch:
            ranks = [
                subprocess.Popen(
                    node.command([*command, switch.control, str(rank), str(WORKERS)]),
                    stdout=subprocess.PIPE,
                    env=os.environ | node.environment(),
                )
                for rank, node in enumerate(topology.workers)
            ]
            said = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
            return said, json.loads((switch.folder / "ready.json").read_text())["multicast"]


def test_workers_elsewhere_take_results_from_groups_if_the_network_carries_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "folder", lambda: tmp_path)
    alone, nothing = run("auto")
    multicast, prefix = run("239.192.0.0/16")
    assert (nothing, prefix) == (None, "239.192.0.0/16")
    assert all(sums == alone[0][0] for sums, _, _ in (*alone, *multicast))
    for _, datagrams_in, datagrams_out in multicast:
        assert datagrams_out < datagrams_in / 2  # to three workers at once, and perhaps some again
