"""Fixtures of the tests of the compiled loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from .looping import Rig


@pytest.fixture
def links() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def rig(links: ExitStack) -> Rig:
    return Rig(links)
