"""The entries that make a P4 switch serve a job, and those that make it a switch at all, as data, for both programs.

The binding table alone decides what a datagram may do. For each worker and op it has one entry that fits in everything,
and below it, by priority, entries that leave out one thing after the other, in the reverse of the order in which
`inagg_wire.errors.Reason` says that things are checked: so the entry that hits names the first thing that is wrong. The
entry that fits is each program's own, as they differ in what they have to know of a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from inagg_wire.errors import Reason
from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.layout import Op

from ..binding import Binding
from ..driver import DriverError
from .network import Host, Network, number
from .plane import Entry, Group, Masked, Replica

FLOOD_GROUP: Final = 1
"""The multicast group of frames whose destination is not known."""

TO_SWITCH, TO_DATA_PORT = 1, 2
"""Whom a frame to the switch's own address is for: the switch, which answers ARP and pings, or the aggregation."""

Action = tuple[str, tuple[tuple[str, int], ...]]
"""An action with its data."""

BITS: Final = {
    "job": 16,
    "ingress_port": 9,
    "source": 32,
    "source_port": 16,
    "token": 32,
    "op": 8,
    "format": 8,
    "lanes": 16,
    "slot": 32,
}
"""Bits of the key of the table `binding`, in its order."""
LOCAL_BITS: Final = {"address": 32, "port": 16, "fragment": 8}
"""Bits of the key of the table `local`."""

FITS: Final = 7
"""The priority of entries that fit in everything."""
MISSES: Final = (
    (6, Reason.SLOT_OUTSIDE_LEASE, ("slot",)),
    (5, Reason.WRONG_LANES, ("slot", "lanes")),
    (4, Reason.WRONG_FORMAT, ("slot", "lanes", "op", "format")),
    (3, Reason.WRONG_TOKEN, ("slot", "lanes", "op", "format", "token")),
)
"""Entries of a worker that leave fields out: priority, why the datagram is refused, and the fields."""
STRANGER: Final = 2
"""The priority of the entry that knows only the job."""


Key = Mapping[str, int | Masked]
"""Fields of a key; what is left out is not compared."""


class Fit(NamedTuple):
    """Datagrams that fit in everything: the contributions of one worker (or switch below), for one op."""

    rank: int
    op: Op
    key: Key


Binds = Callable[[Fit], Iterator[Entry]]
"""A program's entries for what fits."""


def base_entries(network: Network) -> Iterator[Entry | Group]:
    """Entries and groups of a switch before any job: its own address, where its hosts are, and the group of all
    ports."""
    address, mac = number(network.address), network.mac
    for priority, to, key in (
        (2, TO_DATA_PORT, {"address": address, "port": network.data_port}),
        (2, TO_DATA_PORT, {"address": address, "fragment": 1}),  # which is counted: nobody knows to which port it is
        (1, TO_SWITCH, {"address": address}),
    ):
        yield ternary_entry("local", LOCAL_BITS, priority, key, ("own", (("mac", mac), ("to", to))))
    yield Entry("to_switch", (("destination", network.mac),), "ours")
    for host in network.hosts:
        yield Entry("forward", (("destination", host.mac),), "to_port", (("port", host.port),))
    yield Group(FLOOD_GROUP, tuple(Replica(port, 0) for port in sorted(network.ports)))


def job_entries(binding: Binding, network: Network, row: int, binds: Binds) -> tuple[Entry | Group, ...]:
    """All that one epoch of a job needs, in the order in which it is to be written: nothing is accepted before its
    results can be sent.

    ``row``: the job's part of arrays of counters. Raises `DriverError` if a worker is behind no known port.
    """
    hosts = [host_at(network, address) for address, _ in binding.children]
    replicas = tuple(Replica(host.port, worker_cell(row, rank) + 1) for rank, host in enumerate(hosts))
    entries: list[Entry | Group] = [
        Entry(
            "copies",
            (("copy", replica.instance),),
            "readdress",
            (("mac", host.mac), ("address", number(host.address)), ("port", port)),
        )
        for replica, host, (_, port) in zip(replicas, hosts, binding.children, strict=True)
    ]
    entries.append(Group(job_group(row), replicas))
    refusals, fits = binding_ladder(binding, network)
    entries += refusals
    for fit in fits:
        entries += binds(fit)
    return tuple(entries)


def worker_cell(row: int, rank: int) -> int:
    """The number of a worker among all, by which counters have its cells."""
    return row * CHILDREN_MAX + rank


def job_group(row: int) -> int:
    """The multicast group of a job."""
    return FLOOD_GROUP + 1 + row


def binding_ladder(binding: Binding, network: Network) -> tuple[list[Entry], list[Fit]]:
    """The table `binding` of a job: the entries that refuse, and what fits, for which each program has an entry of its
    own. Raises `DriverError`."""
    unknown = refusal("refuse", Reason.UNKNOWN_SOURCE)
    refusals = {ternary_entry("binding", BITS, STRANGER, {"job": binding.job}, unknown): None}  # a set in order
    fits = []
    for rank, (address, port) in enumerate(binding.children):
        host = host_at(network, address)
        source = {"job": binding.job, "ingress_port": host.port, "source": number(address), "source_port": port}
        for op in Op:
            fit = Fit(rank, op, source | _key_of_op(binding, op))
            fits.append(fit)
            # SUM and MAX share what leaves out the op
            refusals |= dict.fromkeys(ladder("binding", BITS, fit.key, "refuse"))
    return list(refusals), fits


def _key_of_op(binding: Binding, op: Op) -> dict[str, int | Masked]:
    return {
        "token": binding.token,
        "op": int(op),
        "format": int(binding.encoding(op)),
        "lanes": binding.lanes_for(op),
        "slot": leased(binding.lease.base, binding.lease.slots),
    }


def leased(base: int, slots: int) -> Masked:
    """The slots of a lease. Leases are aligned powers of two, so to lie in one is to have its upper bits."""
    return Masked(base, (1 << BITS["slot"]) - slots)


def ladder(table: str, bits_of: Mapping[str, int], fit: Key, refuse: str) -> Iterator[Entry]:
    """The entries below the one that fits in all of ``fit``: each refuses what fits but for some fields."""
    for priority, why, missing in MISSES:
        left = {name: value for name, value in fit.items() if name not in missing}
        yield ternary_entry(table, bits_of, priority, left, refusal(refuse, why))


def refusal(action: str, why: Reason) -> Action:
    """``action`` with the reason that it counts, and tells the sender."""
    return action, (("reason", int(why)),)


def ternary_entry(table: str, bits_of: Mapping[str, int], priority: int, key: Key, action: Action) -> Entry:
    """An entry that compares the fields of ``key``; ``bits_of``: all fields of the table."""
    match = tuple(
        (name, value if isinstance(value, Masked) else Masked(value, (1 << bits) - 1))
        for name, bits in bits_of.items()
        if (value := key.get(name)) is not None
    )
    return Entry(table, match, *action, priority)


def host_at(network: Network, address: str) -> Host:
    """The host of a worker or switch with which a job is to go. Raises `DriverError` if it is behind no known port."""
    host = network.host(address)
    if host is None:
        raise DriverError(
            f"{address} is behind no port of this switch; the file of --network knows "
            f"{', '.join(known.address for known in network.hosts)}"
        )
    return host
