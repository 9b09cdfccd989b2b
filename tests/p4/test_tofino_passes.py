"""Datagrams lost between two passes, or overtaken: a result is the reference's, or there is none yet."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.p4.bmv2.switch import Frame
from tests.switch.aggregation.world import make_binding, make_contribution

from inagg_switch.binding import Address, Binding
from inagg_wire.layout import Op

from .frames import from_switch, to_switch
from .rig import Rig
from .tofino.rig import chip_of, tofino_rig

HOSTS = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
WORKERS: tuple[Address, ...] = tuple((host, 5001) for host in HOSTS)


class Network:
    """Workers that repeat what they have no result of, and ways between passes that lose frames and mix them up."""

    def __init__(self, lanes: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.job = make_binding(7, lanes=lanes, base=8, slots=4, children=WORKERS)
        self.rig = tofino_rig(HOSTS, lanes)
        self.rig.bind(self.job)
        self.under_way: list[Frame] = []
        self.results: list[dict[int, bytes]] = [{} for _ in WORKERS]
        self.mixed_up = 0

    def send(self, rank: int, data: bytes) -> None:
        host = self.rig.network.hosts[rank]
        self._out(chip_of(self.rig).receive(host.port, to_switch(self.rig.network, host, WORKERS[rank], data)))

    def step(self) -> None:
        """Some frame comes out of a loopback port: not always the first, and some never."""
        place = self.rng.randrange(len(self.under_way))
        self.mixed_up += place > 0
        frame = self.under_way.pop(place)
        if self.rng.random() > 0.2:
            self._out(chip_of(self.rig).receive(*frame))

    def _out(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.port in chip_of(self.rig).loopback:
                self.under_way.append(frame)
                continue
            rank = next(rank for rank, host in enumerate(self.rig.network.hosts) if host.port == frame.port)
            block = self._block(frame.data[42:])
            old = self.results[rank].setdefault(block, frame.data)
            assert old == frame.data, "a result changed"

    def _block(self, data: bytes) -> int:
        slot, generation = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
        return (generation - 1) * 4 + slot - 8


def result_of(rig: Rig, job: Binding, datagrams: list[bytes]) -> list[bytes]:
    """The frame that each worker must get, by the reference."""
    outputs = []
    for data, worker in zip(datagrams, job.children, strict=True):
        outputs = rig.pair.model.receive(data, worker)
    (output,) = outputs
    ends = zip(rig.network.hosts, job.children, strict=False)
    return [from_switch(rig.network, host, worker, output.data) for host, worker in ends]


@pytest.mark.parametrize(("lanes", "seed"), [(64, 1), (96, 2), (128, 3), (128, 4)])
def test_what_is_lost_or_overtaken_between_passes_costs_repetitions_and_no_sum(lanes: int, seed: int) -> None:
    network = Network(lanes, seed)
    job = network.job
    for block in range(8):
        op = network.rng.choice((Op.SUM, Op.MAX))
        codes = [np.array(network.rng.choices(range(30), k=lanes), dtype=np.uint32) for _ in WORKERS]
        datagrams = [make_contribution(job, block, code, op) for code in codes]
        expected = result_of(network.rig, job, datagrams)
        # A worker sends block b + 2 as soon as it has the result of b; who has none repeats itself.
        for _ in range(200):
            waiting = [rank for rank in range(len(WORKERS)) if block not in network.results[rank]]
            if not waiting:
                break
            for rank in network.rng.sample(waiting, len(waiting)):
                network.send(rank, datagrams[rank])
            for _ in range(network.rng.randrange(len(network.under_way) + 1)):
                network.step()
        assert [results.get(block) for results in network.results] == expected
    assert network.mixed_up > 20


def test_two_that_overtake_each_other_between_passes_leave_a_result_for_who_asks_again() -> None:
    """The first contribution is last in the second pass: no datagram saw both passes complete."""
    network = Network(64, 0)
    job = make_binding(9, lanes=64, base=16, slots=4, children=WORKERS[:2])
    network.rig.bind(job)
    chip = chip_of(network.rig)
    datagrams = [make_contribution(job, 0, np.full(64, 2 + rank, np.uint32)) for rank in range(2)]
    expected = result_of(network.rig, job, datagrams)
    frames = [
        to_switch(network.rig.network, host, worker, data)
        for host, worker, data in zip(network.rig.network.hosts, WORKERS, datagrams, strict=False)
    ]
    first, second = (chip.receive(rank, frame)[0] for rank, frame in enumerate(frames))
    assert chip.receive(*second) == chip.receive(*first) == []
    for rank, frame in enumerate(frames):
        assert network.rig.wire.exchange(rank, frame, 1) == [Frame(rank, expected[rank])]
    counts = network.rig.driver.counters(0).jobs[job.job]
    assert (counts.contributions, counts.results, counts.resends) == ([1, 1], 0, [1, 1])


def test_a_datagram_that_comes_late_from_a_pass_changes_nothing_of_the_next_generation() -> None:
    network = Network(128, 0)
    job, rig = network.job, network.rig
    old = make_contribution(job, 0, np.full(128, 1, np.uint32))
    (late,) = chip_of(rig).receive(0, to_switch(rig.network, rig.network.hosts[0], WORKERS[0], old))
    for block in (0, job.lease.slots):
        for worker in WORKERS:
            rig.receive(make_contribution(job, block, np.full(128, 1 + block, np.uint32)), worker)
    new = make_contribution(job, 2 * job.lease.slots, np.full(128, 9, np.uint32))
    rig.receive(new, WORKERS[0])
    words = {
        name: {index: list(cell) for index, cell in cells.items()}
        for name, cells in chip_of(rig).registers.words.items()
    }
    assert chip_of(rig).receive(*late) == []
    assert chip_of(rig).registers.words == words


def test_a_job_that_is_unbound_between_two_passes_gets_no_answer() -> None:
    network = Network(64, 0)
    rig = network.rig
    data = make_contribution(network.job, 0, np.full(64, 1, np.uint32))
    (passed,) = chip_of(rig).receive(0, to_switch(rig.network, rig.network.hosts[0], WORKERS[0], data))
    rig.driver.unbind(0, network.job.job)
    assert chip_of(rig).receive(*passed) == []
