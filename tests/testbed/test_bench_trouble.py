"""Benchmarks where a process is killed, is silent for too long, or has much to look at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from inagg.cli import EXIT_ERROR, run
from inagg_testbed.bench import hosts
from inagg_testbed.bench.allreduce_ranks import COUNTED
from inagg_testbed.bench.children import ChildEnded, ChildSilent
from inagg_testbed.bench.cli import bench
from inagg_testbed.bench.links import RUN_LIMIT_S, run_limit_s
from inagg_testbed.bench.step_ranks import StepRanks
from inagg_testbed.profiles.compute import nothing
from inagg_testbed.topology import LinkSpec

MEBIBYTE = 1 << 20


# --- what is said ---


@pytest.mark.parametrize("error", [ChildEnded("rank 1 ended with exit code -9"), ChildSilent("rank 0 said nothing")])
def test_a_process_that_is_gone_or_silent_is_told_in_a_line(
    error: click.ClickException, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback of 46 lines; whoever expects the errors of Python finds them."""

    @click.command()
    def measure() -> None:
        raise error

    assert run(measure, []) == EXIT_ERROR
    assert capsys.readouterr().err == f"Error: {error}\n"
    assert isinstance(error, RuntimeError | TimeoutError)


# --- how long they may be silent ---


def test_over_a_slow_link_there_is_time_for_the_bytes() -> None:
    """All runs had ten minutes, also over links that need a quarter of an hour for one."""
    gloo_s = 2 * 64 * MEBIBYTE * 8 / 1e6
    assert run_limit_s(LinkSpec.parse("1mbit"), 64 * MEBIBYTE, runs=3) > 3 * gloo_s
    for fast in (LinkSpec.parse("1gbit"), LinkSpec.parse("none"), None):
        assert run_limit_s(fast, MEBIBYTE) == RUN_LIMIT_S


def test_a_step_may_take_as_long_as_its_computation_and_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def asked(_children: object, _message: object, limit_s: float) -> list[dict[str, object]]:
        given.append(limit_s)
        return [{"seconds": [1.0], "cpu_s": 0.0, "bytes_up": 0.0, "resent": 0.0, "rtt_s": 0.0}]

    monkeypatch.setattr("inagg_testbed.bench.step_ranks.ask", asked)
    ranks = StepRanks([], None, 0.0, LinkSpec.parse("1mbit"))
    ranks.run("gloo", nothing([64 * MEBIBYTE // 4]), 1)
    assert given[0] > 2 * 64 * MEBIBYTE * 8 / 1e6


# --- hosts ---


@pytest.mark.parametrize("elements", [5, 100, hosts.LOOKED_AT, hosts.LOOKED_AT + 4, 3 * hosts.LOOKED_AT])
def test_the_error_of_sums_is_found_without_drawing_all_that_ranks_have(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 16 ranks drew 16 tensors of 64 MiB, and kept them, to look at the first numbers."""
    of_ranks = [torch.randn(elements, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    drawn: list[int] = []
    randn: Callable[..., torch.Tensor] = torch.randn

    def counted(count: int, generator: torch.Generator) -> torch.Tensor:
        drawn.append(count)
        return randn(count, generator=generator)

    monkeypatch.setattr(torch, "randn", counted)
    assert hosts._error(sum(of_ranks), 3, elements) < 1e-6
    assert hosts._error(of_ranks[0] + of_ranks[1], 3, elements) > 0.1
    assert max(drawn) <= hosts.LOOKED_AT


# --- a switch that is started again ---


@pytest.mark.parametrize("epochs", [0.0, 0.5])
def test_that_workers_joined_again_meanwhile_is_told_below_the_table(
    epochs: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a switch that broke down and was started again nothing was told but on standard error, in the midst."""
    counted = dict.fromkeys(COUNTED, 1e3) | {"epochs": epochs}

    @contextmanager
    def ranks_of_no_time(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(run=lambda *_: ([1e-3], counted), topology=SimpleNamespace(link=None, trunk=None))

    monkeypatch.setattr("inagg_testbed.bench.allreduce.open_ranks", ranks_of_no_time)
    asked = ["allreduce", "--workers", "1", "--size", "1K", "--seconds", "0.01"]
    done = CliRunner().invoke(bench, asked, catch_exceptions=False)
    assert ("joined again" in done.stdout.splitlines()[-1]) == (epochs > 0)


# --- recovery ---

KILLED = """
import os, signal, sys
from pathlib import Path
from inagg_testbed.bench.recovery import Training

process = Training(Path(sys.argv[1]), "x").start(["-c", "import time; time.sleep(60)"])
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_trainings_end_with_the_benchmark_that_started_them_however_it_ends(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline_s = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    left = is_alive(pid)
    if left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def is_alive(pid: int) -> bool:
    """Whether it runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
