"""`inagg warmup`."""

from __future__ import annotations

import json

from click.testing import CliRunner

from inagg_testbed.warmup import warmup


def test_what_was_compiled_before_is_not_compiled_again() -> None:
    for _ in range(2):
        ran = CliRunner().invoke(warmup, ["--format", "nat8", "--json"], catch_exceptions=False)
        assert ran.exit_code == 0
        found = json.loads(ran.stdout)
    assert found["functions"] == 0
    assert found["cache"]
