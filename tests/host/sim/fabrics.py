"""The switches of a search: one, or a tree of real aggregators."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Address, Binding
from inagg_switch.control.tree import Branch, bindings
from inagg_wire.noise_keys import seed_for_lease
from inagg_wire.slots import Lease

from .world import World

SWITCH = -1
"""The root of the tree, or the only switch; further ones have -2, -3 and so on."""
JOB = 7


class Switch(Protocol):
    """What is searched as a switch. `receive` gives datagrams with the ranks and switches to send them to."""

    token: int

    def receive(self, data: bytes, source: int) -> list[tuple[bytes, list[int]]]: ...

    def key(self) -> Hashable: ...


class RealSwitch:
    """The aggregator."""

    def __init__(self, binding: Binding, slots: int, peers: dict[int, Address]) -> None:
        """``peers``: the addresses of ranks and switches."""
        self.token, self._peers = binding.token, peers
        self._numbers = {address: number for number, address in peers.items()}
        self._aggregator = Aggregator(slots, binding.lanes, 1)
        self._aggregator.bind(binding)

    def receive(self, data: bytes, source: int) -> list[tuple[bytes, list[int]]]:
        buffer = np.frombuffer(bytearray(data), np.uint8)
        sends = self._aggregator.receive(buffer, len(data), self._peers[source], 0.0)
        return [
            (row.tobytes(), [self._numbers[to] for to in send.to])
            for send in sends
            for row in send.data.reshape(-1, send.size)
        ]

    def key(self) -> Hashable:
        slots = self._aggregator._slots.table
        used = slots["seen"] != 0
        return (
            self.token,
            slots["tag"].tobytes(),
            slots["seen"].tobytes(),
            slots["here"].tobytes(),
            slots["bare"].tobytes(),
            slots["asked"].tobytes(),
            slots["op"][used].tobytes(),
            *(self._aggregator.contents(JOB, slot).tobytes() for slot in np.flatnonzero(used).tolist()),
        )


class Fabric(Protocol):
    """Which switches there are, the root first, and to which of them each rank sends."""

    def make(self, world: World, token: int, start: int) -> list[Switch]: ...

    def leaf_of(self, rank: int) -> int: ...


def peers_of(world: World, switches: int) -> dict[int, Address]:
    """Addresses of ranks and switches."""
    ranks = {rank: ("10.0.0.1", 1 + rank) for rank in range(world.workers)}
    return {**ranks, **{SWITCH - i: ("10.0.0.2", 1 + i) for i in range(switches)}}


@dataclass(frozen=True, slots=True)
class OneSwitch:
    """No tree. ``make_one``: of which kind it is."""

    make_one: Callable[[World, int, int], Switch] | None = None

    def make(self, world: World, token: int, start: int) -> list[Switch]:
        if self.make_one is not None:
            return [self.make_one(world, token, start)]
        peers = peers_of(world, 1)
        workers = tuple(peers[rank] for rank in range(world.workers))
        binding = Binding(JOB, token, world.format, world.lanes, world.lease, world.seed, workers, start, scatters=True)
        return [RealSwitch(binding, 2 * world.lease.slots, peers)]

    def leaf_of(self, rank: int) -> int:
        return SWITCH


@dataclass(frozen=True, slots=True)
class TwoLevels:
    """A root, and leaves with so many ranks each."""

    leaves: tuple[int, ...]
    parts: int = 1

    def make(self, world: World, token: int, start: int) -> list[Switch]:
        peers = peers_of(world, 1 + len(self.leaves))
        lease, first, branches = world.lease, 0, list[Branch]()
        for i, count in enumerate(self.leaves):
            ranks = tuple(range(first, first + count))
            branches.append(Branch(str(i), peers[SWITCH - 1 - i], lease, ranks))
            first += count
        larger = Lease((lease.slots - lease.base) * self.parts, lease.slots * self.parts)
        root = Branch("root", peers[SWITCH], larger, branches=tuple(branches))
        workers, seed = tuple(peers[rank] for rank in range(world.workers)), seed_for_lease(world.seed, lease.base)
        flat = Binding(JOB, token, world.format, world.lanes, lease, seed, workers, start, scatters=True)
        bound = bindings(flat, root, self.parts)
        names = ["root", *map(str, range(len(self.leaves)))]
        return [RealSwitch(bound[name], 2 * lease.slots * self.parts, peers) for name in names]

    def leaf_of(self, rank: int) -> int:
        first = 0
        for i, count in enumerate(self.leaves):
            first += count
            if rank < first:
                return SWITCH - 1 - i
        raise AssertionError(f"no leaf has rank {rank}")
