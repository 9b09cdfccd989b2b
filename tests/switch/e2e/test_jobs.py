"""Several jobs at once, over a bad network: each is exact, and none is disturbed by another's end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.switch.e2e.running import Array, Rank, Run, Switch, gradients, slots_leased, until, wait_for_slots, worker

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.service.control_client import ControlClient

BAD = ("--loss", "0.05", "--duplicate", "0.05", "--reorder", "0.05")
FAULT_SEED = "20"
SIZES = (60_000, 5, 12_345)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    """A switch in a bad network. It prints its seed, as tests that fail are to be repeated."""
    with Switch(tmp_path_factory.mktemp("bad"), *BAD, "--fault-seed", FAULT_SEED, "--rejoin-limit", "0.2") as switch:
        print(f"a bad network: {switch.ready['faults']}, seed {switch.ready['fault_seed']}")
        yield switch


def names(client: ControlClient) -> list[str]:
    return [job.spec.name for job in client.list().jobs]


def base_of(client: ControlClient, name: str) -> int:
    """The first slot of a job."""
    return next(job.leases[0].base for job in client.list().jobs if job.spec.name == name)


def assert_equal(a: list[Array], b: list[Array]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def two_at_once(switch: Switch) -> list[list[Array]]:
    """The sums of two jobs that differ in format and in number of workers."""
    with switch.client() as client:
        client.create(pb.JobSpec(name="train", workers=3, format="nat8", seed=5))
        client.create(pb.JobSpec(name="test", workers=2, format="dith8", seed=6))
        train = Run(switch.address, gradients(3, SIZES, 1), job="train", format="nat8", seed=5)
        test = Run(switch.address, gradients(2, SIZES, 2), job="test", format="dith8", seed=6)
        sums = [run.results()[0] for run in (train, test)]
        wait_for_slots(client, 0)
        return sums


@pytest.mark.usefixtures("client")
def test_two_jobs_over_a_bad_network_are_exact(bad: Switch, good: Switch) -> None:
    disturbed, undisturbed = two_at_once(bad), two_at_once(good)
    for a, b in zip(disturbed, undisturbed, strict=True):
        assert_equal(a, b)
    with bad.client() as client:
        shard = client.stats().shards[0]
    assert min(shard.faults[fault] for fault in ("dropped", "duplicated", "reordered")) > 0


@pytest.mark.usefixtures("client")
def test_a_job_whose_process_is_killed_disturbs_no_other_and_its_slots_serve_a_third(bad: Switch, good: Switch) -> None:
    # Exact sums: what the switch sends does not depend on slots, which the run on the other switch has others of.
    options = {"job": "survivor", "format": "dith8-exact", "seed": 7}
    arrays = gradients(2, [30_000] * 12, 3)
    with bad.client() as client:
        with worker(bad.address, "doomed", [0, 1], 2, heartbeat_limit_s=0.5) as doomed:
            assert doomed.has_summed()
            slots, base = slots_leased(client), base_of(client, "doomed")
            survivor = Run(bad.address, arrays, **options)
            until(lambda: slots_leased(client) > slots)
            doomed.kill()
            assert all(rank.is_alive() for rank in survivor.ranks)
        disturbed = survivor.results()[0]
        wait_for_slots(client, 0)
        third = Rank(gradients(1, [100], 4)[0], switch=bad.address, job="third", rank=0, workers=2)
        until(lambda: "third" in names(client))
        assert base_of(client, "third") == base
        other = Rank(gradients(1, [100], 5)[0], switch=bad.address, job="third", rank=1, workers=2)
        assert_equal(third.result(), other.result())
    undisturbed = Run(good.address, arrays, **options).results()[0]
    assert_equal(disturbed, undisturbed)
