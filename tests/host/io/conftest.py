"""Fixtures of the tests of transports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from inagg_host import warmup
from inagg_link.first_start import compile_all
from inagg_link.udp import UdpLink
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.software.loop import Pump
from inagg_wire.formats import job_format

from .rig import count_runs


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A 1 for each run of the compiled loop."""
    return count_runs(monkeypatch)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer runs out in engines that are made from now on: what wakes a transport is what the test does."""
    for name in ("RTO_MIN_S", "RTO_FIRST_S", "RTO_MAX_S"):
        monkeypatch.setattr(f"inagg_host.core.recovery.{name}", 600.0)


@pytest.fixture(scope="package", autouse=True)
def _compiled() -> None:
    """On a new machine that takes longer than a test waits."""
    for fmt in ("nat8", "dith8", "fix32"):
        compile_all(warmup.units(job_format(fmt)))
    with UdpLink() as link, ExitStack() as stack:
        aggregator = Aggregator(2, 8, jobs=1)
        for _ in aggregator.receive(np.zeros(1, np.uint8), 1, link.address, 0.0):
            raise AssertionError("one byte is no datagram and has no answer")
        bell = os.eventfd(1, os.EFD_CLOEXEC)
        stack.callback(os.close, bell)
        if (port := link.port()) is not None:
            Pump(link, aggregator).run(port, bell)
