"""Ctrl-C while steps are measured or a machine is calibrated: everything ends, and nothing half done is kept."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.testbed.leftovers import run_and_signal

from inagg_testbed import cache

STEP = ["bench", "step", "--model", "resnet110", "--workers", "2", "--compute-ms", "50", "--runs", "500"]
COMMANDS = {
    "computation": ["bench", "step", "--model", "alexnet", "--workers", "2"],
    "step": [*STEP, "--against", "gloo"],
    "calibration": ["advise", "--compute-ms", "50"],
    "check": ["advise", "--check"],
}


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [3.0, 6.0, 12.0])
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_any_time_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after_s: float
) -> None:
    kept, folder = tmp_path / "cache", tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    run = run_and_signal(COMMANDS[name], signal.SIGINT, folder, after_s, to_group=True)
    assert run.left == []
    assert "Traceback" not in run.errors
    assert run.code == 130
    # What was measured is kept: all of a computation, on a fast machine, and of a calibration a part.
    measured = name == "computation" and "starting 2 workers" in run.errors
    left = [path.name for path in cache.folder().glob("*")]
    assert measured or not [file for file in left if not file.startswith("calibration-veth-unfinished-")]
