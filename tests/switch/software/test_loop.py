"""The switch's compiled loop over real sockets against the reference model: equal datagrams out, equal counters."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.switch.aggregation.hostile import put
from tests.switch.aggregation.world import STRANGER, block_of, make_binding, simple_contribution

from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_link.port import key_of
from inagg_switch.aggregation import aggregator as module
from inagg_switch.aggregation.peers import Sources, row_of
from inagg_switch.software.data_plane import DataPlane
from inagg_wire.layout import Op

from .looping import LANES, Rig, batched, jobs, needs_port, traffic

pytestmark = needs_port


# --- the same as the model ---


@pytest.mark.parametrize("seed", range(8))
def test_the_loop_sends_what_the_model_sends(rig: Rig, seed: int) -> None:
    rng, answers = np.random.default_rng(seed), 0
    bindings = jobs(rig)
    for binding in bindings:
        rig.bind(binding)
    for _ in range(12):
        answers += rig.exchange(batched(traffic(rng, bindings, 60), rng))
    counters = rig.aggregator.counters()
    assert answers > 100
    assert all(sum(job.duplicates) + sum(job.resends) and sum(job.stale) for job in counters.jobs.values())
    assert len(counters.drops) > 10


def test_jobs_come_and_go_between_datagrams(rig: Rig) -> None:
    rng = np.random.default_rng(1)
    bindings = jobs(rig)
    for turn, binding in enumerate(bindings):
        rig.bind(binding)
        rig.exchange(batched(traffic(rng, bindings, 60), rng))
        if turn % 2:
            rig.unbind(binding.job)
            rig.exchange(batched(traffic(rng, bindings, 60), rng))
    # A new epoch: other workers, another token.
    epoch = replace(bindings[0], token=9999, children=rig.addresses(3, 2))
    rig.bind(epoch)
    assert rig.exchange([([data], epoch.children[rank]) for rank, data in enumerate(block_of(epoch, 0))]) == 2
    assert rig.exchange([([simple_contribution(epoch, 0, 1)], rig.workers[0].address)]) == 0


@pytest.mark.parametrize("runs", [1, 2, 256])
@pytest.mark.parametrize("room", [700, 2000, 1 << 18])
def test_whatever_room_there_is_for_answers_none_is_lost(
    links: ExitStack, monkeypatch: pytest.MonkeyPatch, runs: int, room: int
) -> None:
    monkeypatch.setattr(module, "OUT_RUNS", runs)
    monkeypatch.setattr(module, "OUT_BYTES", room)
    rig, rng = Rig(links), np.random.default_rng(runs)
    bindings = jobs(rig)
    for binding in bindings:
        rig.bind(binding)
    for _ in range(3):
        assert rig.exchange(batched(traffic(rng, bindings, 60), rng)) > 0


def test_a_batch_of_datagrams_and_a_shorter_one_is_taken_whole(rig: Rig) -> None:
    """The shorter one may be a valid datagram of another job."""
    large = make_binding(1, "nat8", 1, lanes=64, base=0, slots=8, children=rig.addresses(0))
    small = make_binding(2, "nat8", 1, lanes=32, base=8, slots=8, children=rig.addresses(0))
    rig.bind(large)
    rig.bind(small)
    batch = [simple_contribution(large, 0, block) for block in range(3)] + [simple_contribution(small, 0, 0)]
    assert rig.exchange([(batch, rig.workers[0].address)] * 2) == 8


def test_what_comes_from_nowhere_bound_is_told_so(rig: Rig) -> None:
    binding = make_binding(1, "nat8", 2, children=rig.addresses(0, 1))
    rig.bind(binding)
    rig.exchange([([simple_contribution(binding, 0, 0)], STRANGER), ([simple_contribution(binding, 0, 0)], STRANGER)])
    assert rig.aggregator.counters().jobs[1].contributions == [0, 0]


# --- the same as without the loop ---


def test_seeded_losses_come_true_as_without_the_loop() -> None:
    """The same datagrams arrive and leave, whichever way they went."""
    outcomes = []
    for in_loop in (True, False):
        with ExitStack() as stack:
            rig = Rig(stack, lambda link: FaultLink(link, Faults(drop=0.2, corrupt=0.1), seed=3))
            link, plane = rig.link, DataPlane(rig.link, rig.aggregator)
            assert isinstance(link, FaultLink)
            binding = make_binding(1, "nat8", 2, lanes=LANES, slots=8, children=rig.addresses(0, 1))
            rig.bind(binding)
            rng, heard = np.random.default_rng(5), []
            for _ in range(60):
                worker = int(rng.integers(2))
                blocks = sorted(rng.integers(0, 24, int(rng.integers(1, 20))).tolist())
                rig.send([simple_contribution(binding, worker, block) for block in blocks], binding.children[worker])
                if in_loop:
                    port = link.port()
                    assert port is not None
                    rig.pump.run(port, rig.bell)
                else:
                    plane.step(0.0)
                heard.append([rig.heard(0), rig.heard(1)])
            models = [asdict(model.counters) for model in (link.sending, link.receiving)]
            outcomes.append((heard, models, rig.aggregator.counters()))
            assert all(model["dropped"] and model["discarded"] for model in models)
    assert outcomes[0] == outcomes[1]


# --- sources ---


def colliding(address: int, to: int) -> int:
    """A key of this IPv4 address whose place is ``to``, in a table of up to 65536 places."""
    port = (address ^ to) & 0xFFFF
    key = 2 | port << 16 | address << 32
    return key - (1 << 64) if key >> 63 else key


keys = st.builds(colliding, st.integers(0, (1 << 32) - 1), st.sampled_from([0, 1, 7, 0xFFFF]))


def address_of_key(key: int) -> tuple[str, int]:
    raw = np.array([key], np.int64).tobytes()
    return str(IPv4Address(raw[4:8])), int.from_bytes(raw[2:4], "big")


@given(st.lists(st.tuples(keys, st.booleans()), max_size=200))
def test_each_source_has_its_row_though_their_places_collide_and_others_come_and_go(
    steps: list[tuple[int, bool]],
) -> None:
    """The table grows, and has no gaps when something is taken out of it."""
    jobs, sources, bound = 1 << 8, Sources(1 << 8), dict[int, int]()
    for key, comes in steps:
        if comes and key not in bound and len(bound) < jobs:
            row = min(set(range(jobs)) - set(bound.values()))
            sources.bind(row, make_binding(1, "nat8", 1, children=(address_of_key(key),)))
            bound[key] = row
        elif not comes and bound:
            key, row = bound.popitem() if key not in bound else (key, bound.pop(key))
            sources.unbind(row, make_binding(1, "nat8", 1, children=(address_of_key(key),)))
            assert row_of(sources.peers.keys, sources.peers.rows, key) == 0
        for key, row in bound.items():
            ranks = sources.peers.ranks[row_of(sources.peers.keys, sources.peers.rows, key)]
            assert np.flatnonzero(ranks >= 0).tolist() == [row]
            assert sources.peers.address[row, 0] == key
    assert sources._names == {key: address_of_key(key) for key in bound}
    assert (sources.peers.ranks[0] == -1).all()


def test_a_source_of_another_port_or_host_is_another(rig: Rig) -> None:
    binding = make_binding(1, "nat8", 1, children=rig.addresses(0))
    rig.bind(binding)
    host, port = rig.workers[0].address
    peers = rig.aggregator.tables.peers
    assert row_of(peers.keys, peers.rows, key_of((host, port))) == 1
    for other in ((host, port ^ 1), ("127.0.0.2", port), ("0.0.0.0", 0)):
        assert row_of(peers.keys, peers.rows, key_of(other)) == 0


def test_ranks_of_another_protocol_family_are_no_obstacle(rig: Rig) -> None:
    """A binding may name IPv6 addresses, from which nothing can come here."""
    rig.bind(make_binding(1, "nat8", 2, base=8, slots=8, children=(("::1", 5000), ("::1", 5001))))
    binding = make_binding(2, "nat8", 1, base=16, slots=8, children=rig.addresses(0))
    rig.bind(binding)
    assert rig.exchange([([simple_contribution(binding, 0, 0)], rig.workers[0].address)]) == 1
    other = put(simple_contribution(binding, 0, 1, Op.SUM), "job", 1)
    rig.exchange([([other], rig.workers[0].address)])
