"""Folders of commands, which go when these end, however they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from inagg_testbed.temporary import TemporaryFolder

MADE = """
import sys
from inagg_testbed.temporary import TemporaryFolder
folder = TemporaryFolder("killed")
print(folder.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_what_a_killed_command_left_goes_when_the_next_begins(tmp_path: Path) -> None:
    script = [sys.executable, "-c", MADE]
    process = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    left = Path(process.stdout.readline().strip())
    with TemporaryFolder("other"):
        assert left.is_dir()  # its owner lives
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert left.is_dir()
    with TemporaryFolder("other") as own:
        assert [path.name for path in tmp_path.iterdir()] == [Path(own).name]
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_not_of_this_kind_stay(tmp_path: Path) -> None:
    (tmp_path / "inagg-mine").mkdir()
    (tmp_path / "inagg-file").touch()
    with TemporaryFolder("other"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inagg-file", "inagg-mine"]
