"""Jobs for tests of the switch: bindings with short names, contributions, and codes worth sending."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from inagg_switch.binding import Address, Binding
from inagg_wire import header as wire
from inagg_wire.errors import Reason
from inagg_wire.formats import EXACT, INTEGER_MAX, JobFormat, job_format
from inagg_wire.layout import LANE_BITS, Encoding, Kind, Op
from inagg_wire.payload import Codes, pack
from inagg_wire.slots import Lease

STRANGER: Final = ("198.51.100.7", 7)
"""An address (RFC 5737) that no job here ever binds."""


def addresses(n: int, job: int = 1) -> tuple[Address, ...]:
    """n worker addresses; those of different jobs differ."""
    return tuple((f"10.0.{job % 256}.{rank + 1}", 5000 + job) for rank in range(n))


def make_binding(
    job: int = 1,
    fmt: str = "nat8",
    n: int = 2,
    *,
    lanes: int = 32,
    base: int = 0,
    slots: int = 4,
    token: int = 0xC0FFEE01,
    seed: int = 0x5EED5EED,
    children: tuple[Address, ...] | None = None,
    resume_block: int = 0,
    scatters: bool = False,
) -> Binding:
    """A binding with a default for everything."""
    everyone = children or addresses(n, job)
    return Binding(job, token, job_format(fmt), lanes, Lease(base, slots), seed, everyone, resume_block, None, scatters)


def make_contribution(binding: Binding, block: int, codes: Codes, op: Op = Op.SUM, **other: Any) -> bytes:
    """The datagram for ``block``; ``other`` replaces header fields."""
    lease = binding.lease
    fields: dict[str, Any] = {
        "kind": Kind.CONTRIBUTION,
        "op": op,
        "format": binding.encoding(op),
        "lanes": binding.lanes_for(op),
        "job": binding.job,
        "token": binding.token,
        "slot": lease.slot(block),
        "generation": lease.generation(block),
    }
    head = wire.Header(**(fields | other))
    return wire.Datagram(head, pack(head.format, codes)).pack()


def simple_codes(binding: Binding, rank: int, block: int, op: Op = Op.SUM) -> Codes:
    """Valid codes that differ between ranks, blocks and lanes: small levels, both signs."""
    lanes = binding.format.lanes_for(op, binding.lanes)
    value = (np.arange(lanes) * 7 + rank * 3 + block * 5) % (2 if op is Op.SUM else 200)
    return value.astype(np.uint32)


def simple_contribution(binding: Binding, rank: int, block: int, op: Op = Op.SUM, **other: Any) -> bytes:
    """`make_contribution` with `simple_codes`."""
    return make_contribution(binding, block, simple_codes(binding, rank, block, op), op, **other)


def block_of(binding: Binding, block: int, op: Op = Op.SUM) -> list[bytes]:
    """The contributions of all ranks to ``block``."""
    return [simple_contribution(binding, rank, block, op) for rank in range(len(binding.children))]


def notice(binding: Binding, contribution: bytes, why: Reason) -> bytes:
    """The error notice that answers ``contribution``."""
    h = wire.parse(contribution).header
    return wire.Header(Kind.NOTICE, h.op, h.format, 0, h.job, h.token, h.slot, h.generation, why).pack()


def top_code(fmt: JobFormat, n: int, *, negative: bool) -> int:
    """The code of the top level with a sign."""
    bits = LANE_BITS[fmt.up]
    if fmt.up in (Encoding.NAT8, Encoding.NAT4):
        return fmt.levels(n) | negative << (bits - 1)
    return (-fmt.top(n) if negative else fmt.top(n)) & ((1 << bits) - 1)


def random_codes(rng: np.random.Generator, encoding: Encoding, fmt: JobFormat, n: int, lanes: int) -> Codes:
    """Codes of one block, of a kind that is drawn too: valid ones, all top, zeros with signs, or just any bits."""
    bits = LANE_BITS[encoding]
    kind = rng.integers(8)
    if encoding is Encoding.SCALE8 or kind == 0:
        return rng.integers(0, 1 << bits, lanes, np.uint64).astype(np.uint32)
    if kind == 1:
        return np.full(lanes, top_code(fmt, n, negative=False), np.uint32)
    if kind == 2:
        return np.full(lanes, top_code(fmt, n, negative=True), np.uint32)
    if kind == 3 and encoding in (Encoding.NAT8, Encoding.NAT4):
        return rng.integers(0, 2, lanes).astype(np.uint32) << np.uint32(bits - 1)
    if encoding in (Encoding.NAT8, Encoding.NAT4):
        level = rng.integers(0, fmt.levels(n) + 1, lanes)
        return (level | rng.integers(0, 2, lanes) << (bits - 1)).astype(np.uint32)
    top = INTEGER_MAX[encoding] if encoding in EXACT and fmt.up is not encoding else fmt.top(n)
    return (rng.integers(-top, top + 1, lanes) & ((1 << bits) - 1)).astype(np.uint32)
