"""`inagg warmup`."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_what_was_compiled_before_is_not_compiled_again() -> None:
    for _ in range(2):
        found = json.loads(ran("--json"))
    assert found["functions"] == 0
    assert found["cache"] == str(place())


def test_the_folders_are_named_that_compiled_code_is_really_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need not be where this user could keep it: another one may have warmed up the installed package."""
    ran()
    monkeypatch.setattr(inagg_testbed.warmup, "usable", lambda: {Path("/home/me/.cache/numba"): 2, Path("/site"): 150})
    assert ran() == "all was compiled before; it is kept in /home/me/.cache/numba and /site\n"
    assert json.loads(ran("--json"))["cache"] == "/home/me/.cache/numba and /site"
