"""The demo, as a newcomer runs it: a real switch, real worker processes, a real training."""

from __future__ import annotations

import json
import subprocess

from inagg_testbed.switch_process import COMMAND


def test_the_demo_trains_and_leaves_the_same_parameters_on_all_workers() -> None:
    command = [*COMMAND, "demo", "--workers", "2", "--epochs", "2", "--no-gloo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (outcome,) = map(json.loads, done.stdout.splitlines())
    assert outcome["same_parameters"]
    assert outcome["accuracy"] > 0.5  # ten classes
    assert outcome["bytes_up_per_step"] < 4 * 71_754 / 3  # a third of float32, headers included
