"""The tree of switches that a job uses, and what each of them must know.

A *leaf* serves workers, a switch above it serves switches. The workers of a leaf need nothing of the tree: they see a
switch with a lease of their own. A block of theirs has a slot s there; above, where it comes in k parts, slots k s to
k s + k - 1 of a lease that is k times as large. Block b there is part b mod k of the workers' block floor(b / k), so
slots, generations and window of the parts are those of a lease as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from inagg_wire.noise_keys import block_key, seed_for_lease
from inagg_wire.slots import Lease

from ..binding import Address, Binding, Place, Uplink


@dataclass(frozen=True, slots=True)
class Branch:
    """A switch of a job's tree, on one shard, and what is below it: either ``ranks`` or ``branches``."""

    switch: str
    """Name of the switch."""
    address: Address
    """Address of its data plane, as its children and its parent see it."""
    lease: Lease
    ranks: tuple[int, ...] = ()
    branches: tuple[Branch, ...] = ()
    group: Address | None = None
    """Group to which it may multicast results to its children."""

    @property
    def depth(self) -> int:
        """Levels of switches."""
        return 1 + max((branch.depth for branch in self.branches), default=0)

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """Ranks below, on whatever level."""
        return (*self.ranks, *(rank for branch in self.branches for rank in branch.all_ranks))


def bindings(flat: Binding, root: Branch, parts: int) -> dict[str, Binding]:
    """The binding of each switch of a tree, by its name, those below first: a parent has nobody to answer before
    they are bound.

    ``flat`` is the binding of a single switch with all workers, by rank, and with the job's own seed; ``parts``:
    `inagg_wire.formats.JobFormat.parts`. Every switch but the root has as result what the root makes, and the root
    makes what the single switch would: sums are exact on the way up, and the noise is that of the workers' blocks.
    (If the format rounds sums on the way up, each switch does so with noise that depends on the job's seed, its level
    and the smallest rank below it: the same tree gives the same bits, wherever its leases lie.)
    """
    return dict(_bindings(flat, root, parts, None))


def _bindings(flat: Binding, branch: Branch, parts: int, uplink: Uplink | None) -> Iterator[tuple[str, Binding]]:
    mine = 1 if branch.ranks else parts
    for below in branch.branches:
        key = block_key(flat.seed, min(below.all_ranks), below.depth)
        up = Uplink(branch.address, branch.lease.base, parts if below.ranks else 1, key)
        yield from _bindings(flat, below, parts, up)
    children = [flat.children[rank] for rank in branch.ranks] or [below.address for below in branch.branches]
    child_of = {rank: i for i, rank in enumerate(branch.ranks)}
    child_of |= {rank: i for i, below in enumerate(branch.branches) for rank in below.all_ranks}
    by_rank = tuple(child_of.get(rank, -1) for rank in range(flat.world)) if flat.scatters else ()
    yield (
        branch.switch,
        replace(
            flat,
            lease=branch.lease,
            seed=seed_for_lease(flat.seed, branch.lease.base // mine),
            children=tuple(children),
            group=branch.group,
            place=Place(flat.world, not branch.ranks, mine, uplink, by_rank),
        ),
    )
