"""The ready file of switches that are started at the same time with the same one."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg_switch.cli import ready_file
from inagg_switch.cli.ready_file import claim, remove_own, write_own


@pytest.fixture
def other(tmp_path: Path) -> Iterator[int]:
    """Another process that was started with the ready file, and runs: Linux shows the words of a command an instant
    after it has begun; its number."""
    command = [sys.executable, "-c", "input('runs')", str(tmp_path / "ready")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"runs"
        yield process.pid
        process.kill()


def test_who_is_second_writes_nothing_and_is_told_whose_it_is(tmp_path: Path, other: int) -> None:
    path = tmp_path / "ready"
    assert claim(path) is None  # both have looked, and nobody has written
    others = json.dumps({"pid": other})
    path.write_text(others)
    said = write_own(path, json.dumps({"pid": os.getpid()}))
    assert said is not None
    assert f"another switch, which runs (process {other})" in said
    assert path.read_text() == others


def test_a_switch_that_starts_removes_none_of_one_that_runs(tmp_path: Path, other: int) -> None:
    path = tmp_path / "ready"
    path.write_text(json.dumps({"pid": other}))
    assert claim(path) is not None
    assert path.exists()


def test_one_of_a_switch_that_was_killed_is_replaced_and_removed_by_whoever_has_written_it(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    path.write_text(json.dumps({"pid": 1 << 30}))
    assert write_own(path, json.dumps({"pid": os.getpid()})) is None
    remove_own(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["claim", "write", "remove"])
def test_one_switch_at_a_time_looks_at_it_and_changes_it(tmp_path: Path, other: int, what: str) -> None:
    """Another one that holds the folder writes its file meanwhile: that must be seen, and stay."""
    path, others = tmp_path / "ready", json.dumps({"pid": other})
    mine = json.dumps({"pid": os.getpid()})
    if what == "remove":
        path.write_text(mine)
    work = {"claim": lambda: claim(path), "write": lambda: write_own(path, mine), "remove": lambda: remove_own(path)}
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    does = threading.Thread(target=work[what])
    does.start()
    time.sleep(0.2)
    assert does.is_alive(), "it waits for the other"
    path.write_text(others)
    os.close(folder)
    does.join()
    assert path.read_text() == others


def test_a_folder_that_somebody_holds_for_long_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_file, "LOCK_S", 0.1)
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert write_own(tmp_path / "ready", "{}") is None
    os.close(folder)
    assert (tmp_path / "ready").read_text() == "{}"
