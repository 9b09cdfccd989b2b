"""The entries with which a leaf of a tree serves a job: those of `entries`, and what it must know of its parent.

What comes from the parent has a table of its own, built as `binding` is: one entry that fits in everything, and below
it, by priority, entries that leave out one thing after the other, in the reverse of the order of checks.
"""

from __future__ import annotations

from typing import Final

from inagg_wire.errors import Reason
from inagg_wire.layout import Kind, Op

from ..binding import Binding, Uplink
from ..driver import DriverError
from . import entries
from .entries import BITS, host_at
from .network import Host, Network, number
from .plane import Entry, Group, Masked

RESULT_BITS: Final = {name: bits for name, bits in (*list(BITS.items())[:5], ("kind", 8), *list(BITS.items())[5:])}
"""The key of the table `results_below`, in its order."""


def job_entries(binding: Binding, network: Network, row: int, epoch: int) -> tuple[Entry | Group, ...]:
    """See `entries.job_entries`. Raises `DriverError` if the parent is behind no known port."""
    up = binding.uplink
    if up is None:
        raise DriverError("a leaf of a tree has a parent")
    parent = host_at(network, up.parent[0])
    flat = entries.job_entries(binding, network, row, epoch)
    return (_above(binding, up, parent, row), *_results(binding, up, parent, row, epoch), *flat)


def _above(binding: Binding, up: Uplink, parent: Host, row: int) -> Entry:
    """Entry for partial sums: where they go, and as what."""
    data = (
        ("format", int(binding.format.partial(Op.SUM, binding.world))),
        ("delta", up.base - binding.lease.base & 0xFFFF_FFFF),
        ("port", parent.port),
        ("mac", parent.mac),
        ("address", number(parent.address)),
        ("udp", up.parent[1]),
        ("key_0", up.key.k0),
        ("key_1", up.key.k1),
    )
    return Entry("above", (("row", row),), "parent", data)


def _results(binding: Binding, up: Uplink, parent: Host, row: int, epoch: int) -> list[Entry]:
    source: dict[str, int | Masked] = {
        "job": binding.job,
        "ingress_port": parent.port,
        "source": number(parent.address),
        "source_port": up.parent[1],
    }
    slots = Masked(up.base, (1 << BITS["slot"]) - binding.lease.slots)
    found: dict[Entry, None] = {}  # a set in order
    for op in Op:
        result_format = int(binding.result_encoding(op))
        data = (
            ("row", row),
            ("full", binding.full),
            ("epoch", epoch),
            ("generation", binding.lease.generation(binding.resume_block)),
            ("first_slot", binding.lease.slot(binding.resume_block)),
            ("result_format", result_format),
            ("group", entries.FLOOD_GROUP + 1 + row),
        )
        for kind, lanes in ((Kind.RESULT, binding.lanes_up(op)), (Kind.ACK, 0)):
            whole = source | {
                "token": binding.token,
                "kind": int(kind),
                "op": int(op),
                "format": result_format,
                "lanes": lanes,
                "slot": slots,
            }
            # An acknowledgement says that the result goes elsewhere, which this program's jobs never ask for.
            elsewhere = entries.refusal("refuse_result", Reason.WRONG_OWNER)
            takes = ("result", data) if kind is Kind.RESULT else elsewhere
            found |= dict.fromkeys(entries.ladder("results_below", RESULT_BITS, whole, takes, "refuse_result"))
    return list(found)
