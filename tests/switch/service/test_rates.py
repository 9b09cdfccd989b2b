"""Rates are differences of counters over the time between two looks."""

from __future__ import annotations

import pytest
from tests.switch.cli.messages import job_stats, shard_stats, stats

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.service.rates import rates


def test_a_shard_has_rates_per_second() -> None:
    before = stats(10, shards=[shard_stats(datagrams_in=100, bytes_in=1000, cpu_s=1.0, kernel_drops=1)])
    now = stats(12, shards=[shard_stats(datagrams_in=300, bytes_in=5000, cpu_s=2.5, kernel_drops=5)])
    (shard,) = rates(before, now).shards
    assert (shard.datagrams_in, shard.bits_in, shard.cpu, shard.kernel_drops) == (100, 16_000, 0.75, 2)


def test_elements_are_summed_ones_and_each_counts_once() -> None:
    before, now = stats(0, [job_stats(10, (10, 10))]), stats(2, [job_stats(30, (30, 31))])
    (job,) = rates(before, now).jobs
    assert job.results == 10
    assert job.elements == 10 * 1448
    assert [worker.contributions for worker in job.workers] == [10, 10.5]
    assert job.bits_in == pytest.approx(8 * 1472 * 20.5)


def test_a_job_that_is_new_has_done_all_in_this_interval() -> None:
    (job,) = rates(stats(0), stats(2, [job_stats(30, (30, 30))])).jobs
    assert job.results == 15


def test_a_job_of_the_same_name_that_began_anew_does_not_go_backwards() -> None:
    (job,) = rates(stats(0, [job_stats(100)]), stats(2, [job_stats(30)])).jobs
    assert job.results == 15


def test_the_first_look_and_one_at_another_run_of_the_switch_have_no_rates() -> None:
    now = stats(3, [job_stats(30)], [shard_stats(datagrams_in=5, drops={"stale": 1})])
    for before in (None, stats(5, [job_stats(10)]), stats(2, [job_stats(10)], uptime_s=9.0)):
        snapshot = rates(before, now)
        assert snapshot.interval_s == 0
        assert snapshot.jobs[0].results == 0
        assert snapshot.shards[0].datagrams_in == 0
        assert list(snapshot.drops) == [("stale", 1, 0.0)]


def test_a_trunk_has_rates_by_its_name_and_one_that_began_anew_does_not_go_backwards() -> None:
    def look(at_s: float, **partials: int) -> pb.StatsResponse:
        trunks = [pb.TrunkStats(switch=name, partials=count, partials_again=1) for name, count in partials.items()]
        return stats(at_s, [job_stats(trunks=trunks)])

    (job,) = rates(look(0, rack0=10, rack1=100), look(2, rack1=30, rack0=50)).jobs
    found = [(trunk.now.switch, trunk.partials, trunk.partials_again) for trunk in job.trunks]
    assert found == [("rack1", 15, 0), ("rack0", 20, 0)]


def test_drops_are_summed_over_the_shards_the_most_frequent_first() -> None:
    before = stats(0, shards=[shard_stats(drops={"stale": 10}), shard_stats()])
    now = stats(2, shards=[shard_stats(drops={"stale": 12, "duplicate": 8}), shard_stats(drops={"stale": 2})])
    assert list(rates(before, now).drops) == [("duplicate", 8, 4.0), ("stale", 14, 2.0)]
