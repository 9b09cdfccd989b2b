"""Options that name what a command will write."""

from __future__ import annotations

from pathlib import Path

import pytest

from inagg_switch.cli.new_files import NewFile, NewFolder


@pytest.mark.parametrize("kind", [NewFile(), NewFile(replaces=True), NewFolder()])
def test_a_tilde_that_the_shell_left_is_the_home(
    kind: NewFile | NewFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kind.convert("~/page.html", None, None) == tmp_path / "page.html"
