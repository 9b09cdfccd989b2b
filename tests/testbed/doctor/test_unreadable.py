"""`inagg doctor` where it may not look at something: it says that, and goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg_testbed import cache
from inagg_testbed.doctor import command, software
from inagg_testbed.doctor.finding import Finding, Verdict


def check_something() -> Iterator[Finding]:
    yield Finding("first", Verdict.OK, "as it is")
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/somebody/else's")


def test_a_check_that_breaks_off_is_a_finding() -> None:
    first, second = command.findings_of(check_something)
    assert first.check == "first"
    assert (second.check, second.verdict) == ("something", Verdict.WRONG)
    assert "Permission denied" in second.found
    assert second.do == "ls -ld '/somebody/else'\"'\"'s'"


def test_a_folder_that_may_not_be_looked_into_keeps_no_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any other that cannot be written; stat(2) of what is in it fails, where root's never does."""
    stat = os.stat

    def refuse(path: object, *arguments: object, **more: object) -> object:
        if str(path).startswith(f"{tmp_path}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "c" / "inagg")
    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "lstat", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (finding,) = software.check_kept()
    assert finding.verdict is Verdict.SLOW


def test_a_file_in_the_place_of_the_folder_keeps_no_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write to it: XDG_CACHE_HOME=/dev/null was well."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "file" / "inagg")
    (finding,) = software.check_kept()
    assert finding.verdict is Verdict.SLOW
