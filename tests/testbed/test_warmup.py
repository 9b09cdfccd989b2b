"""`inagg warmup`."""

from __future__ import annotations

import json
import logging
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import inagg_testbed.warmup
from inagg_link.kept_code import place
from inagg_testbed.warmup import warmup


def ran(*options: str) -> str:
    """What it prints."""
    result = CliRunner().invoke(warmup, ["--format", "nat8", *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def answer(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str | None]) -> None:
    """In place of its processes."""
    child = SimpleNamespace(close=lambda: None, kill=lambda: None)

    def nobody(*_: Any) -> Any:
        return child

    monkeypatch.setattr(inagg_testbed.warmup, "Child", nobody)
    monkeypatch.setattr(inagg_testbed.warmup, "receive_all", lambda children, limit_s: iter(answers))


def test_what_was_compiled_before_is_not_compiled_again() -> None:
    for _ in range(2):
        found = json.loads(ran("--json"))
    assert found["functions"] == 0
    assert found["cache"] == str(place())


def test_the_folders_are_named_that_compiled_code_is_really_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need not be where this user could keep it: another one may have warmed up the installed package."""
    answer(monkeypatch, (0, None), (0, None))
    monkeypatch.setattr(inagg_testbed.warmup, "usable", lambda: {Path("/home/me/.cache/numba"): 2, Path("/site"): 150})
    assert ran() == "all was compiled before; it is kept in /home/me/.cache/numba and /site\n"
    assert json.loads(ran("--json"))["cache"] == "/home/me/.cache/numba and /site"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_it_fails_if_one_of_the_processes_could_not_keep_its_code(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "/folder is full, or cannot be written: compiled code is not kept"
    answer(monkeypatch, (3, None), (5, why))
    result = CliRunner().invoke(warmup, ["--format", "nat8", *options])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {why}\n")


def test_each_of_the_processes_tells_why_its_code_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inagg_testbed.warmup, "compile_all", lambda units, turn: None)
    monkeypatch.setattr(inagg_testbed.warmup, "why_not_kept", lambda: "the disk is full")
    monkeypatch.setattr(logging.getLogger("inagg"), "setLevel", lambda level: None)  # this process goes on
    here, there = Pipe()
    inagg_testbed.warmup._compile(there, ("nat8",), 0, 1)
    assert here.recv() == (None, (0, "the disk is full"))
