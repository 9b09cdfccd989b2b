"""Every compiled program for a switch alone: a block of all its lanes interpreted; everything on a real bmv2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.switch.aggregation.world import make_binding, make_contribution, random_codes
from tests.vectors.load import Vector

from inagg_switch.p4.builds import build
from inagg_wire.layout import Op

from .conftest import interpreted_rig
from .golden import FLAT_BUILDS, RESULT_WORKERS, add_up, addresses_of, conversations, converse, results
from .rig import Rig, make_network
from .traffic import EVERYONE, HOSTS, Traffic, jobs_for

RANDOM_DATAGRAMS = 300
"""To each program on bmv2, beside the 10,000 of `test_random` to those of 32 lanes."""


@pytest.mark.parametrize("program", FLAT_BUILDS)
def test_a_block_of_all_lanes_is_summed(program: str) -> None:
    rig = interpreted_rig(program, HOSTS)
    for job, name in enumerate(rig.driver.build.formats, 1):
        sum_a_block(rig, name, job)
    rig.check_counters()


def sum_a_block(rig: Rig, format_name: str, job: int) -> None:
    """Two workers, any codes in all lanes that there can be; the rig compares what comes out."""
    workers = tuple((host, 5000 + job) for host in HOSTS[:2])
    lanes = rig.driver.build.lanes
    binding = make_binding(job, format_name, 2, lanes=lanes, base=4 * job, seed=0x5EED0000 + job, children=workers)
    rig.bind(binding)
    for rank, worker in enumerate(workers):
        rng = np.random.default_rng((job, rank))
        codes = random_codes(rng, binding.format.encoding(Op.SUM), binding.format, 2, lanes)
        outputs = rig.receive(make_contribution(binding, 1, codes), worker)
    (result,) = outputs
    assert len(result.data) == binding.result_bytes(Op.SUM)


@pytest.mark.p4
@pytest.mark.root
@pytest.mark.parametrize("program", FLAT_BUILDS)
def test_on_bmv2_a_program_sends_and_counts_as_the_model_does(program: str) -> None:
    """All golden vectors of its formats, blocks of all lanes, and random datagrams of several jobs."""
    from .wires import real_rig

    chosen = build(program)
    # The fast switch gets no empty datagrams, as no socket gives it one, so its counters then differ: these come last.
    plays = sorted((steps for _, steps in conversations(chosen)), key=has_an_empty_datagram)
    hosts = [*EVERYONE, *(address for steps in plays for address in addresses_of(steps))]
    hosts += [address for address, _ in RESULT_WORKERS]
    # links take their time, so only those who are told apart by their port have one each
    with real_rig(chosen, make_network(hosts, ports=len(EVERYONE))) as rig:
        for name in chosen.formats:
            for vector in results(name):
                add_up(rig, vector)
            sum_a_block(rig, name, 1)
            forget_jobs(rig)
        Traffic(rig, jobs_for(list(chosen.formats), chosen.lanes), seed=chosen.lanes).play(RANDOM_DATAGRAMS)
        rig.check_counters()
        assert sum(job.results for job in rig.pair.model.counters.jobs.values()) > 0
        for steps in plays:
            forget_jobs(rig)
            converse(rig, steps)


def has_an_empty_datagram(steps: Sequence[Vector]) -> bool:
    return any(step.get("datagram") == "" for step in steps)


def forget_jobs(rig: Rig) -> None:
    for job in list(rig.pair.bindings):
        rig.unbind(job)
