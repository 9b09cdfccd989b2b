"""What commands say where an extra is not installed."""

from __future__ import annotations

import importlib.util
from typing import NoReturn

import pytest

from inagg.cli import COMMANDS, make_root, run
from inagg.extras import EXTRA_OF_MODULE, MissingExtra
from inagg_testbed.topology import TopologyError, namespaces

TORCH, LINKS = "'.[torch]'", "'.[testbed]'"
BOTH = "'.[testbed,torch]'"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No extra is installed; root runs this."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in EXTRA_OF_MODULE else find(name))
    monkeypatch.setattr(namespaces, "require_root", lambda *_: None)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("command", "modules", "extras"),
    [
        ("bench allreduce --against gloo", "torch, which is", TORCH),
        ("bench allreduce --device cuda", "torch, which is", TORCH),
        ("bench allreduce --way profiler", "torch, which is", TORCH),
        ("bench allreduce --link 1gbit", "pyroute2, which is", LINKS),
        ("bench allreduce --link 1gbit --against gloo", "torch and pyroute2, which are", BOTH),
        ("bench bmv2", "pyroute2, which is", LINKS),
        ("bench kernels --device cuda", "torch, which is", TORCH),
        ("bench overlap", "torch, which is", TORCH),
        ("bench step", "torch, which is", TORCH),
        ("bench step --link 1gbit --compute-ms 1", "torch and pyroute2, which are", BOTH),
        ("bench hosts", "torch and pyroute2, which are", BOTH),
        ("bench sharing", "pyroute2, which is", LINKS),
        ("bench training", "torch, sklearn and pyroute2, which are", BOTH),
        (
            "bench training --system gloo-diloco",
            "torch, sklearn, pyroute2 and torchft, which are",
            "'.[testbed,torch,torchft]'",
        ),
        ("demo", "torch and sklearn, which are", BOTH),
        ("demo --link 1gbit", "torch, sklearn and pyroute2, which are", BOTH),
        ("advise", "torch and pyroute2, which are", BOTH),
        ("testbed --link 1gbit -- true", "pyroute2, which is", LINKS),
        ("testbed up --link 1gbit", "pyroute2, which is", LINKS),
    ],
)
def test_all_that_lacks_is_said_in_one_sentence_before_anything_begins(
    command: str, modules: str, extras: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was found out after a minute of calibration, one module at a time, or with a traceback of a worker's."""
    status = run(make_root(COMMANDS), command.split())
    out, said = capfd.readouterr()
    assert (status, out) == (2, "")
    assert said == f"Error: this needs {modules} not installed. Install: pip install {extras} (in inagg's clone)\n"


@pytest.mark.usefixtures("bare")
def test_advise_asks_for_no_links_where_it_may_make_none(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: str) -> NoReturn:
        raise TopologyError("only root may")

    monkeypatch.setattr(namespaces, "require_root", refuse)
    assert run(make_root(COMMANDS), ["advise"]) == MissingExtra.exit_code
    assert "this needs torch, which is" in capfd.readouterr().err
