"""A rank that sends again and hears nothing says so where datagrams are lost, and not where another rank is slow."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.membership import reachability
from inagg_host.membership.reachability import (
    AFTER_S,
    RECHECK_S,
    RankCounts,
    SwitchCounts,
    UdpReachability,
    switch_counts,
    where_text,
)
from inagg_link.around import LinkAround
from inagg_link.base import Batch, Traffic
from inagg_proto.v1 import control_pb2 as pb
from inagg_testbed.switch_process import SwitchProcess

from .processes import start_switch

WHERE = "UDP 10.9.0.1:47101"
EVERY_S = 0.2


class Rank:
    """One that looks every `EVERY_S` seconds, and sends again as often, while it ``waits``."""

    def __init__(self, came: int = 0) -> None:
        self.now, self.came, self.resent, self.waits = 100.0, came, 0, True
        self.arrives = self.answered = self.resends = True
        self.bytes_in = self.answers = 0
        self.asked: list[float] = []
        self.told: list[tuple[float, str]] = []
        self._reachability = UdpReachability()

    def run(self, seconds: float, counts: bool = True, instead: str | None = None) -> None:
        for _ in range(round(seconds / EVERY_S)):
            self.now += EVERY_S
            sends = self.waits and self.resends
            self.resent += sends
            self.bytes_in += 1000 * (sends and self.arrives)
            self.answers += sends and self.arrives and self.answered
            seen = RankCounts(self.resent + 1, self.resent, self.came, self.waits)
            if self._reachability.wants_counts(self.now, seen):
                self.asked.append(self.now)
                counted = SwitchCounts(self.bytes_in, self.answers) if counts else instead
                if (said := self._reachability.verdict(self.now, seen, counted, WHERE)) is not None:
                    self.told.append((self.now, said))


def test_what_never_arrives_is_told_once_after_ten_seconds() -> None:
    rank = Rank()
    rank.arrives = False
    rank.run(300)
    ((told_s, said),) = rank.told
    assert told_s - 100.0 == pytest.approx(AFTER_S + RECHECK_S, abs=0.6)
    assert said.startswith(f"nothing comes from {WHERE} since this rank joined, for 11 s. Meanwhile this rank sent ")
    assert "again, and 0 came to it. And of what it sends the switch counts nothing" in said
    assert said.endswith("does a firewall let UDP pass, from here to there?")


def test_answers_that_do_not_come_are_told_of() -> None:
    rank = Rank()
    rank.run(20)
    ((_, said),) = rank.told
    assert said.endswith("no answer comes: does a firewall let UDP pass, from there to here?")


def test_it_is_told_that_data_had_come_before() -> None:
    rank = Rank(came=50)
    rank.arrives = False
    rank.run(20)
    ((_, said),) = rank.told
    assert said.startswith(f"nothing comes from {WHERE}, as it did before, for 11 s.")


def test_nothing_is_told_while_another_rank_is_slow() -> None:
    """Then the switch has what this one sent, and drops what it sends again."""
    rank = Rank()
    rank.answered = False
    rank.run(3600)
    assert rank.told == []
    assert len(rank.asked) < 150, "and the switch is not asked all the time"


def test_nothing_is_told_of_a_rank_that_computes() -> None:
    rank = Rank()
    rank.arrives = rank.waits = False
    rank.run(600)
    assert rank.asked == []


def test_nothing_is_told_where_the_switch_does_not_say_what_it_has_counted() -> None:
    rank = Rank()
    rank.arrives = False
    rank.run(120, counts=False)
    assert rank.told == []
    rank.run(120)
    assert len(rank.told) == 1, "but it is asked again"


def test_what_keeps_the_switch_from_counting_is_told_once_in_each_silence() -> None:
    rank = Rank()
    for silence in (1, 2):
        rank.run(120, counts=False, instead="the switch says: shard 1 does not answer")
        assert len(rank.told) == silence
        assert rank.told[-1][1].startswith(f"nothing comes from {WHERE}")
        assert rank.told[-1][1].endswith("came to it. And the switch says: shard 1 does not answer")
        rank.came += 1


def test_where_datagrams_are_lost_is_told_also_after_the_switch_could_not_count() -> None:
    rank = Rank()
    rank.arrives = False
    rank.run(20, counts=False, instead="the switch is busy")
    rank.run(120)
    assert [said.rpartition(" And ")[2] for _, said in rank.told] == [
        "the switch is busy",
        "of what it sends the switch counts nothing: does a firewall let UDP pass, from here to there?",
    ]


def test_nothing_is_told_if_a_result_crosses_what_was_sent_again() -> None:
    """As when the rank that was waited for has come at last."""
    rank = Rank()
    rank.answered = False
    rank.run(AFTER_S + 1)
    rank.answers += 1
    rank.run(20)
    assert rank.told == []


def test_what_was_sent_before_the_switch_said_anything_does_not_count() -> None:
    """It may have come before that, so that nothing is new to the switch later."""
    rank = Rank()
    rank.run(AFTER_S + EVERY_S)
    assert len(rank.asked) == 1
    rank.resent += 10  # while the switch was asked
    rank.resends = False
    rank.run(30)
    assert rank.told == []


def test_nothing_is_told_of_what_is_lost_for_some_seconds() -> None:
    rank = Rank()
    rank.arrives = False
    for _ in range(10):
        rank.run(8)
        rank.came += 1
    assert rank.told == []


def test_it_is_told_again_if_data_has_come_meanwhile() -> None:
    rank = Rank()
    rank.arrives = False
    rank.run(20)
    rank.came += 1
    rank.run(20)
    assert len(rank.told) == 2


def test_shards_are_named_as_they_are_written() -> None:
    assert where_text([("10.9.0.1", 47101), ("fd09::1", 47102)]) == "UDP 10.9.0.1:47101 and UDP [fd09::1]:47102"


def test_a_switch_below_that_does_not_answer_has_counted_nothing_that_says_anything() -> None:
    """Its ranks stand there with zeros."""
    members = [pb.Member(rank=0), pb.Member(rank=1, switch="rack3")]
    workers = [pb.WorkerStats(rank=0, bytes_in=5, resends=2), pb.WorkerStats(rank=1)]
    reply = pb.StatsResponse(shards=[pb.ShardStats()], jobs=[pb.JobStats(job=pb.Job(members=members), workers=workers)])
    assert switch_counts(reply, 0) == SwitchCounts(5, 2)
    assert switch_counts(reply, 1) is None
    reply.shards.add(switch="rack3")
    assert switch_counts(reply, 1) == SwitchCounts(0, 0)
    assert switch_counts(pb.StatsResponse(), 0) is None


# --- with a switch ---


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "AFTER_S", 0.5)
    monkeypatch.setattr(reachability, "RECHECK_S", 1.5)
    monkeypatch.setattr(reachability, "AGAIN_MOST_S", 0.5)


class Mute(LinkAround):
    """Before a firewall that stops what is sent."""

    def send(self, batch: Batch) -> int:
        return len(batch)


class Deaf(LinkAround):
    """Behind one that stops what comes."""

    def receive(self, timeout_s: float) -> list[Batch]:
        self.link.receive(timeout_s)
        return []

    @property
    def traffic(self) -> Traffic:
        sent, _, bytes_sent, _ = self.link.traffic
        return sent, 0, bytes_sent, 0


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("lost", "way"), [("sending", "from here to there"), ("receiving", "from there to here")])
def test_a_rank_whose_datagrams_are_lost_names_the_port(
    lost: str, way: str, switch: SwitchProcess, caplog: pytest.LogCaptureFixture
) -> None:
    job, wrap = f"lost/{lost}", {"sending": Mute, "receiving": Deaf}[lost]
    with (
        caplog.at_level(logging.WARNING, "inagg"),
        AllReduce(switch=switch.control, rank=0, workers=1, job=job, timeout_s=4, wrap_link=wrap) as all_reduce,
        pytest.raises(AllReduceError, match="no result within 4 s"),
    ):
        all_reduce(np.ones(10, np.float32))
    (said,) = [record.message for record in caplog.records if "nothing comes from" in record.message]
    assert said.startswith(f"rank 0 of job '{job}': nothing comes from UDP {switch.data} since this rank joined")
    assert said.endswith(f"does a firewall let UDP pass, {way}?")


@pytest.mark.usefixtures("soon")
def test_a_rank_that_waits_for_another_says_nothing(switch: SwitchProcess, caplog: pytest.LogCaptureFixture) -> None:
    def second() -> None:
        with AllReduce(switch=switch.control, rank=1, workers=2, job="slow") as all_reduce:
            time.sleep(6)
            all_reduce(np.ones(10, np.float32))

    slow = threading.Thread(target=second)
    slow.start()
    with (
        caplog.at_level(logging.WARNING, "inagg"),
        AllReduce(switch=switch.control, rank=0, workers=2, job="slow") as all_reduce,
    ):
        assert all_reduce(np.ones(10, np.float32)).min() == 2
        assert all_reduce.counters.resent > 6
        slow.join()
    assert not [record for record in caplog.records if "nothing comes from" in record.message]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("shards", [1, 2])
def test_a_rank_names_the_shard_that_hangs(shards: int, caplog: pytest.LogCaptureFixture) -> None:
    with start_switch("--shards", str(shards), "--shard-restarts", "0") as switch:
        pid = json.loads((switch.folder / "ready.json").read_text())["shards"][-1]["pid"]
        with (
            caplog.at_level(logging.WARNING, "inagg"),
            AllReduce(switch=switch.control, rank=0, workers=1, job="hangs") as all_reduce,
        ):
            all_reduce(np.ones(100_000, np.float32))
            os.kill(pid, signal.SIGSTOP)
            try:
                work = all_reduce.submit(np.ones(100_000, np.float32))
                give_up_s = time.monotonic() + 60
                while not (said := [r.message for r in caplog.records if "nothing comes from" in r.message]):
                    assert time.monotonic() < give_up_s
                    time.sleep(0.01)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert work.result(60).min() == 1
    assert f"And the switch at {switch.control} says: " in said[0]
    assert f"shard {shards - 1} has not answered for " in said[0]
