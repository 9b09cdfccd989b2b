"""A rank that cannot join: the others poll of it, though the switch does not."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.config import ConfigError
from inagg_host.membership import calls
from inagg_host.membership.failure_channel import publishing_failure
from inagg_testbed.switch_process import SwitchProcess

from .processes import start_switch

NOWHERE = "127.0.0.1:9"


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


class Board:
    """One for all ranks."""

    def __init__(self) -> None:
        self.said: str | None = None

    def publish(self, why: str) -> None:
        self.said = f"rank 1 cannot join: {why}"

    def poll(self) -> str | None:
        return self.said


def test_a_rank_that_cannot_join_tells_why() -> None:
    board = Board()
    with pytest.raises(AllReduceError, match="cannot reach the switch"):
        AllReduce(switch=NOWHERE, rank=1, workers=2, job="failure", reconnect_s=0.01, failure_channel=board)
    assert board.said is not None
    assert board.said.startswith(f"rank 1 cannot join: cannot reach the switch at {NOWHERE}")


class Stop(Exception):  # as a script calls it
    """Of a handler of signals."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Stop("signal 15"), "Stop: signal 15"),
        (AllReduceError("no switch"), "no switch"),
        (ConfigError("3 workers: too many"), "3 workers: too many"),
    ],
)
def test_what_is_no_sentence_of_ours_is_told_with_its_kind(error: BaseException, words: str) -> None:
    """Else it was "rank 1 cannot join: 0"."""
    board = Board()
    with pytest.raises(type(error)), publishing_failure(board):
        raise error
    assert board.said == f"rank 1 cannot join: {words}"


def test_nobody_waits_for_a_rank_that_cannot_join(switch: SwitchProcess) -> None:
    board = Board()
    board.publish("its cable is broken")
    with pytest.raises(AllReduceError, match=r"^rank 1 cannot join: its cable is broken$"):
        AllReduce(switch=switch.control, rank=0, workers=2, job="failure", failure_channel=board)
    assert board.said == "rank 1 cannot join: its cable is broken", "and it is not told again"


def test_a_job_that_runs_polls_no_channel_when_it_joins_again(switch: SwitchProcess) -> None:
    """The store that brings it may be gone by then, and the job needs it no more."""
    board = Board()
    with AllReduce(switch=switch.control, rank=0, workers=1, job="running", failure_channel=board) as all_reduce:
        board.publish("too late")
        network = all_reduce._network
        assert network is not None
        network._session.calls.check_stop()  # what `join` does while it waits


def test_a_rank_that_waits_for_long_says_for_whom(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "WORD_AFTER_S", 0.1)
    with caplog.at_level(logging.WARNING, "inagg"), pytest.raises(AllReduceError):
        AllReduce(switch=switch.control, rank=0, workers=2, job="lonely", join_timeout_s=3.0)
    assert [record.message for record in caplog.records if "waited" in record.message] == [
        f"rank 0 of job 'lonely' has waited 0.1 s to join: The job waits for rank 1 of 2 to join. {calls.THEIRS}"
    ]


def test_a_rank_that_is_closed_while_it_asks_for_whom_it_waits_does_not_say_that_it_waits(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    why = calls.Calls.why

    def close(asking: calls.Calls) -> str:
        said = why(asking)
        asking.stop()
        asking.close()
        return said

    monkeypatch.setattr(calls, "WORD_AFTER_S", 0.1)
    monkeypatch.setattr(calls.Calls, "why", close)
    with caplog.at_level(logging.WARNING, "inagg"), pytest.raises(AllReduceError, match="closed while joining"):
        AllReduce(switch=switch.control, rank=0, workers=2, job="closed", join_timeout_s=20.0)
    assert not [record.message for record in caplog.records if "waited" in record.message]
