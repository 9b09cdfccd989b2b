"""What each result must be, computed from what the workers sent and from nothing that the switch did.

Levels come from tables that are written down here in plain Python, sums are 64-bit integers; only the step from
the sum to the codes is the wire package's reference (`result_codes`), which has golden vectors of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from inagg_switch.aggregation.model import Output
from inagg_switch.binding import Binding
from inagg_wire import header as wire
from inagg_wire.layout import LANE_BITS, Encoding, Kind, Op
from inagg_wire.noise import switch_words
from inagg_wire.payload import Codes, pack
from inagg_wire.reencode import result_codes

from .world import simple_codes


@cache
def level_table(encoding: Encoding, top: int) -> npt.NDArray[np.int64]:
    """The integer of every code of at most 8 bits. ``top``: as `JobFormat.levels`."""
    bits = LANE_BITS[encoding]
    table = []
    for code in range(1 << bits):
        if encoding is Encoding.SCALE8:
            table.append(code)
        elif encoding in (Encoding.NAT8, Encoding.NAT4):
            negative, level = divmod(code, 1 << (bits - 1))
            magnitude = 2 ** (level - 1) if 1 <= level <= top else 0
            table.append(-magnitude if negative else magnitude)
        else:
            value = code if code < 1 << (bits - 1) else code - (1 << bits)
            table.append(value if abs(value) <= top else 0)
    return np.array(table, np.int64)


def levels(encoding: Encoding, codes: Codes, top: int) -> npt.NDArray[np.int64]:
    """The integer of each code."""
    if encoding is Encoding.FIX32:
        value = codes.view(np.int32).astype(np.int64)
        return np.where(np.abs(value) > top, 0, value)
    return level_table(encoding, top)[codes]


@dataclass(slots=True)
class Oracle:
    """Watches one job. ``sent[block][rank]``: the codes of that rank's contribution, which never change."""

    sent: dict[int, dict[int, tuple[Op, Codes]]] = field(default_factory=dict)
    results: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often the result of a (token, block) was multicast."""
    resends: Counter[int] = field(default_factory=Counter)
    _expected: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def contributed(self, block: int, rank: int, op: Op, codes: Codes) -> None:
        """``rank`` sends ``block`` for the first time."""
        assert rank not in self.sent.setdefault(block, {})
        self.sent[block][rank] = op, codes

    def expected(self, binding: Binding, block: int) -> bytes:
        """The result of ``block``."""
        n, fmt, lease = len(binding.children), binding.format, binding.lease
        contributions = self.sent[block]
        assert sorted(contributions) == list(range(n)), "a result before all workers have sent"
        (op,) = {op for op, _ in contributions.values()}
        stack = np.stack([levels(fmt.encoding(op), codes, fmt.levels(n)) for _, codes in contributions.values()])
        total = stack.sum(axis=0) if op is Op.SUM else stack.max(axis=0)
        slot, generation, lanes = lease.slot(block), lease.generation(block), fmt.lanes_for(op, binding.lanes)
        codes = result_codes(op, fmt, n, total, switch_words(binding.seed, slot, generation, lanes))
        encoding = fmt.result_encoding(op, n)
        head = wire.Header(Kind.RESULT, op, encoding, lanes, binding.job, binding.token, slot, generation)
        return wire.Datagram(head, pack(encoding, codes)).pack()

    def check(self, binding: Binding, output: Output, near: int) -> None:
        """A result that the switch sends: multicast once, in rank order, and after that to single workers."""
        h = wire.parse(output.data).header
        assert (h.kind, h.job, h.token) == (Kind.RESULT, binding.job, binding.token)
        block = binding.lease.block_at(h.slot, h.generation, near)
        if (h.token, block) not in self._expected:
            self._expected[h.token, block] = self.expected(binding, block)
        assert output.data == self._expected[h.token, block], f"job {binding.job}, block {block}: not the exact sum"
        if self.results[binding.token, block] == 0:
            assert output.to == binding.children
            self.results[binding.token, block] += 1
        else:
            assert len(output.to) == 1
            assert output.to[0] in binding.children
            self.resends[block] += 1


def result_of(binding: Binding, block: int, op: Op = Op.SUM) -> bytes:
    """The exact result of `block_of`."""
    oracle = Oracle()
    for rank in range(len(binding.children)):
        oracle.contributed(block, rank, op, simple_codes(binding, rank, block, op))
    return oracle.expected(binding, block)
