"""Switches for several tests of a process: one in good order, and one in a bad network."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.switch.e2e.running import Switch

from inagg_switch.service.control_client import ControlClient


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    """A switch that nothing disturbs; a test leaves no job on it."""
    with Switch(tmp_path_factory.mktemp("good"), "--metrics", "127.0.0.1:0", "--poll-interval", "0.1") as switch:
        yield switch


@pytest.fixture
def client(good: Switch) -> Iterator[ControlClient]:
    """Asks the good switch, which has no job before and after the test."""
    with good.client() as client:
        assert not client.list().jobs
        yield client
        assert not client.list().jobs, "the test leaves a job behind"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Switch]]:
    """Starts switches of the test's own, and ends them."""
    started: list[Switch] = []

    def start(*options: str, pass_fds: Sequence[int] = ()) -> Switch:
        switch = Switch(tmp_path / f"switch{len(started)}", *options, pass_fds=pass_fds)
        started.append(switch)
        switch.wait_ready()
        return switch

    yield start
    for switch in started:
        switch.close()


@pytest.fixture(autouse=True)
def _quiet_workers(caplog: pytest.LogCaptureFixture) -> None:
    """What workers say of the failures that tests cause is no news."""
    caplog.set_level(logging.CRITICAL, "inagg")
