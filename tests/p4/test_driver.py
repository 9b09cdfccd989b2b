"""The driver over a P4 switch: rows, epochs and counters; what it refuses before anything is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.p4.bmv2.switch import Bmv2
from tests.p4.test_partial_failures import FailingPlane, OneSwitch
from tests.switch.aggregation.world import make_binding, simple_contribution
from tests.switch.control.world import World, spec

from inagg_switch.binding import Address, Binding
from inagg_switch.control.members import JoinRequest
from inagg_switch.control.refusals import ControlError
from inagg_switch.driver import DriverError
from inagg_switch.p4.builds import BuildError, build
from inagg_switch.p4.network import Host, Network
from inagg_switch.p4.p4_driver import P4Driver
from inagg_switch.p4.program import TOFINO
from inagg_wire.formats import job_format
from inagg_wire.slots import Lease

from .conftest import interpreted_rig
from .rig import SWITCH_ADDRESS, SWITCH_MAC, Rig, make_network

WORKERS: tuple[Address, ...] = (("10.77.0.1", 5001), ("10.77.0.2", 5002), ("10.77.0.3", 5003))


@pytest.fixture
def rig() -> Rig:
    return interpreted_rig("nat8-32", [address for address, _ in WORKERS])


def run(rig: Rig, job: Binding, block: int) -> None:
    for rank, worker in enumerate(job.children):
        rig.receive(simple_contribution(job, rank, block), worker)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": job_format("fix32")}, "does not add up fix32"),
        ({"lease": Lease(1024, 4)}, "slots 1024 to 1027: this switch has 1024"),
        ({"lanes": 40}, "40 lanes: the program nat8-32 has 32"),
        ({"children": (WORKERS[0], WORKERS[0])}, "same address"),
        ({"job": 8}, "share slots with job 7"),
        ({"children": (("192.0.2.1", 1),)}, "behind no port"),
    ],
)
def test_what_cannot_be_bound_changes_nothing(rig: Rig, change: dict[str, object], says: str) -> None:
    job = make_binding(7, n=3, children=WORKERS)
    rig.bind(job)
    with pytest.raises(DriverError, match=says):
        rig.driver.bind(0, replace(job, **change))  # type: ignore[arg-type]
    run(rig, job, 0)
    rig.check_counters()


def test_there_is_one_shard(rig: Rig) -> None:
    with pytest.raises(DriverError, match="no shard 1"):
        rig.driver.counters(1)


def test_jobs_come_and_go_for_ever(rig: Rig) -> None:
    """Rows are given again, and what they have counted belongs to nobody."""
    for number in range(1, 70):
        job = make_binding(number, n=3, lanes=8, token=number, children=WORKERS)
        rig.bind(job)
        run(rig, job, number % 4)
        rig.check_counters()
        rig.unbind(number)
        rig.check_counters()


def test_no_more_jobs_than_rows() -> None:
    rig = interpreted_rig("nat8-32", [address for address, _ in WORKERS])
    jobs = rig.driver.build.jobs
    bindings = [make_binding(1 + i, n=2, base=2 * i, slots=2, children=WORKERS[:2]) for i in range(jobs + 1)]
    for binding in bindings[:-1]:
        rig.bind(binding)
    with pytest.raises(DriverError, match=f"serves {jobs} jobs at a time"):
        rig.driver.bind(0, bindings[-1])
    rig.bind(replace(bindings[0], token=99))
    rig.unbind(bindings[1].job)
    rig.bind(bindings[-1])
    run(rig, bindings[-1], 0)
    rig.check_counters()


def test_counters_go_on_over_epochs_with_more_workers(rig: Rig) -> None:
    job = make_binding(7, n=2, children=WORKERS[:2])
    rig.bind(job)
    run(rig, job, 0)
    more = replace(job, token=5, children=WORKERS)
    rig.bind(more)
    run(rig, more, 1)
    run(rig, more, 1)
    rig.check_counters()
    assert rig.driver.counters(0).jobs[7].contributions == [2, 2, 1]


def test_slots_wait_since_they_were_first_seen() -> None:
    chosen = build("nat8-32")
    switch, now = Bmv2(chosen), [100.0]
    driver = P4Driver(switch, chosen, make_network(["10.77.0.1", "10.77.0.2"]), name="test", clock=lambda: now[0])
    rig = Rig(driver, switch)
    job = make_binding(7, n=2, children=WORKERS[:2])
    rig.bind(job)
    rig.receive(simple_contribution(job, 0, 0), WORKERS[0])
    assert rig.waits(7)[1][0].waiting_s == 0.0
    now[0] = 103.0
    rig.receive(simple_contribution(job, 1, 1), WORKERS[1])
    assert [(w.slot, w.missing, w.waiting_s) for w in rig.waits(7)[1]] == [(0, (1,), 3.0), (1, (0,), 0.0)]
    rig.receive(simple_contribution(job, 1, 0), WORKERS[1])
    rig.receive(simple_contribution(job, 0, 4), WORKERS[0])  # the slot's next generation
    assert {w.slot: w.waiting_s for w in rig.waits(7)[1]} == {0: 0.0, 1: 0.0}
    assert rig.waits(8) == (0, [])


def test_a_program_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(BuildError, match=r"no program 'nat9-32'; choose one of .*nat8-32"):
        build("nat9-32")


# --- admission ---


def at(*workers: Address) -> list[tuple[Address, ...]]:
    return [(worker,) for worker in workers]


def test_a_worker_behind_no_port_is_refused_when_it_joins_and_the_others_go_on() -> None:
    switch = Bmv2(build("nat8-32"))
    world = World(OneSwitch(switch))  # type: ignore[arg-type]  # what it asks of a recording driver, this one answers
    job = spec(workers=2, lanes=32)
    ticket = world.join(0, job)
    request = JoinRequest(1, 101, (("192.0.2.1", 4001),), None, False)
    with pytest.raises(ControlError, match=r"192\.0\.2\.1 is behind no port of this switch; .* knows 10\.0\.0\.1"):
        world.registry.join(world.now, job, request, world.now + 60)
    world.pump()
    world.join(1, job)
    assert ticket in world.epochs


def test_no_more_jobs_are_created_than_the_program_has_rows_for() -> None:
    chosen = build("nat8-32")
    world = World(OneSwitch(Bmv2(chosen)))  # type: ignore[arg-type]
    for number in range(chosen.jobs):
        world.registry.create(world.now, spec(f"job-{number}", lanes=32, window=1))
    with pytest.raises(ControlError, match=f"this switch keeps {chosen.jobs} jobs"):
        world.registry.create(world.now, spec("one-more", lanes=32, window=1))


def test_a_job_lies_in_one_pipe_of_a_tofino() -> None:
    network = Network(
        SWITCH_ADDRESS, SWITCH_MAC, (Host("10.0.0.1", 1, 3), Host("10.0.0.2", 2, 127), Host("10.0.0.3", 3, 128))
    )
    driver = P4Driver(FailingPlane(), replace(build("nat8-32"), lanes=32), network, name="test", program=TOFINO)
    assert driver.admit(at(("10.0.0.1", 1), ("10.0.0.2", 1))) is None
    assert driver.admit(at(("10.0.0.3", 1))) is None
    why = driver.admit(at(("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)))
    assert why is not None
    assert why.endswith("10.0.0.1 on port 3 in pipe 0 and 10.0.0.3 on port 128 in pipe 1")


def test_bmv2_has_one_pipe() -> None:
    network = Network(SWITCH_ADDRESS, SWITCH_MAC, (Host("10.0.0.1", 1, 3), Host("10.0.0.3", 3, 128)))
    driver = P4Driver(FailingPlane(), build("nat8-32"), network, name="test")
    assert driver.admit(at(("10.0.0.1", 1), ("10.0.0.3", 1))) is None


def test_bmv2_has_one_pass() -> None:
    chosen = build("nat8-32")
    network = replace(make_network(["10.0.0.1"]), loopback=((68,),))
    with pytest.raises(
        DriverError, match=r"has 1 lists of ports, .*this program adds up all lanes in one: leave it out"
    ):
        P4Driver(Bmv2(chosen), chosen, network, name="interpreter")
