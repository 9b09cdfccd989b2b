"""What the live view remembers of the looks at a switch, and tells a page, figure by figure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.switch.cli.messages import job, job_stats, shard_stats, stats

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control import events as ev
from inagg_switch.control.policy import Policy
from inagg_switch.service.event_log import EventLog
from inagg_switch.service.live import recorder
from inagg_switch.service.live.recorder import Question, Recorder


class Switch:
    """As a recorder sees it: a test says when it is looked at, and what there is to see."""

    def __init__(self, poll_interval_s: float = 1.0) -> None:
        self.policy, self.healthy, self.on_poll = Policy(poll_interval_s=poll_interval_s), True, list[Any]()
        self.registry = SimpleNamespace(jobs=[], draining=False)
        self.events, self.last_snapshot, self.ended = EventLog(), None, list[pb.EndedJob]()
        self.clock_s = 0.0
        self.seen = pb.StatsResponse()

    def now(self) -> float:
        return self.clock_s

    def serve(self, *workers: int) -> None:
        """Have jobs of so many workers."""
        self.registry.jobs = [SimpleNamespace(spec=SimpleNamespace(workers=count)) for count in workers]

    def look(self, seen: pb.StatsResponse) -> None:
        """Be looked at, at the time that ``seen`` has."""
        self.clock_s, self.seen = seen.at_s, seen
        snapshot: Any = SimpleNamespace(at=seen.at_s)
        self.last_snapshot = snapshot
        for take in self.on_poll:
            take(snapshot)


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Switch:
    made = Switch()
    monkeypatch.setattr(recorder, "stats_answer", lambda switch, *_: switch.seen)
    monkeypatch.setattr(recorder, "why_answer", lambda *_: pb.WhyResponse(job=job()))
    monkeypatch.setattr(recorder, "list_answer", lambda switch: pb.ListResponse(ended=switch.ended))
    return made


def recording(switch: Any) -> Recorder:
    return Recorder(switch)


def told(one: Recorder, **question: Any) -> dict[str, Any]:
    return one.answer(Question(**question))


# --- the course ---


def shard(times: int, **drops: int) -> pb.ShardStats:
    counts = {"bytes_in": 1000, "bytes_out": 2000, "kernel_drops": 3, "cpu_s": 0.25}
    return shard_stats(**{name: times * count for name, count in counts.items()}, drops=drops)


def of_job(times: int) -> pb.JobStats:
    counts = {"contributions": 5, "bytes_in": 125, "duplicates": 2, "resends": 4, "stale": 8}
    workers = [pb.WorkerStats(rank=rank, **{name: times * n for name, n in counts.items()}) for rank in range(2)]
    workers[0].round_trip_s, workers[1].round_trip_s = 0.001, 0.00212349
    described = job()
    described.spec.lanes = 1000
    return pb.JobStats(job=described, workers=workers, results=times * 10, slots_waiting=6)


def test_a_point_of_the_course_has_what_charts_are_drawn_from(switch: Switch) -> None:
    one = recording(switch)
    switch.serve(2)
    switch.look(stats(10, [of_job(0)], [shard(0, stale=0, unbound=0), shard(0)]))
    switch.look(stats(12, [of_job(1)], [shard(1, stale=16, unbound=2), shard(1)]))
    (point,) = told(one)["points"]
    assert point == {
        "look": 2,
        "at_s": 12.0,
        "elements": 5000.0,
        "bits_in": 8000.0,
        "bits_out": 16000.0,
        "again": 14.0,
        "drops": 12.0,  # 18 datagrams by the data plane and 6 by the kernel, in 2 s
        "cpu": 0.25,
        "jobs": [
            {
                "number": 1,
                "waiting": 6,
                "elements": 5000.0,
                "again": 14.0,
                "round_trip_s": 0.002123,
                "ranks": [500.0, 500.0],
            }
        ],
    }


def test_of_the_course_the_last_points_are_kept(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "POINTS_KEPT", 3)
    one = recording(switch)
    for at_s in range(10):
        switch.look(stats(at_s))
    assert [point["look"] for point in told(one)["points"]] == [8, 9, 10]


# --- when it records ---


@pytest.mark.parametrize(("poll_interval_s", "watched_s"), [(1.0, 10.0), (20.0, 60.0)])
def test_a_page_counts_as_open_for_ten_seconds_and_for_three_polls(
    switch: Switch, monkeypatch: pytest.MonkeyPatch, poll_interval_s: float, watched_s: float
) -> None:
    monkeypatch.setattr(recorder, "RANKS_ALWAYS", 1)
    switch.policy = Policy(poll_interval_s=poll_interval_s)
    one = recording(switch)
    switch.serve(2)
    told(one)
    switch.look(stats(watched_s - 0.5))
    switch.look(stats(watched_s + 0.5))
    switch.look(stats(watched_s + 1.5))
    assert one._before is not None
    assert one._before.at_s == watched_s - 0.5
    assert told(one)["now"]["at_s"] == watched_s + 1.5, "whoever opens one is told of the last look"


def test_up_to_so_many_ranks_are_recorded_always(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RANKS_ALWAYS", 4)
    one = recording(switch)
    switch.serve(2, 2)
    switch.look(stats(100.0))
    assert one._before is not None


def test_a_page_that_is_opened_sees_the_rates_that_there_are(switch: Switch) -> None:
    """The last look is taken once: from itself to itself there are none."""
    one = recording(switch)
    for at_s in (100.0, 101.0):
        switch.look(stats(at_s, [job_stats(int(at_s) * 10)]))
    said = told(one)
    assert said["look"] == 2
    assert said["now"]["jobs"][0]["rates"]["results"] == 10.0


# --- what a page is told ---


def test_ranks_are_told_up_to_so_many_and_beyond_to_those_who_ask(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = recording(switch)
    switch.look(stats(1.0, [job_stats(name="a"), job_stats(name="b")]))

    def ranks(**question: Any) -> list[int | None]:
        workers = [job["workers"] for job in told(one, **question)["now"]["jobs"]]
        return [len(those) if those is not None else None for those in workers]

    monkeypatch.setattr(recorder, "RANKS_SHOWN", 4)
    assert ranks() == [2, 2]
    monkeypatch.setattr(recorder, "RANKS_SHOWN", 3)
    assert ranks() == [None, None]
    assert ranks(jobs=frozenset("b")) == [None, 2], "also where another page has not asked for them"


def test_a_page_is_told_that_the_switch_takes_no_new_jobs_and_how_often_it_is_looked_at(switch: Switch) -> None:
    one = recording(switch)
    switch.policy = Policy(poll_interval_s=7.0)
    for draining in (False, True):
        switch.registry.draining = draining
        assert told(one)["draining"] is draining
    assert told(one)["interval_s"] == 7.0


def test_an_event_is_told_with_its_time_and_its_mood(switch: Switch) -> None:
    one = recording(switch)
    switch.events.add(ev.Emit(1, "train", 3.5, ev.MemberFailed(1, 9.0, 5, None, 2, "rank 1 is silent")))
    switch.clock_s = 50.0
    (event,) = told(one)["events"]
    assert event == {"number": 1, "job": "train", "at_s": 3.5, "text": "rank 1 is silent", "mood": "bad"}


def test_what_an_ended_job_has_done_is_not_known_where_nobody_could_count_it(switch: Switch) -> None:
    one = recording(switch)
    switch.ended = [pb.EndedJob(spec=job().spec), pb.EndedJob(spec=job().spec, totals=pb.JobTotals(results=2))]
    assert [ended["elements"] for ended in told(one)["ended"]] == [None, 2 * 1448]
