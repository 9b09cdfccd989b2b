"""What the tests of the testbed share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    """The test ends all processes that it starts. Fixtures of other tests may have some meanwhile."""
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before
