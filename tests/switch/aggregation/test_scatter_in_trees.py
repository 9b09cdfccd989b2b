"""Results for one rank alone, where the rank is behind another switch: each step of a root, a leaf, and both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inagg_switch.aggregation.model import Output
from inagg_switch.binding import Address, Binding, Place
from inagg_switch.control.tree import Branch, bindings
from inagg_switch.driver import DriverError
from inagg_wire import header as wire
from inagg_wire.errors import Reason
from inagg_wire.layout import HEADER_BYTES, Kind, Op
from inagg_wire.slots import Lease

from .pair import Pair
from .world import addresses, make_binding, simple_contribution

ROOT, LEFT, RIGHT = ("10.9.0.1", 1), ("10.9.0.2", 1), ("10.9.0.3", 1)
RANKS = addresses(3)
"""0 and 2 at the left leaf, 1 at the right."""


class Tree:
    """Three switches, each a model and an aggregator; nothing is lost but what a test takes out of `queue`."""

    def __init__(self, fmt: str = "nat8", parts: int = 1) -> None:
        flat = make_binding(fmt=fmt, n=3, lanes=64, children=RANKS, scatters=True)
        leaves = Branch("l", LEFT, flat.lease, (0, 2)), Branch("r", RIGHT, flat.lease, (1,))
        bound = bindings(flat, Branch("root", ROOT, Lease(0, 4 * parts), branches=leaves), parts)
        self.binding = {at: bound[name] for name, at in (("l", LEFT), ("r", RIGHT), ("root", ROOT))}
        self.switches = {at: Pair() for at in self.binding}
        for at, pair in self.switches.items():
            pair.bind(self.binding[at])
        self.queue: list[tuple[Address, Address, bytes]] = []
        self.came: dict[Address, list[wire.Header]] = {rank: [] for rank in RANKS}
        self.payloads: dict[Address, list[bytes]] = {rank: [] for rank in RANKS}

    def contribute(self, rank: int, owner: int, block: int = 0) -> None:
        at = RIGHT if rank == 1 else LEFT
        number = {0: 0, 1: 1, 2: 2}[rank]
        data = simple_contribution(self.binding[at], number, block, owner=owner)
        self.queue.append((RANKS[rank], at, data))

    def step(self) -> tuple[Address, list[Output]]:
        """Deliver the oldest datagram, and queue what it causes."""
        source, at, data = self.queue.pop(0)
        if at not in self.switches:
            datagram = wire.parse(data)
            self.came[at].append(datagram.header)
            self.payloads[at].append(datagram.payload)
            return at, []
        sent = self.switches[at].receive(data, source)
        self.switches[at].check()
        self.queue += [(at, to, output.data) for output in sent for to in output.to]
        return at, sent

    def run(self) -> None:
        while self.queue:
            self.step()

    def kinds(self, rank: int) -> list[Kind]:
        return [h.kind for h in self.came[RANKS[rank]]]


@pytest.fixture(params=[("nat8", 1), ("nat8", 4), ("fix32", 2), ("dith8", 1)], ids=str)
def tree(request: pytest.FixtureRequest) -> Tree:
    return Tree(*request.param)


@pytest.mark.parametrize("owner", [1, 2, 3])
def test_the_owner_gets_the_result_that_all_would_get_and_others_its_header(tree: Tree, owner: int) -> None:
    whole = Tree(tree.binding[ROOT].format.name, tree.binding[ROOT].parts)
    for rank in range(3):
        whole.contribute(rank, 0)
        tree.contribute(rank, owner)
    whole.run()
    tree.run()
    for rank in range(3):
        own = rank == owner - 1
        assert tree.kinds(rank) == [Kind.RESULT if own else Kind.ACK]
        assert tree.payloads[RANKS[rank]] == (whole.payloads[RANKS[rank]] if own else [b""])
        assert tree.came[RANKS[rank]][0].owner == owner


@pytest.mark.parametrize("owner", [1, 2, 3])
def test_between_switches_a_result_goes_to_the_leaf_of_its_owner_alone(tree: Tree, owner: int) -> None:
    for rank in range(3):
        tree.contribute(rank, owner)
    down: dict[Address, int] = {LEFT: 0, RIGHT: 0}
    while tree.queue:
        at, sent = tree.step()
        for output in sent if at == ROOT else ():
            for to in output.to:
                down[to] += len(output.data) - HEADER_BYTES
    binding = tree.binding[ROOT]
    from_root = binding.parts * (binding.result_bytes(Op.SUM) - HEADER_BYTES)
    assert down == {LEFT: from_root * (owner != 2), RIGHT: from_root * (owner == 2)}


def test_who_has_lost_what_was_sent_gets_it_again_from_the_leaf(tree: Tree) -> None:
    for rank in range(3):
        tree.contribute(rank, 2)
    tree.run()
    before = tree.switches[ROOT].model.counters.datagrams_in
    for rank in range(3):
        tree.contribute(rank, 2)
    tree.run()
    assert [tree.kinds(rank) for rank in range(3)] == [[Kind.ACK] * 2, [Kind.RESULT] * 2, [Kind.ACK] * 2]
    assert tree.payloads[RANKS[1]][0] == tree.payloads[RANKS[1]][1]
    assert tree.switches[ROOT].model.counters.datagrams_in == before


@pytest.mark.parametrize("wrong", [0, 2])
def test_an_owner_that_was_damaged_on_its_way_costs_a_repetition(tree: Tree, wrong: int) -> None:
    """The sum was completed for all, or for a rank elsewhere: the owner asks, its leaf asks, and it has its own."""
    tree.contribute(0, 1)
    tree.contribute(1, 1)
    tree.contribute(2, wrong)  # completes the sum of the left leaf
    tree.queue[-1], tree.queue[-2] = tree.queue[-2], tree.queue[-1]
    tree.run()
    assert tree.came[RANKS[0]][-1].owner in (1, wrong)
    tree.contribute(0, 1)
    tree.run()
    last = tree.came[RANKS[0]][-1]
    assert (last.kind, last.owner) == (Kind.RESULT, 1)
    whole = Tree(tree.binding[ROOT].format.name, tree.binding[ROOT].parts)
    for rank in range(3):
        whole.contribute(rank, 0)
    whole.run()
    assert tree.payloads[RANKS[0]][-1] == whole.payloads[RANKS[0]][0]


def test_parts_that_came_for_different_owners_make_no_result_until_they_are_asked_for() -> None:
    tree = Tree("nat8", 2)
    pair, binding = tree.switches[LEFT], tree.binding[LEFT]
    up, lanes = binding.uplink, binding.lanes_up(Op.SUM)
    assert up is not None
    for rank in (0, 1):
        pair.receive(simple_contribution(binding, rank, 0), binding.children[rank])

    def answer(part: int, owner: int) -> bytes:
        kind = Kind.ACK if owner == 2 else Kind.RESULT
        head = wire.Header(
            kind, Op.SUM, binding.result_encoding(Op.SUM), lanes if kind is Kind.RESULT else 0, binding.job,
            binding.token, up.base + part, 1, owner=owner,
        )  # fmt: skip
        return wire.Datagram(head, bytes(lanes if kind is Kind.RESULT else 0)).pack()

    assert pair.receive(answer(0, 2), ROOT) == []
    assert pair.receive(answer(1, 0), ROOT) == []
    (again,) = pair.receive(simple_contribution(binding, 0, 0), binding.children[0])
    assert wire.parse(again.data).header.slot == up.base
    (result,) = pair.receive(answer(0, 0), ROOT)
    assert wire.parse(result.data).header.kind is Kind.RESULT
    assert result.to == binding.children
    pair.check()


def test_the_next_generation_begins_where_only_acknowledgements_came(tree: Tree) -> None:
    for block in (0, 4, 8):  # of the same slot
        for rank in range(3):
            tree.contribute(rank, 2, block)
        tree.run()
    assert tree.kinds(0) == [Kind.ACK] * 3
    assert tree.kinds(1) == [Kind.RESULT] * 3


@pytest.mark.parametrize(
    ("kind", "owner"), [(Kind.RESULT, 2), (Kind.ACK, 1), (Kind.ACK, 3), (Kind.RESULT, 4), (Kind.ACK, 4)]
)
def test_what_a_parent_says_of_the_wrong_owner_is_dropped(kind: Kind, owner: int) -> None:
    tree = Tree()
    pair, binding = tree.switches[LEFT], tree.binding[LEFT]
    for rank in (0, 2):
        pair.receive(simple_contribution(binding, rank, 0, owner=1), RANKS[rank])
    answer = wire.Header(
        kind, Op.SUM, binding.result_encoding(Op.SUM), binding.lanes_up(Op.SUM) if kind is Kind.RESULT else 0,
        binding.job, binding.token, 0, 1, owner=owner,
    )  # fmt: skip
    payload = bytes(binding.result_bytes(Op.SUM) - HEADER_BYTES if kind is Kind.RESULT else 0)
    assert pair.receive(wire.Datagram(answer, payload).pack(), ROOT) == []
    assert pair.model.counters.drops == {Reason.WRONG_OWNER: 1}
    pair.check()


@pytest.mark.parametrize("child_of", [(), (0, 1), (0, 1, 2), (0, -1, 1)])
def test_a_root_that_does_not_know_where_each_rank_is_cannot_be_bound(child_of: tuple[int, ...]) -> None:
    binding: Binding = replace(make_binding(n=2, scatters=True), place=Place(3, True, child_of=child_of))
    with pytest.raises(DriverError, match="does not say which child has each rank"):
        Pair().bind(binding)
