"""Fixtures of the tests of links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from inagg_link.udp import UdpLink


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["127.0.0.1", "::1"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sender(stack: ExitStack, host: str) -> UdpLink:
    return stack.enter_context(UdpLink((host, 0)))


@pytest.fixture
def receiver(stack: ExitStack, host: str) -> UdpLink:
    return stack.enter_context(UdpLink((host, 0)))


@pytest.fixture
def bell() -> Iterator[int]:
    """A descriptor that can be made readable."""
    number = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield number
    os.close(number)
