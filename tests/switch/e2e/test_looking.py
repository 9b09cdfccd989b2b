"""What an operator sees of jobs that run: jobs, top, why, metrics."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.switch.e2e.running import Switch, until

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_switch.service.control_client import ControlClient


@pytest.fixture
def running(good: Switch, client: ControlClient) -> Iterator[str]:
    """A job of two ranks that sum until the test is over; its name."""
    over = threading.Event()

    def work(rank: int) -> None:
        with AllReduce(switch=good.address, job="train", rank=rank, workers=2) as all_reduce, suppress(AllReduceError):
            done = np.zeros(1, np.float32)
            while not done[0]:  # all ranks stop after the same sum
                all_reduce(np.ones(50_000, np.float32))
                done[0] = over.is_set()
                all_reduce(done)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: [job.results for job in client.stats().jobs] > [0])
    yield "train"
    over.set()
    for thread in threads:
        thread.join()
    until(lambda: not client.list().jobs)


def scrape(switch: Switch) -> dict[str, float]:
    """The samples of a scrape by name and labels, as Prometheus would parse them."""
    with urllib.request.urlopen(switch.ready["metrics"], timeout=5) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        samples = [sample for family in families for sample in family.samples]
    return {f"{s.name}{{{','.join(f'{k}={v}' for k, v in sorted(s.labels.items()))}}}": s.value for s in samples}


def test_jobs_lists_a_job_that_runs(good: Switch, running: str) -> None:
    shown = good.command("jobs")
    assert shown.returncode == 0
    assert [line.split()[:4] for line in shown.stdout.splitlines() if "running" in line] == [
        [running, "running", "2", "nat8"]
    ]
    listed = json.loads(good.command("jobs", "--json").stdout)["jobs"]
    assert [(job["spec"]["name"], job["state"], len(job["members"])) for job in listed] == [(running, "running", 2)]


def test_top_measures_once(good: Switch, running: str) -> None:
    shown = good.command("top", "--once", "--json", "--interval", "0.5")
    assert shown.returncode == 0
    look = json.loads(shown.stdout)
    assert look["interval_s"] == pytest.approx(0.5, abs=0.4)
    assert look["shards"][0]["rates"]["bits_in"] > 0
    (job,) = look["jobs"]
    assert job["job"]["spec"]["name"] == running
    assert job["rates"]["elements"] == pytest.approx(job["rates"]["results"] * job["job"]["spec"]["lanes"])
    assert [worker["rates"]["contributions"] > 0 for worker in job["workers"]] == [True, True]


def test_top_prints_a_line_per_interval_where_there_is_no_terminal(good: Switch, running: str) -> None:
    shown = good.command("top", "--interval", "0.2", "--count", "3")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("time=") and " jobs=1 elements_per_s=" in line for line in lines)


def test_a_scrape_has_the_counters_of_a_job_that_runs(good: Switch, running: str) -> None:
    until(lambda: f"inagg_job_results_total{{job={running}}}" in scrape(good))
    samples = scrape(good)
    assert samples["inagg_switch_healthy{}"] == 1
    assert samples["inagg_jobs{state=running}"] == 1
    assert samples["inagg_shard_received_datagrams_total{shard=0,switch=}"] > 0
    for rank in range(2):
        assert samples[f"inagg_job_contributions_total{{job={running},rank={rank}}}"] > 0
        assert samples[f"inagg_job_heartbeat_age_seconds{{job={running},rank={rank}}}"] < 10
    assert samples[f"inagg_job_members{{job={running},state=active}}"] == 2


def test_a_job_that_ended_is_not_scraped_any_more(good: Switch, client: ControlClient) -> None:
    until(lambda: not any("job=" in name for name in scrape(good)))
    assert not client.list().jobs


def test_why_says_that_a_job_moves(good: Switch, running: str) -> None:
    shown = good.command("why", running, "--over", "5")
    assert shown.returncode == 0
    assert "Nothing waits" in shown.stdout
