"""A switch for all tests of this folder, and worlds of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.host.torch.world import World
from tests.switch.background import BackgroundServer

from inagg_switch.service.server import ControlServer
from inagg_switch.software.software_driver import SoftwareDriver


@pytest.fixture(scope="session")
def switch() -> Iterator[str]:
    """The address of a software switch."""
    driver = SoftwareDriver()
    try:
        with BackgroundServer(ControlServer(driver, "127.0.0.1:0")) as server:
            yield server.address
    finally:
        driver.close()


@pytest.fixture(scope="session")
def make_world(switch: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., World]:
    """Makes worlds on the switch; their user closes them."""

    def make(ranks: int, backend: str = "inagg", **environment: str) -> World:
        folder: Path = tmp_path_factory.mktemp("world")
        # Where there is a GPU, ranks share it.
        return World(ranks, folder, {"INAGG_SWITCH": switch, "INAGG_CUDA_INNER": "gloo", **environment}, backend)

    return make


@pytest.fixture(scope="session")
def two(make_world: Callable[..., World]) -> Iterator[World]:
    """Two ranks of the backend "inagg", for tests that leave them as they were."""
    with make_world(2) as world:
        yield world


@pytest.fixture(scope="session")
def beside(make_world: Callable[..., World]) -> Iterator[World]:
    """Two ranks of Gloo, for tests that make groups of ours beside it."""
    with make_world(2, backend="gloo") as world:
        yield world


@pytest.fixture
def again(make_world: Callable[..., World]) -> Iterator[World]:
    """Two ranks that a test may leave otherwise than it found them."""
    with make_world(2) as world:
        yield world


@pytest.fixture(scope="session")
def four(make_world: Callable[..., World]) -> Iterator[World]:
    """Four ranks, for slow tests."""
    with make_world(4) as world:
        yield world


@pytest.fixture(scope="session")
def four_beside(make_world: Callable[..., World]) -> Iterator[World]:
    """Four ranks of Gloo, for slow tests."""
    with make_world(4, backend="gloo") as world:
        yield world
