"""Cases of the aggregation protocol that a P4 switch gets wrong most easily, one at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.switch.aggregation.world import block_of, make_binding, make_contribution, notice, simple_contribution

from inagg_switch.binding import Address, Binding
from inagg_wire.errors import Reason
from inagg_wire.layout import GENERATION_MAX, Op

from .conftest import MakeRig
from .rig import Rig

WORKERS: tuple[Address, ...] = (("10.77.0.1", 5001), ("10.77.0.2", 5002), ("10.77.0.3", 5003))
OTHERS: tuple[Address, ...] = (("10.77.0.3", 6001), ("10.77.0.1", 6002))
STRANGER: Address = ("10.77.0.9", 9)


@pytest.fixture
def job() -> Binding:
    return make_binding(7, n=3, lanes=32, base=8, slots=4, children=WORKERS)


@pytest.fixture
def rig(make_rig: MakeRig, job: Binding) -> Rig:
    made = make_rig("nat8-32", [address for address, _ in (*WORKERS, STRANGER)])
    made.bind(job)
    return made


def complete(rig: Rig, job: Binding, block: int, op: Op = Op.SUM) -> bytes:
    """All ranks send a block; its result."""
    contributions = [simple_contribution(job, rank, block, op) for rank in range(len(job.children))]
    sent = [rig.receive(data, worker) for data, worker in zip(contributions, job.children, strict=True)]
    assert [len(outputs) for outputs in sent] == [0] * (len(job.children) - 1) + [1]
    (output,) = sent[-1]
    assert output.to == job.children
    return bytes(output.data)


def test_a_resend_after_completion_gets_the_same_bytes(rig: Rig, job: Binding) -> None:
    complete(rig, job, 1)
    result = complete(rig, job, 5)
    for rank, worker in enumerate(WORKERS):
        (again,) = rig.receive(simple_contribution(job, rank, 5), worker)
        assert (again.data, again.to) == (result, (worker,))
    rig.check_counters()


def test_the_resend_of_a_maximum_gets_the_same_bytes(rig: Rig, job: Binding) -> None:
    result = complete(rig, job, 2, Op.MAX)
    (again,) = rig.receive(simple_contribution(job, 1, 2, Op.MAX), WORKERS[1])
    assert again.data == result
    rig.check_counters()


@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_duplicate_that_is_late_by_some_generations_changes_nothing(rig: Rig, job: Binding, late: int) -> None:
    """SwitchML's version bit takes one that is late by two for new."""
    old = simple_contribution(job, 0, 0)
    for generation in range(late):
        complete(rig, job, generation * job.lease.slots)
    block = late * job.lease.slots
    contributions = block_of(job, block)
    assert rig.receive(contributions[1], WORKERS[1]) == []
    assert rig.receive(old, WORKERS[0]) == []
    assert rig.receive(contributions[0], WORKERS[0]) == []
    assert len(rig.receive(contributions[2], WORKERS[2])) == 1
    rig.check_counters()


def test_generations_of_several_slots_interleave(rig: Rig, job: Binding) -> None:
    slots = job.lease.slots
    blocks = [0, 1, 2, 3, slots, slots + 1, 2 * slots]
    for rank, worker in enumerate(WORKERS[:2]):
        for block in blocks[:4]:
            assert rig.receive(simple_contribution(job, rank, block), worker) == []
    for block in blocks[:2]:
        assert len(rig.receive(simple_contribution(job, 2, block), WORKERS[2])) == 1
    for block in blocks[4:6]:  # slots 0 and 1 go on, 2 and 3 still wait
        complete(rig, job, block)
    for block in blocks[2:4]:
        assert len(rig.receive(simple_contribution(job, 2, block), WORKERS[2])) == 1
    complete(rig, job, blocks[6])
    rig.check_counters()


def test_a_slot_is_used_again_from_nothing(rig: Rig, job: Binding) -> None:
    """What an epoch left behind is in no later sum."""
    assert rig.receive(simple_contribution(job, 0, 0), WORKERS[0]) == []
    new = replace(job, token=0x12345678)
    rig.bind(new)
    complete(rig, new, 0)
    complete(rig, new, job.lease.slots)
    rig.check_counters()


def test_a_generation_whose_turn_it_is_not_is_refused_and_wipes_out_no_sum(rig: Rig, job: Binding) -> None:
    for rank in (0, 1):
        assert rig.receive(simple_contribution(job, rank, 0), WORKERS[rank]) == []
    for generation in (2, 3, GENERATION_MAX):
        for rank in (1, 2):
            wrong = simple_contribution(job, rank, 0, generation=generation)
            (told,) = rig.receive(wrong, WORKERS[rank])
            assert told.data == notice(job, wrong, Reason.OUTSIDE_WINDOW)
    assert len(rig.receive(simple_contribution(job, 2, 0), WORKERS[2])) == 1
    assert len(rig.receive(simple_contribution(job, 0, 0, generation=3), WORKERS[0])[0].data) == 24
    complete(rig, job, job.lease.slots)
    rig.check_counters()


@pytest.mark.parametrize("first", [3, 5, 4 * (GENERATION_MAX - 1) + 2])
def test_an_epoch_begins_with_any_block(rig: Rig, job: Binding, first: int) -> None:
    late = replace(job, token=0x12345678, resume_block=first)
    rig.bind(late)
    for block in (first, first + 1):
        if block >= 4:
            assert rig.receive(simple_contribution(late, 0, block - 4), WORKERS[0]) == []
        complete(rig, late, block)
    rig.check_counters()


def test_a_new_epoch_begins_with_cleared_slots(rig: Rig, job: Binding) -> None:
    complete(rig, job, 0)
    assert rig.receive(simple_contribution(job, 0, 1), WORKERS[0]) == []
    new = make_binding(7, n=3, lanes=32, base=8, slots=4, token=0x12345678, children=WORKERS)
    rig.bind(new)
    refused = simple_contribution(job, 1, 1)
    (told,) = rig.receive(refused, WORKERS[1])
    assert told.data == notice(job, refused, Reason.WRONG_TOKEN)
    complete(rig, new, 0)
    complete(rig, new, 1)
    rig.check_counters()


def test_a_workers_datagram_from_another_port_is_a_strangers(rig: Rig, job: Binding) -> None:
    rig.wrong_port(simple_contribution(job, 0, 0), WORKERS[0], STRANGER)
    complete(rig, job, 0)
    rig.check_counters()
    assert rig.driver.counters(0).drops == {Reason.UNKNOWN_SOURCE: 1}


def test_a_job_does_not_touch_its_leases_neighbour(rig: Rig, job: Binding) -> None:
    other = make_binding(9, n=2, lanes=16, base=12, slots=4, token=0xBEEF, children=OTHERS)
    rig.bind(other)
    assert rig.receive(simple_contribution(other, 0, 0), OTHERS[0]) == []
    outside = simple_contribution(job, 0, 0, slot=12)
    (told,) = rig.receive(outside, WORKERS[0])
    assert told.data[10:12] == int(Reason.SLOT_OUTSIDE_LEASE).to_bytes(2, "big")
    assert len(rig.receive(simple_contribution(other, 1, 0), OTHERS[1])) == 1
    complete(rig, job, 3)
    rig.check_counters()


def test_a_job_that_has_ended_is_unknown_and_its_numbers_are_forgotten(rig: Rig, job: Binding) -> None:
    complete(rig, job, 0)
    rig.unbind(job.job)
    assert rig.receive(simple_contribution(job, 0, 1), WORKERS[0]) == []
    rig.check_counters()
    rig.bind(job)
    rig.check_counters()
    assert rig.driver.counters(0).jobs[job.job].results == 0
    complete(rig, job, 0)
    rig.check_counters()


def test_the_driver_says_who_is_missing(rig: Rig, job: Binding) -> None:
    rig.receive(simple_contribution(job, 0, 1), WORKERS[0])
    rig.receive(simple_contribution(job, 2, 1), WORKERS[2])
    complete(rig, job, 2)
    rig.receive(simple_contribution(job, 1, 6), WORKERS[1])
    complete(rig, job, 0)
    count, waits = rig.waits(job.job)
    assert count == 2
    assert {(wait.slot, wait.generation, wait.missing) for wait in waits} == {(9, 1, (1,)), (10, 2, (0, 2))}
    assert len(rig.waits(job.job, 1)[1]) == 1


@pytest.mark.parametrize("wrong", [1, 255, 256])
def test_every_invalid_code_of_a_datagram_is_counted(make_rig: MakeRig, wrong: int) -> None:
    job = make_binding(7, n=2, lanes=256, children=WORKERS[:2])
    rig = make_rig("nat8-256", [address for address, _ in job.children])
    rig.bind(job)
    codes = np.array([0x7F] * wrong + [1] * (256 - wrong), dtype=np.uint32)
    rig.receive(make_contribution(job, 0, codes), WORKERS[0])
    assert rig.driver.counters(0).jobs[7].invalid_codes == wrong
    rig.check_counters()
