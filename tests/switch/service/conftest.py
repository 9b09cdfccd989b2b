"""Servers on loopback, in one thread with one event loop for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import structlog
from tests.switch.background import LoopThread
from tests.switch.control.world import RecordingDriver
from tests.switch.service.member_client import MemberClient
from tests.switch.service.serving import Serving

from inagg_switch.control.policy import Policy
from inagg_switch.service.access import Access
from inagg_switch.service.security import Security
from inagg_switch.service.server import ControlServer


@pytest.fixture(autouse=True)
def _no_log_lines() -> Iterator[None]:
    """Log lines are events in memory, not lines on standard output."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def serve(loop_thread: LoopThread) -> Iterator[Callable[..., Serving]]:
    """Starts a server with a recording driver; all are stopped after the test."""
    started: list[Serving] = []

    def start(
        driver: RecordingDriver | None = None,
        *,
        policy: Policy | None = None,
        security: Security | None = None,
        access: Access | None = None,
        address: str = "127.0.0.1:0",
    ) -> Serving:
        driver = driver or RecordingDriver()
        server = ControlServer(driver, address, security=security, policy=policy)
        loop_thread.run(server.start(), 10)
        client = MemberClient(server.address, access)
        started.append(serving := Serving(driver, server, client, loop_thread))
        return serving

    yield start
    for serving in started:
        serving.close()


@pytest.fixture
def switch(serve: Callable[..., Serving]) -> Serving:
    """A server with quick limits."""
    return serve(policy=Policy(tick_interval_s=0.02, poll_interval_s=0.05, stall_after_s=0.1))
