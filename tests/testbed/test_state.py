"""The files that say which testbeds there are."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from inagg_testbed.testbed import cli
from inagg_testbed.topology import State, TopologyError, all_states, load, open_topology, state
from inagg_testbed.topology.processes import Process

REAL_FOLDER = state.folder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "folder", lambda: tmp_path)


def test_a_testbed_is_known_while_it_is_open_and_forgotten_afterwards() -> None:
    with open_topology(2, name="here") as topology:
        found = load("here")
        assert found is not None
        assert found.mark == topology.workers[0].mark
        assert not found.left_over
        assert [s.name for s in all_states()] == ["here"]
    assert list(all_states()) == []


def test_status_says_what_a_testbed_runs_in_a_line_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    command = "python train.py --classes [/] " + "--more " * 30
    with open_topology(1, name="here", made_by=command):
        shown = CliRunner().invoke(cli.testbed, ["status"]).output
    (line,) = (line for line in shown.splitlines() if "here" in line)
    assert f"runs {command}".strip() in line


def test_status_says_what_else_has_made_a_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.argv", ["/opt/bin/inagg", "bench", "allreduce", "--link", "1gbit"])
    with open_topology(1, name="here"):
        shown = CliRunner().invoke(cli.testbed, ["status"]).output
    assert "runs inagg bench allreduce --link 1gbit" in shown


def test_a_name_that_is_taken_is_refused_and_the_other_testbed_stays() -> None:
    with open_topology(1, name="here"):
        with pytest.raises(TopologyError, match="down --name here"), open_topology(1, name="here"):
            pass
        assert load("here") is not None


@pytest.mark.parametrize("name", ["../x", ".x", "", "a/b", "x" * 42, "a b"])
def test_a_name_that_could_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(TopologyError, match="cannot name"):
        load(name)


def test_what_a_process_that_is_gone_has_made_is_left_over() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Process.of(child.pid)
    assert owner is not None
    made = State("there", "mark", owner.pid, owner.started, (), {})
    assert not made.left_over
    child.communicate(b"\n")
    assert made.left_over


def test_another_process_of_the_same_number_is_not_the_owner() -> None:
    mine = Process.of(os.getpid())
    assert mine is not None
    assert State("there", "mark", mine.pid, mine.started - 1, (), {}).left_over


def test_a_file_that_is_no_state_is_told_and_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(TopologyError, match=r"odd\.json"):
        load("odd")


def test_what_is_added_to_a_state_is_read_again() -> None:
    with open_topology(1, name="here"):
        found = load("here")
        assert found is not None
        found.telling(control="127.0.0.1:1").save()
        assert load("here") == dataclasses.replace(found, about={**found.about, "control": "127.0.0.1:1"})


@pytest.mark.parametrize("user", [0, os.getuid() or 65534])
def test_where_the_usual_place_cannot_be_made_the_files_are_among_temporary_ones(
    user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(state, "SYSTEM", Path("/proc/inagg"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if user == owner:
        assert REAL_FOLDER() == tmp_path / f"inagg-{user}"
    else:
        with pytest.raises(TopologyError, match="should be a folder of yours"):  # it was made by another, here
            REAL_FOLDER()
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(TopologyError, match=r"cannot keep what testbeds there are in /proc/inagg-\d+: "):
        REAL_FOLDER()
