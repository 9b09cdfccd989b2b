"""What a rank that waits for too long says, where something comes while it asks."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inagg_host.config import Config
from inagg_host.membership.deadlines import Deadlines
from inagg_host.membership.reachability import SwitchCounts, UdpReachability

WHY = "Sums wait for rank 1."
FIREWALL = "a firewall stands before it"


class Operation:
    """One that was begun long ago."""

    submitted_s = 0.0


class Rank:
    """What deadlines look at: something was sent, and nothing has come."""

    def __init__(self, policy: str = "raise") -> None:
        self.came = 0
        self.limit_s = 1.0
        self.tasks: dict[Any, Any] = {Operation(): (None, (5, 0, 0))}
        shards = np.zeros(1, [("snd_una", int), ("snd_nxt", int)])
        shards["snd_nxt"] = 1
        epoch = SimpleNamespace(shards=[SimpleNamespace(address=("10.0.0.9", 47101))])
        transport: Any = SimpleNamespace(
            lock=threading.RLock(), datagrams=lambda: (9, 4, self.came),
            engine=SimpleNamespace(state=SimpleNamespace(shards=shards), epoch=epoch),
        )  # fmt: skip
        session: Any = SimpleNamespace(calls=SimpleNamespace(why=self.why), counted=self.counted)
        config = Config(switch="127.0.0.1:9", rank=0, workers=2, policy=policy)
        self.deadlines = Deadlines(config, lambda: self.limit_s, session, transport, self.tasks)

    def why(self) -> str:
        return WHY

    def counted(self) -> SwitchCounts:
        return SwitchCounts(0, 0)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent is lost, as far as the counts of the switch tell."""
    monkeypatch.setattr(UdpReachability, "wants_counts", lambda *_: True)
    monkeypatch.setattr(UdpReachability, "verdict", lambda *_: FIREWALL)
    monkeypatch.setattr(UdpReachability, "lost", property(lambda _: True))


def test_who_has_waited_for_too_long_says_what_went_to_and_fro() -> None:
    said = Rank().deadlines.missed()
    assert said == (
        f"no result within 1 s. {WHY} Meanwhile this rank sent 4 datagrams, 4 of them again, and 0 came to it."
    )


def test_the_limit_is_that_of_now() -> None:
    rank = Rank()
    rank.limit_s = 1e9
    assert rank.deadlines.missed() is None
    rank.limit_s = 2.0
    assert rank.deadlines.missed() is not None


def test_a_sum_that_comes_while_the_switch_is_asked_is_no_error_of_the_thread_that_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would keep the limits after that."""
    rank = Rank()

    def why() -> str:
        rank.tasks.clear()
        return WHY

    monkeypatch.setattr(rank.deadlines._session.calls, "why", why)
    assert rank.deadlines.missed() == f"no result within 1 s. {WHY}"
    assert rank.deadlines.missed() is None


@pytest.mark.usefixtures("lost")
def test_who_can_sum_elsewhere_does_not_wait_for_what_is_lost() -> None:
    assert Rank("fallback").deadlines.missed() == FIREWALL
    waiting = Rank()
    next(iter(waiting.tasks)).submitted_s = time.monotonic()
    assert waiting.deadlines.missed() is None


@pytest.mark.usefixtures("lost")
def test_what_comes_while_the_switch_is_asked_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank("fallback")
    next(iter(rank.tasks)).submitted_s = time.monotonic()

    def counted() -> SwitchCounts:
        rank.came += 1
        return SwitchCounts(0, 0)

    monkeypatch.setattr(rank.deadlines._session, "counted", counted)
    assert rank.deadlines.missed() is None


def test_who_hears_only_that_nothing_is_known_waits_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(UdpReachability, "wants_counts", lambda *_: True)
    monkeypatch.setattr(UdpReachability, "verdict", lambda *_: "a shard does not answer")
    rank = Rank("fallback")
    next(iter(rank.tasks)).submitted_s = time.monotonic()
    assert rank.deadlines.missed() is None
    assert "a shard does not answer" in caplog.text


@pytest.mark.parametrize(("ago_s", "missed"), [(0.0, False), (1.5, True)])
def test_the_limit_is_what_was_set(ago_s: float, missed: bool) -> None:
    rank = Rank()
    next(iter(rank.tasks)).submitted_s = time.monotonic() - ago_s
    assert (rank.deadlines.missed() is not None) is missed
