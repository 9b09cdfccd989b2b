"""Entries and counters of the bmv2 program for a leaf of a tree: those of `bmv2_program`, and what is of its parent.

What comes from the parent has a table of its own, built as `binding` is: one entry that fits in everything, and below
it, by priority, entries that leave out one thing after the other, in the reverse of the order of checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from inagg_wire.errors import Reason
from inagg_wire.layout import Kind, Op

from ...binding import Binding, Uplink
from ...driver import DriverError, JobCounters
from .. import entries
from ..counters import Read
from ..entries import BITS, FITS, host_at, leased, ternary_entry
from ..network import Host, Network, number
from ..plane import Cell, Entry, Group, Masked
from . import bmv2_program as flat

PARENT_BITS: Final = {name: bits for name, bits in (*list(BITS.items())[:5], ("kind", 8), *list(BITS.items())[5:])}
"""Bits of the key of the table `parent_results`, in its order."""

PARTIAL_CELLS: Final = 4
"""Cells of a job in the counters ``partials``: by whether they had gone up before, and op."""


def job_entries(binding: Binding, network: Network, row: int, epoch: int) -> tuple[Entry | Group, ...]:
    """See `bmv2_program.job_entries`. Raises `DriverError` if the parent is behind no known port."""
    uplink = binding.uplink
    if uplink is None:
        raise DriverError("a leaf of a tree has a parent")
    parent = host_at(network, uplink.parent[0])
    children = flat.job_entries(binding, network, row, epoch)
    return (_uplink(binding, uplink, parent, row), *_parent_results(binding, uplink, parent, row, epoch), *children)


def _uplink(binding: Binding, uplink: Uplink, parent: Host, row: int) -> Entry:
    """Entry for partial sums: where they go, and as what."""
    data = (
        ("partial_format", int(binding.format.partial(Op.SUM, binding.world))),
        ("slot_delta", uplink.base - binding.lease.base & 0xFFFF_FFFF),
        ("port", parent.port),
        ("mac", parent.mac),
        ("address", number(parent.address)),
        ("udp", uplink.parent[1]),
        ("key_0", uplink.key.k0),
        ("key_1", uplink.key.k1),
    )
    return Entry("uplink", (("row", row),), "set_uplink", data)


def _parent_results(binding: Binding, uplink: Uplink, parent: Host, row: int, epoch: int) -> list[Entry]:
    source: dict[str, int | Masked] = {
        "job": binding.job,
        "ingress_port": parent.port,
        "source": number(parent.address),
        "source_port": uplink.parent[1],
        "token": binding.token,
        "slot": leased(uplink.base, binding.lease.slots),
    }
    found: dict[Entry, None] = {}  # a set in order
    for op in Op:
        result_format = ("result_format", int(binding.result_encoding(op)))
        data = (("row", row), *flat.epoch_data(binding, row, epoch), result_format)
        # An acknowledgement says that the result goes elsewhere, which this program's jobs never ask for.
        elsewhere = entries.refusal("refuse_parent", Reason.WRONG_OWNER)
        for kind, lanes, action in (
            (Kind.RESULT, binding.lanes_up(op), ("bind_parent", data)),
            (Kind.ACK, 0, elsewhere),
        ):
            key = source | {"kind": int(kind), "op": int(op), "format": result_format[1], "lanes": lanes}
            found[ternary_entry("parent_results", PARENT_BITS, FITS, key, action)] = None
            found |= dict.fromkeys(entries.ladder("parent_results", PARENT_BITS, key, "refuse_parent"))
    return list(found)


def _partials(row: int, op: Op, *, again: bool) -> Cell:
    return Cell("partials", row * PARTIAL_CELLS + 2 * again + op - 1)


def job_cells(row: int, workers: int) -> Iterator[Cell]:
    yield from flat.job_cells(row, workers)
    yield from (_partials(row, op, again=again) for again in (False, True) for op in Op)


def job_counters(row: int, workers: int, read: Read) -> JobCounters:
    first, again = (sum(read(_partials(row, op, again=a)).packets for op in Op) for a in (False, True))
    return replace(flat.job_counters(row, workers, read), partials=first, partials_again=again)


def results_sent(row: int, binding: Binding, read: Read) -> tuple[int, int]:
    """Datagrams of results and of partial sums, and their bytes of UDP payload."""
    datagrams = size = 0
    for op in Op:
        down = read(flat.sent(row, op)).packets
        up = sum(read(_partials(row, op, again=again)).packets for again in (False, True))
        datagrams += down + up
        size += down * binding.result_bytes(op) + up * binding.partial_bytes(op)
    return datagrams, size
