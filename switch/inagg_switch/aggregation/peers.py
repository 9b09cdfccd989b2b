"""Sources and destinations of datagrams: one table of sources, for all who look something up in it, kept up to date
with each job that comes or goes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inagg_link.jit import inline, jit
from inagg_link.port import Port, key_of, register_only
from inagg_wire.formats import CHILDREN_MAX

from ..binding import Address, Binding

PARENT = CHILDREN_MAX
"""The number of the switch above, beside those of the children."""

SOURCES_FIRST = 64
"""Sources that there is room for at first; it doubles."""


class Peers(NamedTuple):
    """Peers of all jobs, for compiled code; addresses as `inagg_link.port.key_of` writes them."""

    keys: Any
    """int64, (buckets,), a power of two: sources; see `row_of`."""
    rows: Any
    """int32: the row of each in ``ranks``; 0 where there is none."""
    ranks: Any
    """int8, (sources + 1, jobs): the number that a source has among the children of the job of a row, `PARENT`, or -1.
    Row 0 is of no source."""
    address: Any
    """int64, (jobs, children and one more): the addresses of the children of the job of a row, and of its `PARENT`."""
    group: Any
    """int64, by row: the multicast group of the job's results for all children; 0: they go to each."""


def bucket_of(key: int, buckets: int) -> int:
    """The bucket in which to look for a source first, of so many: by port and address."""
    return (key >> 16 ^ key >> 32) & (buckets - 1)


_bucket_of = inline(bucket_of)


@jit
def row_of(keys: Any, rows: Any, key: int) -> Any:
    """The row of a source in `Peers.ranks`; 0, in which there is no rank, if it is not there. Linear probing."""
    mask = len(keys) - 1
    at = _bucket_of(key, len(keys))
    while rows[at] != 0:
        if keys[at] == key:
            return np.int64(rows[at])
        at = (at + 1) & mask
    return np.int64(0)


def _peers(binding: Binding) -> list[tuple[int, Address]]:
    """The peers that the switch hears in a job, each with its number."""
    above = [] if binding.uplink is None else [(PARENT, binding.uplink.parent)]
    return [*enumerate(binding.children), *above]


class Sources:
    """The sources of all bound jobs."""

    def __init__(self, jobs: int) -> None:
        """``jobs``: rows of jobs."""
        self._names: dict[int, Address] = {}
        self.peers = Peers(
            *self._buckets(SOURCES_FIRST),
            np.full((SOURCES_FIRST + 1, jobs), -1, np.int8),
            np.zeros((jobs, CHILDREN_MAX + 1), np.int64),
            np.zeros(jobs, np.int64),
        )
        self._free = list(range(SOURCES_FIRST, 0, -1))

    @staticmethod
    def _buckets(sources: int) -> tuple[Any, Any]:
        return np.zeros(4 * sources, np.int64), np.zeros(4 * sources, np.int32)

    def bind(self, row: int, binding: Binding) -> None:
        """A job's peers, in a row that has none."""
        for number, address in _peers(binding):
            key = key_of(address)
            source = self._row(key) or self._add(key, address)
            self.peers.ranks[source, row] = number
            self.peers.address[row, number] = key
        self.peers.group[row] = 0 if binding.group is None else key_of(binding.group)
        if binding.group is not None:
            self._names[int(self.peers.group[row])] = binding.group

    def unbind(self, row: int, binding: Binding) -> None:
        """The job that has the row is no more."""
        for _, address in _peers(binding):
            key = key_of(address)
            source = self._row(key)
            self.peers.ranks[source, row] = -1
            if (self.peers.ranks[source] < 0).all():
                self._remove(key)
                self._free.append(source)
                del self._names[key]
        if binding.group is not None:
            group = key_of(binding.group)
            self.peers.group[row] = 0
            if group not in self.peers.group:
                del self._names[group]

    def name(self, key: int) -> Address:
        """The address of a peer or a group of a bound job."""
        return self._names[key]

    def register(self, port: Port) -> None:
        """Have compiled loops send to all of them through ``port``, and to nobody else."""
        register_only(port, self._names.values())

    def _row(self, key: int) -> int:
        return int(row_of(self.peers.keys, self.peers.rows, key))

    def _add(self, key: int, address: Address) -> int:
        if not self._free:
            self._grow()
        source = self._free.pop()
        self._names[key] = address
        self._insert(key, source)
        return source

    def _insert(self, key: int, source: int) -> None:
        keys, rows = self.peers.keys, self.peers.rows
        at = bucket_of(key, len(keys))
        while rows[at]:
            at = (at + 1) % len(keys)
        keys[at], rows[at] = key, source

    def _remove(self, key: int) -> None:
        """Remove a source, and leave no gap before others that it has pushed on."""
        keys, rows = self.peers.keys, self.peers.rows
        mask = len(keys) - 1
        gap = bucket_of(key, len(keys))
        while keys[gap] != key or not rows[gap]:
            gap = (gap + 1) & mask
        at = gap
        while rows[at := (at + 1) & mask]:
            if (at - bucket_of(int(keys[at]), len(keys))) & mask >= (at - gap) & mask:
                keys[gap], rows[gap] = keys[at], rows[at]
                gap = at
        rows[gap] = 0

    def _grow(self) -> None:
        p, before = self.peers, len(self.peers.ranks) - 1
        ranks = np.concatenate([p.ranks, np.full((before, p.ranks.shape[1]), -1, np.int8)])
        used = np.flatnonzero(p.rows)
        self.peers = Peers(*self._buckets(2 * before), ranks, p.address, p.group)
        for at in used:
            self._insert(int(p.keys[at]), int(p.rows[at]))
        self._free = list(range(2 * before, before, -1))
