"""The files that say which testbeds there are."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from inagg_testbed.testbed import cli
from inagg_testbed.topology import State, TopologyError, all_states, load, namespaces, open_topology, opening, state
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
    (line,) = (line for line in shown.splitlines() if "runs python" in line)
    assert f"runs {command}".strip() in line


def test_status_says_what_else_has_made_a_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.argv", ["/opt/bin/inagg", "bench", "allreduce", "--link", "1gbit"])
    with open_topology(1, name="here"):
        shown = CliRunner().invoke(cli.testbed, ["status"]).output
    assert "runs inagg bench allreduce --link 1gbit" in shown


def test_a_run_of_a_script_named_up_is_none_that_up_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with open_topology(1, name="here", made_by="up"):
        assert "runs up" in CliRunner().invoke(cli.testbed, ["status"]).output
        assert CliRunner().invoke(cli.testbed, ["down", "--all"]).output == "nothing to remove\n"
    with open_topology(1, name="here", stays=True):
        (found,) = json.loads(CliRunner().invoke(cli.testbed, ["status", "--json"]).output)["testbeds"]
    assert found["state"] == "up"


NAMES = ["inagg-one-switch", "inagg-one-w0", "inagg-two-switch"]
"""Network namespaces that nobody has told of."""


@pytest.fixture
def strays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "existing", lambda prefix: NAMES)


def status(monkeypatch: pytest.MonkeyPatch, user: int, *options: str, exit_code: int = 0) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: user)
        done = CliRunner().invoke(cli.testbed, ["status", *options], standalone_mode=False)
    assert done.return_value == exit_code
    return done.output


def test_who_is_not_root_is_sent_to_root_for_what_may_be_roots_and_not_told_to_delete_it(
    strays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = status(monkeypatch, 1000)
    assert "you have no testbed" in said
    assert "delete" not in said
    assert all(name in said for name in NAMES)
    assert 'sudo "$(command -v inagg)" testbed status' in said
    assert json.loads(status(monkeypatch, 1000, "--json"))["perhaps_in_use"] == NAMES


@pytest.mark.parametrize("there", [True, False])
def test_who_is_not_root_is_told_that_root_may_have_testbeds_where_it_has_had_some(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "existing", lambda prefix: [])
    monkeypatch.setattr(state, "SYSTEM", tmp_path if there else tmp_path / "nowhere")
    assert ("root may have testbeds" in status(monkeypatch, 1000)) == there
    assert "root may have testbeds" not in status(monkeypatch, 0)


def test_root_is_told_to_delete_only_what_belongs_to_no_testbed_in_which_processes_live(
    strays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Process.of(os.getpid())
    monkeypatch.setattr(opening, "processes_of", lambda mark, names: [mine] if NAMES[0] in names else [])
    said = status(monkeypatch, 0, exit_code=1)
    assert "root has no testbed" in said
    assert [line.split()[-1] for line in said.splitlines() if "ip netns delete" in line] == NAMES[2:]
    assert f"a testbed that I do not know may run in {', '.join(NAMES[:2])}: processes live there" in said
    assert json.loads(status(monkeypatch, 0, "--json", exit_code=1))["perhaps_in_use"] == NAMES[:2]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_exit_status_says_that_there_is_a_namespace_of_nobodys_to_remove(
    options: tuple[str, ...], strays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "processes_of", lambda mark, names: [])
    status(monkeypatch, 0, *options, exit_code=1)


def test_the_exit_status_says_nothing_of_namespaces_in_which_a_testbed_may_run(
    strays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Process.of(os.getpid())
    monkeypatch.setattr(opening, "processes_of", lambda mark, names: [mine])
    status(monkeypatch, 0, exit_code=0)


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


@pytest.fixture
def no_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])  # where no file can be made


def test_where_no_temporary_files_can_be_made_it_says_so(
    no_temporary_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SYSTEM", Path("/proc/inagg"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    with pytest.raises(TopologyError, match=r"no folder for temporary files can be written: mount something on /tmp"):
        REAL_FOLDER()


def test_temporary_files_are_not_needed_where_the_usual_place_can_be_made(
    no_temporary_files: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SYSTEM", tmp_path / "inagg")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert REAL_FOLDER() == tmp_path / "inagg"
