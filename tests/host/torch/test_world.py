"""Ranks that tests share: one that does not answer is an error that says so, also to the tests that come after."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
from tests.host.torch.world import RankError, World


@pytest.fixture
def ranks(make_world: Callable[..., World]) -> Iterator[World]:
    with make_world(2, backend="gloo") as world:
        yield world


def echo(text: str) -> str:
    return text


def fail() -> None:
    raise KeyError("of both")


def answer_late() -> str:
    if dist.get_rank() == 1:
        time.sleep(3600)
    return "late"


def end() -> None:
    if dist.get_rank() == 1:
        os._exit(7)


def test_what_ranks_raise_is_an_error_and_they_go_on(ranks: World) -> None:
    with pytest.raises(RankError, match=r"(?s)^rank 0: Traceback.*KeyError.*\nrank 1: Traceback.*KeyError"):
        ranks.run(fail)
    assert ranks.run(echo, "next") == ["next"] * 2


def test_a_rank_that_does_not_answer_in_time_is_an_error_that_says_where_it_is(ranks: World) -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1 has not answered to answer_late within 1 s:\n.* in answer_late\n"):
        ranks.run(answer_late, timeout_s=1.0)
    with pytest.raises(
        RankError,
        match=r"^echo was not called, as the ranks were killed before: rank \d has not answered to answer_late",
    ):
        ranks.run(echo, "next")


def test_a_rank_that_has_ended_is_an_error_that_says_how(ranks: World) -> None:
    with pytest.raises(RankError, match=r"^rank 1 has ended in end, with exit code 7$"):
        ranks.run(end)
    with pytest.raises(RankError, match=r"^echo was not called, as the ranks were killed before: rank 1 has ended in"):
        ranks.run(echo, "next")


def test_what_interrupts_the_test_leaves_no_answer_behind(ranks: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or a time limit of the test."""

    def interrupted(timeout_s: float, what: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ranks, "_hear", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ranks.run(echo, "before")
    monkeypatch.undo()
    with pytest.raises(RankError, match=r"^echo was not called, as the ranks were killed before: KeyboardInterrupt$"):
        ranks.run(echo, "next")
