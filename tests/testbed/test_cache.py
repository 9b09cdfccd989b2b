"""Measurements that are kept: found again on the same machine, and not on another."""

from __future__ import annotations

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
