"""Trees of switches for the simulator: which there can be, and one of them with a real aggregator at each node."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Address, Binding
from inagg_switch.control.tree import Branch, bindings
from inagg_wire.formats import JobFormat
from inagg_wire.layout import LANE_MULTIPLE, Op
from inagg_wire.noise_keys import seed_for_lease
from inagg_wire.slots import Lease

from .oracle import Below
from .world import World


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree; 0 workers at the root: all of them, and no other switch. ``parts``: of a block between switches."""

    below: Below = 0
    parts: int = 1

    @property
    def depth(self) -> int:
        """Levels of switches."""
        return _depth(self.below)


FLAT = Shape()


def _depth(below: Below) -> int:
    return 1 if isinstance(below, int) else 1 + max(map(_depth, below))


def draw_shape(rng: random.Random, fmt: JobFormat, workers: int, lanes: int) -> Shape:
    """A tree of two or three levels, some of it with a switch that has one child, and parts that blocks can have."""
    levels_max = fmt.roundings + 1 if fmt.roundings else 3
    cuts = sorted(rng.sample(range(1, workers), rng.randint(0, workers - 1)))
    leaves: list[Below] = [b - a for a, b in zip([0, *cuts], [*cuts, workers], strict=True)]
    if levels_max > 2 and rng.random() < 0.5:
        at = rng.randint(1, len(leaves))
        above: list[tuple[Below, ...]] = [tuple(leaves[:at]), tuple(leaves[at:])]
        below: Below = tuple(of_one for of_one in above if of_one)
    else:
        below = tuple(leaves)
    whole = [k for k in (1, 2, 4) if all(fmt.lanes_for(op, lanes) % (LANE_MULTIPLE * k) == 0 for op in Op)]
    return Shape(below, rng.choice(whole))


@dataclass(slots=True)
class Node:
    """A switch of the tree. ``parts``: in how many a block comes to it. ``parent``: a name, or nothing at the root."""

    aggregator: Aggregator
    address: Address
    parent: str
    parts: int


class Tree:
    """The switches of one shard. Leaves have the lease that the single switch would have."""

    def __init__(self, shape: Shape, world: World, shard: int, addresses: list[Address]) -> None:
        self._shape, self._world, self._shard, self._addresses = shape, world, shard, addresses
        self.nodes: dict[str, Node] = {}
        self.at: dict[Address, str] = {}
        """Names by address."""
        self._leaf_of: list[str] = []
        self.root = self._grow("root", shape.below or world.workers, "")

    def _grow(self, name: str, below: Below, parent: str) -> Branch:
        address = (f"10.0.1.{len(self.nodes)}", 2000 + self._shard)
        parts = 1 if isinstance(below, int) else self._shape.parts
        self.nodes[name] = Node(self._new(parts), address, parent, parts)
        self.at[address] = name
        if isinstance(below, int):
            first = len(self._leaf_of)
            self._leaf_of += [name] * below
            return Branch(name, address, self._world.lease, ranks=tuple(range(first, first + below)))
        branches = tuple(self._grow(f"{name}.{i}", it, name) for i, it in enumerate(below))
        return Branch(name, address, self._world.lease, branches=branches)

    def _placed(self, branch: Branch, lease: Lease) -> Branch:
        """With the leases that switches have where leaves have ``lease``."""
        if branch.ranks:
            return replace(branch, lease=lease)
        parts = self._shape.parts
        # Another place than the leaf's, so that nothing is right by chance.
        larger = Lease((lease.slots - lease.base) * parts, lease.slots * parts)
        return replace(branch, lease=larger, branches=tuple(self._placed(below, lease) for below in branch.branches))

    def _new(self, parts: int) -> Aggregator:
        return Aggregator(2 * self._world.lease.slots * parts, self._world.lanes, 2)

    def leaf_of(self, rank: int) -> str:
        """Where a rank's contributions go."""
        return self._leaf_of[rank]

    def forget(self, name: str | None) -> None:
        """One of the switches, or all (None), have started again."""
        for node in [self.nodes[name]] if name is not None else self.nodes.values():
            node.aggregator = self._new(node.parts)

    def bind(self, flat: Binding) -> None:
        """See `bindings`. ``flat`` has the seed of its lease, so that of the job is the one that makes it so."""
        own = replace(flat, seed=seed_for_lease(flat.seed, flat.lease.base))
        for name, binding in bindings(own, self._placed(self.root, flat.lease), self._shape.parts).items():
            self.nodes[name].aggregator.bind(binding)

    def unbind(self, job: int) -> None:
        for node in self.nodes.values():
            node.aggregator.unbind(job)
