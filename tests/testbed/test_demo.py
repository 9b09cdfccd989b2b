"""The demo, as a newcomer runs it: a real switch, real worker processes, a real training."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from inagg_testbed.switch_process import COMMAND


def trained(*options: str) -> dict[str, Any]:
    command = [*COMMAND, "demo", "--workers", "2", "--epochs", "2", "--no-gloo", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (outcome,) = map(json.loads, done.stdout.splitlines())
    assert outcome["same_parameters"]
    assert outcome["accuracy"] > 0.5  # ten classes
    for kind in ("seconds_by_step", "losses_by_step"):
        assert [len(of_seed) for of_seed in outcome[kind]] == [outcome["steps"]] * len(outcome["seeds"])
    assert outcome["setup"]["options"]["epochs"] == 2
    assert outcome["bytes_up_per_step"] < 4 * 71_754 / 3  # a third of float32, headers included
    return dict(outcome)


def test_the_demo_trains_and_a_seed_gives_the_same_bits_each_time() -> None:
    """On all workers, and in another run as the second training of it."""
    both, second = trained("--seeds", "2"), trained("--seed", "2", "--seeds", "1")
    assert (both["system"], both["seeds"], second["seeds"]) == ("software", [1, 2], [2])
    assert both["parameters"][1] == second["parameters"][0]
    assert both["accuracies"][1] == second["accuracies"][0]
    assert both["parameters"][0] != both["parameters"][1]


@pytest.mark.slow
def test_the_demo_trains_over_a_tree() -> None:
    assert trained("--racks", "2", "--seeds", "1")["system"] == "tree"


@pytest.mark.root
@pytest.mark.slow
def test_the_demo_trains_in_racks_behind_links() -> None:
    """And what Gloo sends is counted on a worker's own link."""
    place = ("--workers", "2", "--racks", "2", "--link", "200mbit", "--trunk", "100mbit")
    command = [*COMMAND, "demo", *place, "--epochs", "1", "--seeds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    tree, gloo = map(json.loads, done.stdout.splitlines())
    assert (tree["system"], tree["link"], tree["trunk"], tree["racks"]) == ("tree", "200mbit", "100mbit", 2)
    assert tree["same_parameters"]
    float32 = 4 * 71_754
    assert tree["bytes_up_per_step"] < float32 / 3
    assert float32 < gloo["bytes_up_per_step"] < 1.2 * float32  # a ring of two sends all, headers included
