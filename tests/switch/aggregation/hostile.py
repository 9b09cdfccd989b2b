"""Datagrams that a switch must refuse: one at a time, or in batches by the hundred thousand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from inagg_switch.binding import Address, Binding
from inagg_wire import batch
from inagg_wire.formats import FORMATS
from inagg_wire.layout import FIELDS, HEADER_BYTES, SLOT_COUNT_MAX, Op

from .network import Packet
from .world import STRANGER, make_contribution, random_codes

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]
OFFSET = {f.name: (f.offset, f.size) for f in FIELDS}


def put(data: bytes, name: str, value: int) -> bytes:
    """``data`` with another value in one header field."""
    at, size = OFFSET[name]
    return data[:at] + (value & ((1 << 8 * size) - 1)).to_bytes(size, "big") + data[at + size :]


def valid(rng: np.random.Generator, binding: Binding, blocks: int) -> bytes:
    """A valid contribution to one of the job's first ``blocks`` blocks, with any codes; and with an owner, mostly the
    same for a block, where it can have one."""
    op = Op.SUM if rng.random() < 0.8 else Op.MAX
    encoding, lanes = binding.format.encoding(op), binding.format.lanes_for(op, binding.lanes)
    codes = random_codes(rng, encoding, binding.format, len(binding.children), lanes)
    block, owner = int(rng.integers(blocks)), 0
    if binding.owners and op is Op.SUM:
        owner = (block + (rng.random() < 0.1)) % (binding.owners + 1)
    return make_contribution(binding, block, codes, op, owner=owner)


def refused(rng: np.random.Generator, bindings: Sequence[Binding], blocks: int) -> Packet:
    """A datagram that no switch with these ``bindings`` may use, and its source."""
    target = bindings[int(rng.integers(len(bindings)))]
    other = bindings[int(rng.integers(len(bindings)))]
    data, source = valid(rng, target, blocks), target.children[int(rng.integers(len(target.children)))]
    bad_values = {
        "magic": rng.integers(0x494E),
        "version": 2 + rng.integers(254),
        "kind": rng.choice([0, 2, 3, 4, 5, 255]),
        "op": rng.choice([0, 3, 255]),
        "format": rng.choice([0, 10, 11, 255]),
        "lanes": rng.integers(1 << 16) // 8 * 8 + rng.integers(1, 8),
        "job": 60_000 + rng.integers(5000),
        "owner": rng.integers(33, 1 << 16),
        "token": target.token ^ int(rng.integers(1, 1 << 32)),
        "slot": rng.integers(SLOT_COUNT_MAX, 1 << 32),
        "generation": rng.choice([0, 1 << 31, (1 << 32) - 1]),
    }
    kinds = ["noise", "stranger", "cut", "longer", "slot outside", "other job", *bad_values]
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind == "noise":
        return rng.bytes(int(rng.integers(1, 200))), source
    if kind == "stranger":
        return data, STRANGER
    if kind == "cut":
        return data[: int(rng.integers(1, len(data)))], source
    if kind == "longer":
        return data + rng.bytes(int(rng.integers(1, 100))), source
    if kind == "slot outside":
        return put(data, "slot", target.lease.base + target.lease.slots + int(rng.integers(1000))), source
    if kind == "other job" and target is not other:
        return data, next(w for w in other.children if w not in target.children)
    if kind == "other job":
        return put(data, "token", target.token + 1), source
    return put(data, kind, int(bad_values[kind])), source


class Fuzz:
    """Batches of hostile datagrams.

    From ``attackers`` (bound to ``own``, or to nothing) comes anything, valid contributions to ``own`` among it. From
    the workers of ``victims`` comes nothing with the right token, so nothing that may change their job.
    """

    def __init__(self, seed: int, own: Binding, victims: Sequence[Binding]) -> None:
        self.rng = np.random.default_rng(seed)
        self.own, self.victims = own, list(victims)
        self.attackers = (*own.children, STRANGER)
        self._valid = {b.job: [self._template(b, i) for i in range(24)] for b in (own, *victims)}

    def _template(self, binding: Binding, i: int) -> Bytes:
        """A datagram that fits the binding, or, for some i, one of a job that differs only in lanes or format."""
        if i % 6 == 0:
            binding = replace(binding, lanes=binding.lanes + 8)
        elif i % 6 == 1:
            binding = replace(binding, format=FORMATS["dith8"])
        return np.frombuffer(valid(self.rng, binding, 4 * binding.lease.slots), np.uint8)

    def batch(self) -> tuple[Bytes, int, Address]:
        """Data, the size of each datagram, and their source."""
        rng = self.rng
        count, target = int(rng.integers(1, 65)), self._any([self.own, *self.victims])
        template = self._any(self._valid[target.job])
        victim = rng.random() < 0.3
        source = self._any(self._any(self.victims).children) if victim else self._any(self.attackers)
        kind = rng.integers(7)
        if kind == 0:  # random bytes, some of which start well
            size = int(rng.integers(1, 300)) if rng.random() < 0.95 else int(rng.integers(1, 9000))
            data = rng.integers(0, 256, count * size, np.uint8)
            start = min(size, int(rng.integers(0, 7)))
            batch.rows(data, size)[:, :start] = template[:start]
            return data, size, source
        data, size = np.tile(template, count), template.size
        rows = batch.rows(data, size)
        if kind == 1:  # any value in one field
            at, width = OFFSET[str(self._any(list(OFFSET)))]
            rows[:, at : at + width] = rng.integers(0, 256, (count, width), np.uint8)
        elif kind == 2:  # small values in the bytes of one field: enumerations, slots and generations nearby
            at, width = OFFSET[str(self._any(list(OFFSET)))]
            rows[:, at : at + width - 1] = 0
            rows[:, at + width - 1] = rng.integers(0, 16, count, np.uint8)
        elif kind == 3:  # flipped bits anywhere
            for _ in range(int(rng.integers(1, 4))):
                flipped = np.uint8(1) << rng.integers(0, 8, count, np.uint8)
                rows[np.arange(count), rng.integers(0, size, count)] ^= flipped
        elif kind == 4:  # cut, or too long
            size = int(rng.integers(1, template.size + 50))
            wide = np.zeros((count, max(size, template.size)), np.uint8)
            wide[:, : template.size] = template
            data = np.ascontiguousarray(wide[:, :size]).reshape(-1)
        else:  # valid, slots and generations nearby
            h = batch.headers(data, size)
            h["slot"] = np.maximum(0, target.lease.base + rng.integers(-2, target.lease.slots + 2, count))
            h["generation"] = rng.integers(1, 4, count)
        if victim and size >= HEADER_BYTES:
            h = batch.headers(data, size)
            tokens = h["token"].astype(np.uint32)
            clash = np.isin(tokens, [b.token for b in self.victims])
            h["token"] = np.where(clash, tokens ^ np.uint32(0x5A5A5A5A), tokens)
        return data, size, source

    def _any(self, of: Sequence[T]) -> T:
        return of[int(self.rng.integers(len(of)))]
