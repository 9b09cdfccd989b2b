"""Trees of switches in which some are P4 switches: each step as the model does it, and the bits of the flat switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.switch.aggregation.pair import Pair
from tests.switch.aggregation.world import make_binding, make_contribution, random_codes

from inagg_switch.aggregation.model import Model
from inagg_switch.binding import Address, Binding
from inagg_switch.control.tree import Branch, bindings
from inagg_switch.driver import DriverError
from inagg_switch.p4.network import mac_number
from inagg_wire import header as wire
from inagg_wire.errors import Reason, WireError
from inagg_wire.layout import DATA_PORT, Encoding, Kind, Op
from inagg_wire.noise_keys import seed_for_lease
from inagg_wire.payload import Codes
from inagg_wire.slots import Lease

from .conftest import MakeRig, interpreted_rig
from .frames import to_switch
from .rig import Rig

LANES = 32
ROOT, LEFT, RIGHT = (("10.77.1.1", DATA_PORT), ("10.77.1.2", DATA_PORT), ("10.77.1.3", DATA_PORT))
RANKS: tuple[Address, ...] = tuple((f"10.77.0.{rank + 1}", 5000 + rank) for rank in range(5))
OF = {LEFT: (0, 2, 4), RIGHT: (1, 3)}
"""The ranks of each leaf."""
LEAF_HOSTS = [ROOT[0], *(address for address, _ in RANKS)]
ROOT_HOSTS = [LEFT[0], RIGHT[0]]
FORMATS = ("nat8", "nat8-reencode")
ROOT_PROGRAM = {"nat8": f"nat8-{LANES}-root", "nat8-reencode": f"nat8-reencode-{LANES}-root"}
SLOTS = 4


def flat_job(fmt: str) -> Binding:
    return make_binding(7, fmt, len(RANKS), lanes=LANES, base=8, slots=SLOTS, children=RANKS)


def bound(flat: Binding) -> dict[Address, Binding]:
    """What each switch of the tree is told; the root's lease lies elsewhere, so that nothing is right by chance."""
    leaves = [Branch(name, at, flat.lease, OF[at]) for name, at in (("l", LEFT), ("r", RIGHT))]
    found = bindings(flat, Branch("root", ROOT, Lease(2 * SLOTS + flat.lease.base, SLOTS), branches=tuple(leaves)), 1)
    return {ROOT: found["root"], LEFT: found["l"], RIGHT: found["r"]}


class Tree:
    """Three switches, and the datagrams that are under way between them."""

    def __init__(self, fmt: str, switches: dict[Address, Rig | Pair], seed: int) -> None:
        self.flat, self.switches, self.rng = flat_job(fmt), switches, np.random.default_rng(seed)
        self.binding = bound(self.flat)
        for at, switch in switches.items():
            switch.bind(self.binding[at])
        self.under_way: list[tuple[Address, Address, bytes]] = []
        self.results: dict[tuple[Address, int, int], bytes] = {}
        """What each rank got, by slot of the leaf and generation."""

    def model(self, at: Address) -> Model:
        switch = self.switches[at]
        return switch.pair.model if isinstance(switch, Rig) else switch.model

    def deliver(self, source: Address, at: Address, data: bytes) -> None:
        for output in self.switches[at].receive(data, source):
            for to in output.to:
                if to in self.switches:
                    self.under_way.append((at, to, output.data))
                else:
                    datagram = wire.parse(output.data)
                    h = datagram.header
                    if h.kind is Kind.RESULT:
                        key = (to, h.slot, h.generation)
                        assert self.results.setdefault(key, datagram.payload) == datagram.payload

    def contribution(self, rank: int, block: int) -> bytes:
        """The same bytes whenever this rank sends this block."""
        at = next(leaf for leaf, ranks in OF.items() if rank in ranks)
        binding, op = self.binding[at], op_of(block)
        codes = codes_of(self.flat, rank, block)
        return make_contribution(binding, block, codes, op)

    def contribute(self) -> None:
        """What a worker may well send, mostly in turn."""
        at = LEFT if self.rng.random() < 0.5 else RIGHT
        ranks, binding = OF[at], self.binding[at]
        place, number = int(self.rng.integers(SLOTS)), int(self.rng.integers(len(ranks)))
        slot = self.model(at).slots[binding.lease.base + place]
        done = slot.seen == binding.full and len(slot.here) == 1
        generation = max(1, slot.tag + int(self.rng.choice([1, 1, 1, 0, -1, 2] if done else [0, 0, 0, 0, 0, -1, 1])))
        block = (generation - 1) * SLOTS + place
        self.deliver(RANKS[ranks[number]], at, self.contribution(ranks[number], block))

    def pass_on(self, *, lose: float = 0.0, repeat: float = 0.0) -> None:
        """One of the datagrams between switches arrives, in whatever order."""
        if not self.under_way:
            return
        place = int(self.rng.integers(len(self.under_way)))
        datagram = self.under_way[place]
        if self.rng.random() >= repeat:
            self.under_way.pop(place)
        if self.rng.random() >= lose:
            self.deliver(*datagram)

    def tell_lies(self) -> None:
        """A datagram between switches with a field that is another."""
        if not self.under_way:
            return
        source, at, data = self.under_way[int(self.rng.integers(len(self.under_way)))]
        h = wire.parse(data).header
        lies: list[dict[str, Any]] = [
            {"token": h.token ^ 1},
            {"slot": h.slot ^ SLOTS},
            {"slot": h.slot ^ 1},
            {"generation": h.generation + 1},
            {"generation": max(1, h.generation - 1)},
            {"kind": Kind.CONTRIBUTION if h.kind is Kind.RESULT else Kind.RESULT},
            {"job": h.job + 1},
            {"lanes": h.lanes // 2},
            {"owner": 1},
            {"kind": Kind.ACK, "lanes": 0, "owner": 1},
            {"kind": Kind.NOTICE, "lanes": 0, "owner": int(Reason.STALE)},
        ]
        try:
            false = replace(h, **lies[int(self.rng.integers(len(lies)))])
        except WireError:  # no header can have it
            return
        bytes_a_lane = (len(data) - 24) // max(1, h.lanes)
        wrong = false.pack() + data[24 : 24 + false.lanes * bytes_a_lane]
        if self.rng.random() < 0.1:
            source = RANKS[0] if at != ROOT else LEFT
        self.switches[at].receive(wrong, source)

    def check_counters(self) -> None:
        for switch in self.switches.values():
            switch.check_counters()


def op_of(block: int) -> Op:
    return Op.MAX if block % 5 == 2 else Op.SUM


def codes_of(flat: Binding, rank: int, block: int) -> Codes:
    rng, op = np.random.default_rng((rank, block)), op_of(block)
    lanes = flat.format.lanes_for(op, flat.lanes)
    return random_codes(rng, flat.format.encoding(op), flat.format, flat.world, lanes)


def pairs(*at: Address) -> dict[Address, Rig | Pair]:
    return {address: Pair() for address in at}


def trees(make: MakeRig, fmt: str, p4: Sequence[Address]) -> dict[Address, Rig | Pair]:
    """The switches of a tree, those at ``p4`` P4 switches."""
    found = pairs(ROOT, LEFT, RIGHT)
    for at in p4:
        program, hosts = (ROOT_PROGRAM[fmt], ROOT_HOSTS) if at == ROOT else (f"nat8-{LANES}-leaf", LEAF_HOSTS)
        found[at] = make(program, hosts, at[0])
    return found


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("p4", [(LEFT, RIGHT), (ROOT,)], ids=["two leaves", "root"])
def test_p4_switches_in_a_tree_send_and_count_as_the_model_does(
    make_rig: MakeRig, fmt: str, p4: tuple[Address, ...]
) -> None:
    """What is lost, repeated, overtaken, asked for again or false between the switches, too."""
    tree = Tree(fmt, trees(make_rig, fmt, p4), seed=len(p4))
    for step in range(1000):
        kind = tree.rng.random()
        if kind < 0.55:
            tree.contribute()
        elif kind < 0.93:
            tree.pass_on(lose=0.1, repeat=0.1)
        else:
            tree.tell_lies()
        if step % 200 == 0:
            tree.check_counters()
    tree.check_counters()
    counts = [tree.model(at).counters.jobs[7] for at in p4]
    assert min(job.results for job in counts) > 15
    if ROOT not in p4:
        assert min(job.partials_again for job in counts) > 5


@pytest.mark.parametrize("p4", [(LEFT, RIGHT), (ROOT,), (LEFT, RIGHT, ROOT)], ids=["two leaves", "root", "all"])
def test_with_exact_trunks_a_tree_makes_the_bits_of_the_flat_switch(make_rig: MakeRig, p4: tuple[Address, ...]) -> None:
    tree = Tree("nat8", trees(make_rig, "nat8", p4), seed=1)
    flat = Pair()
    flat.bind(replace(tree.flat, seed=seed_for_lease(tree.flat.seed, tree.flat.lease.base)))
    for block in range(3 * SLOTS):
        slot, generation = tree.flat.lease.slot(block), tree.flat.lease.generation(block)
        for rank, worker in enumerate(RANKS):
            data = make_contribution(tree.flat, block, codes_of(tree.flat, rank, block), op_of(block))
            outputs = flat.receive(data, worker)
            tree.deliver(worker, LEFT if rank in OF[LEFT] else RIGHT, tree.contribution(rank, block))
        while tree.under_way:
            tree.pass_on()
        (result,) = outputs
        for worker in RANKS:
            assert tree.results[worker, slot, generation] == wire.parse(result.data).payload


def test_a_leaf_waits_for_its_parent_and_says_so() -> None:
    tree = Tree("nat8", trees(interpreted_rig, "nat8", (LEFT,)), seed=1)
    left = tree.switches[LEFT]
    assert isinstance(left, Rig)
    for rank in OF[LEFT]:
        tree.deliver(RANKS[rank], LEFT, tree.contribution(rank, 0))
    tree.deliver(RANKS[0], LEFT, tree.contribution(0, 1))
    count, waits = left.waits(7)
    assert count == 2
    assert {(wait.slot, wait.missing) for wait in waits} == {(8, ()), (9, (1, 2))}


def test_what_goes_up_is_addressed_to_the_parent() -> None:
    """The rig compares whole frames; this one is written out."""
    tree = Tree("nat8", trees(interpreted_rig, "nat8", (LEFT,)), seed=1)
    left = tree.switches[LEFT]
    assert isinstance(left, Rig)
    host = left.network.host(RANKS[0][0])
    assert host is not None
    for rank in OF[LEFT][:-1]:
        tree.deliver(RANKS[rank], LEFT, tree.contribution(rank, 0))
    last = OF[LEFT][-1]
    there = left.network.host(RANKS[last][0])
    assert there is not None
    frame = to_switch(left.network, there, RANKS[last], tree.contribution(last, 0))
    (sent,) = left.wire.exchange(there.port, frame, 1)
    assert sent.port == 0  # that of the root, the first host
    assert sent.data[:6] == left.network.hosts[0].mac.to_bytes(6, "big")
    assert sent.data[6:12] == mac_number("02:00:0a:4d:00:fe").to_bytes(6, "big")
    h = wire.parse(sent.data[42 : 42 + 24 + 4 * LANES]).header
    assert (h.kind, h.format, h.slot) == (Kind.CONTRIBUTION, Encoding.FIX32, 2 * SLOTS + 8)


def test_programs_refuse_a_place_that_is_not_theirs() -> None:
    told = bound(flat_job("nat8"))
    leaf = interpreted_rig(f"nat8-{LANES}-leaf", LEAF_HOSTS, LEFT[0])
    root = interpreted_rig(f"nat8-{LANES}-root", ROOT_HOSTS, ROOT[0])
    alone = interpreted_rig(f"nat8-{LANES}", LEAF_HOSTS, LEFT[0])
    for rig, wrong in (
        (leaf, flat_job("nat8")),
        (leaf, told[ROOT]),
        (root, told[LEFT]),
        (root, flat_job("nat8")),
        (alone, told[LEFT]),
    ):
        with pytest.raises(DriverError, match=r"is for (a|the) "):
            rig.driver.bind(0, wrong)


def test_a_leaf_whose_parent_is_behind_no_port_says_which_hosts_it_knows() -> None:
    leaf = interpreted_rig(f"nat8-{LANES}-leaf", LEAF_HOSTS[1:], LEFT[0])
    with pytest.raises(DriverError, match=r"10\.77\.1\.1 is behind no port"):
        leaf.driver.bind(0, bound(flat_job("nat8"))[LEFT])
