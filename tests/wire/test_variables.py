"""Variables of the environment: all that are read are known, and a slip of the finger is noticed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from inagg_wire.variables import NAMES, misspelt

REPOSITORY = Path(__file__).parents[2]


def test_all_variables_that_are_read_are_known() -> None:
    """Else they would be called misspelt."""
    found: set[str] = set()
    for root in ("protos", "switch", "host", "command", "testbed"):
        for source in (REPOSITORY / root).rglob("*.py"):
            found.update(re.findall(r"INAGG_[A-Z][A-Z_]*", source.read_text()))
    assert found - NAMES == set()


@pytest.mark.parametrize(
    ("name", "near"),
    [("INAGG_SEEED", "INAGG_SEED"), ("INAGG_SWICH", "INAGG_SWITCH"), ("inagg_format", "INAGG_FORMAT"),
     ("INAGG_JOINTIMEOUT", "INAGG_JOIN_TIMEOUT")],
)  # fmt: skip
def test_a_misspelt_variable_is_told_with_the_one_that_was_meant(name: str, near: str) -> None:
    assert misspelt([name]) == [f"the variable {name} is not read: did you mean {near}?"]


def test_what_is_somebody_elses_is_left_alone() -> None:
    assert misspelt([*NAMES, "INAGG_MY_OWN_THING", "SEED", "PATH"]) == []


@pytest.mark.parametrize("code", [
    "from inagg_host.config import Config; Config.from_environment(switch='h:1', rank=0, workers=1); "
    "Config.from_environment(switch='h:1', rank=0, workers=1)",
    "import sys; sys.argv = ['inagg', '--help']; from inagg.cli import main; main()",
])  # fmt: skip
def test_workers_and_commands_say_it_once(code: str) -> None:
    environment = {"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), "INAGG_SEEED": "3"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stderr.count("the variable INAGG_SEEED is not read: did you mean INAGG_SEED?") == 1
