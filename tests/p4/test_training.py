"""A real training through a real bmv2 switch, as `inagg demo --target bmv2` does it."""

from __future__ import annotations

import json
import subprocess

import pytest

from inagg_testbed.switch_process import COMMAND


@pytest.mark.p4
@pytest.mark.root
def test_a_training_over_bmv2_ends_with_the_bits_of_one_over_the_software_switch() -> None:
    command = [*COMMAND, "demo", "--target", "bmv2", "--workers", "2", "--epochs", "1", "--no-gloo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    bmv2, soft = map(json.loads, done.stdout.splitlines())
    assert (bmv2["system"], soft["system"]) == ("bmv2", "software")
    assert bmv2["same_parameters"]
    assert bmv2["parameters"] == soft["parameters"]
    assert bmv2["accuracy"] == soft["accuracy"] > 0.3  # ten classes, one epoch
