"""A control service over a driver that only remembers, for the commands that ask one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

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
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the terminal and the user's variables say is nothing to these tests."""
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "INAGG_SWITCH", "INAGG_SECRET", "INAGG_CA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def restored_log() -> Iterator[None]:
    """What the log is for other tests."""
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread("inagg-cli-tests")
    yield thread
    thread.close()


@pytest.fixture
def serve(loop_thread: LoopThread) -> Iterator[Callable[..., Serving]]:
    """Starts a control service on loopback; it is stopped after the test."""
    with ExitStack() as stack:

        def start(security: Security | None = None, access: Access | None = None) -> Serving:
            driver = RecordingDriver()
            policy = Policy(tick_interval_s=0.02, poll_interval_s=0.02, stall_after_s=0.1)
            server = ControlServer(driver, "127.0.0.1:0", security=security, policy=policy)
            loop_thread.run(server.start(), 10)
            serving = Serving(driver, server, MemberClient(server.address, access), loop_thread)
            stack.callback(serving.close)
            return serving

        with structlog.testing.capture_logs():
            yield start
