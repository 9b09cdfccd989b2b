"""Options that name what a command will write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from inagg_switch.cli.new_files import NewFile, NewFolder, write_whole
from inagg_switch.service.access import read_own_secret
from inagg_switch.service.security import SecurityError


@pytest.mark.parametrize("kind", [NewFile(), NewFile(replaces=True), NewFolder()])
def test_a_tilde_that_the_shell_left_is_the_home(
    kind: NewFile | NewFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kind.convert("~/page.html", None, None) == tmp_path / "page.html"


def test_a_link_that_somebody_has_put_there_is_not_written_through(tmp_path: Path) -> None:
    """As in /tmp, by who knows the number of our process."""
    precious = tmp_path / "precious"
    precious.write_text("all that I have")
    (tmp_path / f".ready.{os.getpid()}").symlink_to(precious)
    write_whole(tmp_path / "ready", "{}")
    assert (tmp_path / "ready").read_text() == "{}"
    assert precious.read_text() == "all that I have"


def test_a_file_that_is_written_whole_can_be_read_by_those_who_may_read_others_of_ours(tmp_path: Path) -> None:
    write_whole(tmp_path / "ready", "{}")
    (tmp_path / "other").write_text("")
    assert stat.S_IMODE((tmp_path / "ready").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "ready"]


def test_of_a_file_that_cannot_take_its_place_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "ready").mkdir()
    with pytest.raises(OSError, match="ready"):
        write_whole(tmp_path / "ready", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]


def test_of_a_file_with_several_secrets_none_is_taken_for_ones_own(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("alice: a-secret\nbob: b-secret\n")
    with pytest.raises(SecurityError, match="has 2 secrets: give a file with your own alone"):
        read_own_secret(tmp_path / "secrets")
