"""The entries that make a P4 switch serve a job, and those that make it a switch at all, as data.

The binding table alone decides what a datagram may do. For each worker and op it has one entry that fits in everything,
and below it, by priority, entries that leave out one thing after the other, in the reverse of the order in which
`inagg_wire.errors.Reason` says that things are checked: so the entry that hits names the first thing that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from inagg_wire.errors import Reason
from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.layout import Op

from ..binding import Binding
from ..driver import DriverError
from .network import Host, Network, number
from .plane import Entry, Group, Masked, Replica

FLOOD_GROUP: Final = 1
"""The multicast group of frames whose destination is not known."""

ROW_WORKERS: Final = CHILDREN_MAX
"""A job's worker counters stand at row * ROW_WORKERS + rank."""

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
"""The key of the binding table, in its order."""

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


def base_entries(network: Network) -> Iterator[Entry | Group]:
    """Entries and groups of a switch before any job: its own address, where its hosts are, and the group of all
    ports."""
    yield Entry(
        "local",
        (("address", number(network.address)),),
        "own",
        (("mac", network.mac), ("port", network.data_port)),
    )
    yield Entry("to_switch", (("destination", network.mac),), "NoAction")
    for host in network.hosts:
        yield Entry("forward", (("destination", host.mac),), "to_port", (("port", host.port),))
    yield Group(FLOOD_GROUP, tuple(Replica(port, 0) for port in sorted(network.ports)))


def job_entries(binding: Binding, network: Network, row: int, epoch: int) -> tuple[Entry | Group, ...]:
    """All that one epoch of a job needs, in the order in which it is to be written: nothing is accepted before its
    results can be sent.

    ``row``: the job's part of arrays of counters. ``epoch``: a number that no other epoch had since the program was
    loaded; slots that hold another one count as cleared. Raises `DriverError` if a worker is behind no known port.
    """
    hosts = tuple(host_at(network, address) for address, _ in binding.children)
    workers = tuple(zip(hosts, (port for _, port in binding.children), strict=True))
    first = row * ROW_WORKERS
    group = FLOOD_GROUP + 1 + row
    replicas = tuple(Replica(host.port, first + rank + 1) for rank, host in enumerate(hosts))
    entries: list[Entry | Group] = [
        Entry(
            "copies",
            (("copy", replica.instance),),
            "readdress",
            (("mac", host.mac), ("address", number(host.address)), ("port", port)),
        )
        for replica, (host, port) in zip(replicas, workers, strict=True)
    ]
    entries.append(Group(group, replicas))
    stranger = refusal("refuse", Reason.UNKNOWN_SOURCE)
    entries.append(ternary_entry("binding", BITS, STRANGER, {"job": binding.job}, stranger))
    fitting = []
    for rank, (host, port) in enumerate(workers):
        key = {"job": binding.job, "ingress_port": host.port, "source": number(host.address), "source_port": port}
        refused: dict[Entry, None] = {}  # a set in order: SUM and MAX share what leaves out the op
        for op in Op:
            whole = key | _key_of_op(binding, op)
            member = (
                ("row", row), ("worker", first + rank), ("bit", 1 << rank), ("full", binding.full),
                ("owners", binding.full if binding.owners else 0),
            )  # fmt: skip
            takes = ("member", (*member, *_numbers(binding, op, epoch, group)))
            fits, *misses = ladder("binding", BITS, whole, takes, "refuse")
            fitting.append(fits)
            refused |= dict.fromkeys(misses)
        entries += refused
    return (*entries, *fitting)


def _key_of_op(binding: Binding, op: Op) -> dict[str, int | Masked]:
    lease = binding.lease
    return {
        "token": binding.token,
        "op": int(op),
        "format": int(binding.encoding(op)),
        "lanes": binding.lanes_for(op),
        # Leases are aligned powers of two, so to lie in one is to have its upper bits.
        "slot": Masked(lease.base, (1 << BITS["slot"]) - lease.slots),
    }


def _numbers(binding: Binding, op: Op, epoch: int, group: int) -> tuple[tuple[str, int], ...]:
    """Parameters for the arithmetic of ``op``."""
    fmt, n = binding.format, binding.world
    shift = fmt.result_shift(n) - binding.unit_shift if binding.uplink is None else fmt.partial_shift(n)
    return (
        ("epoch", epoch),
        ("generation", binding.lease.generation(binding.resume_block)),
        ("first_slot", binding.lease.slot(binding.resume_block)),
        ("seed", binding.seed),
        ("levels", binding.levels(op)),
        ("shift", shift if op is Op.SUM else 0),
        ("result_format", int(binding.result_encoding(op))),
        ("group", group),
    )


def ladder(
    table: str, bits_of: Mapping[str, int], whole: Mapping[str, int | Masked], takes: Action, refuse: str
) -> Iterator[Entry]:
    """The entry for what fits in all of ``whole``, which ``takes`` it, and then those below it, which ``refuse``."""
    yield ternary_entry(table, bits_of, FITS, whole, takes)
    for priority, why, missing in MISSES:
        left = {name: value for name, value in whole.items() if name not in missing}
        yield ternary_entry(table, bits_of, priority, left, refusal(refuse, why))


def refusal(action: str, why: Reason) -> Action:
    """``action`` with the reason that it counts, and tells the sender."""
    return action, (("reason", int(why)),)


def ternary_entry(
    table: str, bits_of: Mapping[str, int], priority: int, key: Mapping[str, int | Masked], action: Action
) -> Entry:
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
