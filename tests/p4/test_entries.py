"""The entries of a job: the one that hits names the first thing that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.switch.aggregation.world import make_binding

from inagg_switch.binding import Address, Binding
from inagg_switch.driver import DriverError
from inagg_switch.p4.bmv2.bmv2_program import job_entries
from inagg_switch.p4.entries import FLOOD_GROUP, base_entries
from inagg_switch.p4.network import number
from inagg_switch.p4.plane import Entry, Group, Masked, Replica
from inagg_switch.p4.program import BMV2, TOFINO, Program
from inagg_wire.errors import Reason
from inagg_wire.layout import Op

from .entry_keys import key_of as entry_key
from .rig import make_network

WORKERS: tuple[Address, ...] = (("10.77.0.1", 5001), ("10.77.0.2", 5002), ("10.77.0.1", 5003))
NETWORK = make_network(["10.77.0.1", "10.77.0.2"], first_port=4)


@pytest.fixture
def job() -> Binding:
    return make_binding(7, "tern", n=3, lanes=64, base=8, slots=8, token=0xABCD, children=WORKERS)


def look_up(items: tuple[Entry | Group, ...], **key: int) -> tuple[str, dict[str, int]]:
    """What the binding table does with a key."""
    fitting = [
        item
        for item in items
        if isinstance(item, Entry)
        and item.table == "binding"
        and all(isinstance(m, Masked) and key[name] & m.mask == m.value for name, m in item.match)
    ]
    if not fitting:
        return "refuse", {"reason": int(Reason.UNKNOWN_JOB)}
    first = max(fitting, key=lambda item: item.priority)
    assert sum(item.priority == first.priority for item in fitting) == 1, "it depends on the order of entries"
    return first.action, dict(first.params)


def key_of(job: Binding, rank: int, op: Op = Op.SUM) -> dict[str, int]:
    address, port = job.children[rank]
    host = NETWORK.host(address)
    assert host is not None
    return {
        "job": job.job,
        "ingress_port": host.port,
        "source": number(address),
        "source_port": port,
        "token": job.token,
        "op": int(op),
        "format": int(job.format.encoding(op)),
        "lanes": job.format.lanes_for(op, job.lanes),
        "slot": job.lease.base + 3,
    }


@pytest.mark.parametrize("op", list(Op))
@pytest.mark.parametrize("rank", range(3))
def test_what_fits_in_everything_is_bound(job: Binding, rank: int, op: Op) -> None:
    late = replace(job, resume_block=2 * job.lease.slots + 2)
    action, data = look_up(job_entries(late, NETWORK, row=2, epoch=5), **key_of(job, rank, op))
    assert action == "bind"
    assert data == {
        "row": 2,
        "worker": 64 + rank,
        "worker_bit": 1 << rank,
        "full": 0b111,
        "owners": 0b111 if job.scatters else 0,
        "epoch": 5,
        "generation": 3,
        "first_slot": 10,
        "seed": job.seed,
        "levels": 1,
        "shift": 0,
        "result_format": int(job.result_encoding(op)),
        "group": FLOOD_GROUP + 3,
    }


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"slot": 16}, Reason.SLOT_OUTSIDE_LEASE),
        ({"slot": 7}, Reason.SLOT_OUTSIDE_LEASE),
        ({"slot": 0xFFFFFF}, Reason.SLOT_OUTSIDE_LEASE),
        ({"lanes": 8, "slot": 7}, Reason.WRONG_LANES),
        ({"format": 1, "lanes": 8, "slot": 7}, Reason.WRONG_FORMAT),
        ({"token": 1, "format": 1, "lanes": 8, "slot": 7}, Reason.WRONG_TOKEN),
        ({"source_port": 1, "token": 1}, Reason.UNKNOWN_SOURCE),
        ({"source": 1}, Reason.UNKNOWN_SOURCE),
        ({"ingress_port": 5}, Reason.UNKNOWN_SOURCE),
        ({"job": 8, "source": 1, "token": 1}, Reason.UNKNOWN_JOB),
    ],
)
def test_what_does_not_fit_is_refused_for_the_first_thing_that_is_wrong(
    job: Binding, wrong: dict[str, int], why: Reason
) -> None:
    items = job_entries(job, NETWORK, row=0, epoch=1)
    assert look_up(items, **(key_of(job, 0) | wrong)) == ("refuse", {"reason": int(why)})


def test_the_lanes_of_a_sum_are_wrong_for_a_maximum(job: Binding) -> None:
    wrong = key_of(job, 0, Op.MAX) | {"lanes": job.lanes}
    assert look_up(job_entries(job, NETWORK, 0, 1), **wrong) == ("refuse", {"reason": int(Reason.WRONG_LANES)})


def test_nothing_is_accepted_before_its_result_can_be_sent(job: Binding) -> None:
    items = job_entries(job, NETWORK, row=1, epoch=1)
    binds = [isinstance(item, Entry) and item.action == "bind" for item in items]
    assert binds == sorted(binds)
    assert sum(binds) == 6


def test_results_go_to_each_worker_once_even_on_one_port(job: Binding) -> None:
    items = job_entries(job, NETWORK, row=1, epoch=1)
    (group,) = [item for item in items if isinstance(item, Group)]
    assert group.replicas == (Replica(4, 33), Replica(5, 34), Replica(4, 35))
    told = {
        dict(item.match)["copy"]: dict(item.params)["port"]
        for item in items
        if isinstance(item, Entry) and item.table == "copies"
    }
    assert told == {33: 5001, 34: 5002, 35: 5003}


def test_a_new_epoch_changes_only_what_depends_on_it(job: Binding) -> None:
    old = job_entries(job, NETWORK, row=1, epoch=1)
    new = job_entries(replace(job, token=1), NETWORK, row=1, epoch=2)
    kept = set(old) & set(new)
    assert {item.table for item in kept if isinstance(item, Entry)} == {"binding", "copies"}
    assert any(isinstance(item, Group) for item in kept)


def test_no_two_entries_have_one_key(job: Binding) -> None:
    keys = [entry_key(item) for item in job_entries(job, NETWORK, 0, 1) if isinstance(item, Entry)]
    assert len(set(keys)) == len(keys)


def test_a_worker_behind_no_known_port_is_refused(job: Binding) -> None:
    with pytest.raises(DriverError, match=r"10\.9\.9\.9.*10\.77\.0\.1, 10\.77\.0\.2"):
        job_entries(replace(job, children=(("10.9.9.9", 1),)), NETWORK, 0, 1)


def test_both_programs_call_their_tables_and_actions_alike() -> None:
    job = make_binding(7, "nat8", n=3, lanes=32, base=8, slots=8, children=WORKERS)

    def named(program: Program) -> set[tuple[str, str]]:
        items = (*program.base_entries(NETWORK), *program.job_entries(job, NETWORK, 0, 1))
        return {(item.table, item.action) for item in items if isinstance(item, Entry)}

    assert named(BMV2) == named(TOFINO)


def test_a_switch_floods_to_all_ports_and_knows_its_hosts() -> None:
    items = list(base_entries(NETWORK))
    assert Group(FLOOD_GROUP, (Replica(4, 0), Replica(5, 0))) in items
    assert {dict(i.params)["port"] for i in items if isinstance(i, Entry) and i.table == "forward"} == {4, 5}
