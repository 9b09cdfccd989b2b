"""Measurements that are kept: found again on the same machine, and not on another."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from inagg_testbed import cache


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_is_kept_is_found_with_date_and_machine() -> None:
    assert cache.load("x") is None
    kept = cache.keep("x", {"value": [1, 2]})
    assert cache.load("x") == kept
    assert kept["value"] == [1, 2]
    assert kept["machine"] == cache.machine()
    assert kept["date"]


def test_another_machines_measurements_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.keep("x", {})
    there = cache.path("x")
    monkeypatch.setattr(cache, "machine", lambda: {"processor": "another"})
    assert cache.load("x") is None
    there.rename(cache.path("x"))  # a copied folder
    assert cache.load("x") is None


def test_a_file_that_cannot_be_read_is_as_none() -> None:
    cache.keep("x", {})
    cache.path("x").write_text("{")
    assert cache.load("x") is None


def test_nothing_but_whole_files_is_left(tmp_path: Path) -> None:
    cache.keep("x", {})
    cache.keep("x", {})
    assert [file.name for file in (tmp_path / "inagg").iterdir()] == [cache.path("x").name]


@pytest.mark.parametrize("content", [b"\xff{}", b"[1]"])
def test_a_file_that_holds_something_else_is_as_none(content: bytes) -> None:
    cache.keep("x", {})
    cache.path("x").write_bytes(content)
    assert cache.load("x") is None


def test_a_folder_that_is_none_is_said_and_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert cache.load("x") is None
    assert cache.keep("x", {"value": 1})["value"] == 1
    assert "set XDG_CACHE_HOME" in capsys.readouterr().err


def test_a_user_whom_nobody_knows_has_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of `docker run --user 1234`."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert cache.folder().name == "inagg"


def test_a_full_disk_keeps_nothing_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    cache.keep("x", {})
    assert list((tmp_path / "inagg").iterdir()) == []
