"""What the tests of the testbed share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

from inagg_testbed.progress import Task


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    """The test ends all processes that it starts. Fixtures of other tests may have some meanwhile."""
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What tasks are told when a step begins."""
    said: list[str] = []
    begin = Task.begin

    def noted(task: Task, doing: str) -> None:
        said.append(doing)
        begin(task, doing)

    monkeypatch.setattr(Task, "begin", noted)
    return said
