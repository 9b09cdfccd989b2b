"""All that a switch must know of a job, with the switch's place in the job's tree."""

from __future__ import annotations

from dataclasses import dataclass

from inagg_wire.formats import JobFormat
from inagg_wire.layout import Encoding, Op, datagram_bytes
from inagg_wire.noise_keys import BlockKey
from inagg_wire.slots import Lease

Address = tuple[str, int]
"""Host and UDP port."""


@dataclass(frozen=True, slots=True)
class Uplink:
    """The data plane above a switch, to which it sends partial sums.

    A block of the switch goes up as ``parts`` contributions (a power of two), and what stands in slot base + s of its
    own lease takes the slots ``base`` + parts * s and on of its parent's.
    """

    parent: Address
    base: int
    """First slot of the job's lease at the parent."""
    parts: int
    key: BlockKey
    """Key of the noise of partial sums, where the format rounds them (`inagg_wire.noise.partial_words`)."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a switch in a tree. ``world``: the workers of the job, wherever they are. ``from_switches``: its
    children are switches, which send partial sums, a block in ``parts`` datagrams. ``uplink`` None: it is the root.
    ``child_of``: by rank, the number of the child that it is or is behind, -1 if it is not below this switch; empty
    where results are for all."""

    world: int
    from_switches: bool = False
    parts: int = 1
    uplink: Uplink | None = None
    child_of: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """All that a switch must know of one job in one epoch, on one shard.

    ``children[i]`` is the address from which datagrams of the job's rank i come, or of the i-th switch below this one,
    and to which results go. ``seed``: 32 bits, of the switch's rounding noise in these slots
    (`inagg_wire.noise_keys.seed_for_lease`). ``lanes``: of a block as workers send it. The values are valid together:
    `inagg_wire.formats.admit` and `inagg_wire.slots.Lease` have been asked.
    """

    job: int
    token: int
    format: JobFormat
    lanes: int
    lease: Lease
    seed: int
    children: tuple[Address, ...]
    resume_block: int = 0
    """The block, of the shard's, that the epoch begins with: which generations the slots serve first
    (`inagg_wire.slots.Lease.first_generation`)."""
    group: Address | None = None
    """The multicast group to which results for all children go; None: to each of them."""
    scatters: bool = False
    """Whether contributions may say that their result goes to one child alone."""
    place: Place | None = None
    """The switch's place in a tree; None: this is the only switch, and its children are the workers."""

    @property
    def world(self) -> int:
        """The workers of the job. Levels, units and encodings follow from it, and not from the number of children."""
        return len(self.children) if self.place is None else self.place.world

    @property
    def parts(self) -> int:
        """Datagrams in which a block comes from each child, and slots that it takes here: 1 from workers."""
        return 1 if self.place is None else self.place.parts

    @property
    def uplink(self) -> Uplink | None:
        """The data plane above; None at the root, and where there is no tree."""
        return None if self.place is None else self.place.uplink

    @property
    def everyone(self) -> tuple[Address, ...]:
        """Addresses to which a result for all children goes."""
        return self.children if self.group is None else (self.group,)

    @property
    def owners(self) -> int:
        """The largest `inagg_wire.header.Header.owner`; 0: results are for all."""
        return self.world if self.scatters else 0

    def child_of(self, owner: int) -> int:
        """The child to which a result goes that has this `inagg_wire.header.Header.owner` of 1 or more; -1: none."""
        return owner - 1 if self.place is None else self.place.child_of[owner - 1]

    def everyone_but(self, child: int) -> tuple[Address, ...]:
        """Addresses to which acknowledgements go of a result that goes to ``child``: with a group, to it, too."""
        others = self.children[:child] + self.children[child + 1 :]
        return others if self.group is None else (self.group,)

    @property
    def full(self) -> int:
        """The bitmap of all children."""
        return (1 << len(self.children)) - 1

    @property
    def first_part(self) -> int:
        """`resume_block`, counted in parts, each of which takes a slot: what `Lease.first_generation` wants."""
        return self.resume_block * self.parts

    def encoding(self, op: Op) -> Encoding:
        """The encoding of contributions: the job's, or that of partial sums."""
        if self.place is not None and self.place.from_switches:
            return self.format.partial(op, self.world)
        return self.format.encoding(op)

    def levels(self, op: Op) -> int:
        """The highest level index (natural) or magnitude (linear) of a contribution; `JobFormat.levels`."""
        if self.place is None or not self.place.from_switches or op is Op.MAX:
            return self.format.levels(self.world)
        if self.format.roundings:
            return self.format.result_levels(self.world)
        return self.world * self.format.top(self.world)

    @property
    def unit_shift(self) -> int:
        """log2 of the unit of contributions, in that of the workers'."""
        return self.format.partial_shift(self.world) if self.place is not None and self.place.from_switches else 0

    def lanes_for(self, op: Op) -> int:
        """Lanes of a datagram, from children and to them."""
        return self.format.lanes_for(op, self.lanes) // self.parts

    def lanes_up(self, op: Op) -> int:
        """Lanes of a partial sum that goes up, and of its result; 0 at the root."""
        return 0 if self.uplink is None else self.lanes_for(op) // self.uplink.parts

    def contribution_bytes(self, op: Op) -> int:
        """UDP payload bytes of a contribution."""
        return datagram_bytes(self.encoding(op), self.lanes_for(op))

    def partial_bytes(self, op: Op) -> int:
        """UDP payload bytes of a contribution to the parent; 0 at the root."""
        return 0 if self.uplink is None else datagram_bytes(self.format.partial(op, self.world), self.lanes_up(op))

    def result_encoding(self, op: Op) -> Encoding:
        """The encoding of results, the same on all levels."""
        return self.format.result_encoding(op, self.world)

    def result_bytes(self, op: Op) -> int:
        """UDP payload bytes of a result."""
        return datagram_bytes(self.result_encoding(op), self.lanes_for(op))
