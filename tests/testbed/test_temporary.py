"""Folders of commands, which go when these end, however they end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest
from tests.link.signalling import come, handled

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


def test_ctrl_c_that_another_thread_takes_while_a_folder_is_removed_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def interrupted(path: str, *, dir_fd: int | None = None) -> None:
        come(signal.SIGINT)
        unlink(path, dir_fd=dir_fd)

    folder = TemporaryFolder("other")
    monkeypatch.setattr(os, "unlink", interrupted)
    with handled(), pytest.raises(KeyboardInterrupt):
        folder.cleanup()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_ctrl_c_while_a_folder_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdtemp = tempfile.mkdtemp

    def interrupted(*arguments: str, **options: str) -> str:
        made = mkdtemp(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        TemporaryFolder("other")
        pytest.fail("it goes on")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_a_folder_is_removed_leaves_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = os.unlink

    def interrupted(path: str, *, dir_fd: int | None = None) -> None:
        signal.raise_signal(signal.SIGINT)
        unlink(path, dir_fd=dir_fd)

    folder = TemporaryFolder("other")
    Path(folder.name, "more").touch()
    monkeypatch.setattr(os, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.cleanup()
    assert list(tmp_path.iterdir()) == []


def test_who_may_write_to_no_folder_is_told_of_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nonexistent"])
    with pytest.raises(click.ClickException, match="set TMPDIR"):
        TemporaryFolder("nowhere")
