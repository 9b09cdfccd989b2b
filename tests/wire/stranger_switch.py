"""A switch's side of the protocol, written from the text of protos/README.md alone, like `stranger_client`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from struct import pack as pack_integers
from typing import Any

from . import stranger_client as client
from .stranger_client import ACK, CONTRIBUTION, MAX, NOTICE, RESULT, SCALE8, SUM, Header, JobFormat

Address = tuple[str, int]
NOTICED = {35, 36, 37, 38, 40, 42}


def noise(seed: int, slot: int, generation: int, lane: int) -> int:
    return zlib.crc32(pack_integers(">IIIH", seed, slot, generation, lane // 4))


def integers(fmt: JobFormat, op: int, codes: Sequence[int]) -> tuple[list[int], int]:
    """The integers of a contribution, and how many of its codes are invalid."""
    if op == MAX:
        return list(codes), 0
    highest = fmt.top.bit_length() if fmt.natural else fmt.top
    found = [client.integer(fmt.up, code, highest) for code in codes]
    return [i or 0 for i in found], found.count(None)


def result_code(fmt: JobFormat, op: int, v: int, r: int) -> int:
    """The code of one complete sum or maximum."""
    if op == MAX:
        return v
    bits, z = client.BITS[fmt.down], fmt.result_shift
    if fmt.down in (client.NAT8, client.NAT4):
        k = max(abs(v).bit_length() - 1, z)
        w = abs(v) + (r & (1 << k) - 1)
        level = 0 if w < 1 << z else w.bit_length() - 1 - z + 1
        return level | (1 << (bits - 1) if v < 0 and level else 0)
    if fmt.down == client.DITH8:
        w = (abs(v) + (r & (1 << z) - 1)) >> z
        v = -w if v < 0 else w
    return v & (1 << bits) - 1


def result_codes(fmt: JobFormat, op: int, sums: Sequence[int], seed: int, slot: int, generation: int) -> list[int]:
    return [result_code(fmt, op, v, noise(seed, slot, generation, lane)) for lane, v in enumerate(sums)]


def partial_noise(r: int, k0: int, k1: int) -> int:
    """Of a lane, from what the root's would be."""
    m32 = client.M32
    x = r + k0 & m32
    x = (x ^ (x >> 16)) * 0x7FEB352D & m32
    x = ((x ^ (x >> 15)) + k1) * 0x846CA68B & m32
    return x ^ (x >> 16)


def partial_codes(
    name: str, n: int, sums: Sequence[int], seed: int, slot: int, generation: int, first_rank: int, levels: int
) -> list[int]:
    """What a switch that rounds its sums sends up."""
    fmt = client.job_format(name, n)
    down = replace(fmt, result_shift=0 if fmt.up == client.NAT8 else client.ceil_log2(n))
    key = client.key(seed, first_rank, levels)
    words = [partial_noise(noise(seed, slot, generation, lane), *key) for lane in range(len(sums))]
    return [result_code(down, SUM, v, x) for v, x in zip(sums, words, strict=True)]


@dataclass
class Binding:
    job: int
    token: int
    format: JobFormat
    lanes: int
    base: int
    slots: int
    seed: int
    workers: list[Address]
    scatters: bool


@dataclass
class Slot:
    tag: int
    seen: set[int] = field(default_factory=set)
    op: int = SUM
    accumulators: list[int] = field(default_factory=list)


@dataclass
class Switch:
    """``receive`` returns the outcome, the reason (0 if none), what is sent to whom, and the invalid codes."""

    bindings: dict[int, Binding] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)

    def bind(self, bound: dict[str, Any]) -> None:
        lease, workers = bound["lease"], [(host, port) for host, port in bound["workers"]]
        fmt = client.job_format(bound["format"], len(workers))
        self.bindings[bound["job"]] = Binding(
            bound["job"],
            bound["token"],
            fmt,
            bound["lanes"],
            lease["base"],
            lease["slots"],
            bound["seed"],
            workers,
            bound["scatters"],
        )
        begun, first = divmod(bound["resume_block"], lease["slots"])
        for i in range(lease["slots"]):
            self.slots[lease["base"] + i] = Slot(1 + begun % 0x7FFFFFFF + (i < first))

    def receive(self, data: bytes, source: Address) -> tuple[str, int, list[tuple[list[Address], bytes]], int]:
        parsed = client.parse(data)
        if isinstance(parsed, int):
            return "drop", parsed, [], 0
        h, payload = parsed
        if reason := self.refusal(h, source):
            return self.drop(reason, h, source)
        b, slot = self.bindings[h.job], self.slots[h.slot]
        worker, everybody = b.workers.index(source), set(range(len(b.workers)))
        if h.generation < slot.tag:
            return self.drop(39, h, source)
        if h.generation > slot.tag:
            if h.generation != slot.tag + 1 or slot.seen != everybody:
                return self.drop(42, h, source)
            slot.tag, slot.seen = h.generation, set()
        if slot.seen and h.op != slot.op:
            return self.drop(40, h, source)
        if worker in slot.seen:
            if slot.seen != everybody:
                return self.drop(41, h, source)
            again = self.ack(b, h) if h.owner and h.owner != worker + 1 else self.result(b, h, slot)
            return "resend", 0, [([source], again)], 0
        added, invalid = integers(b.format, h.op, client.unpack(h.format, payload))
        if not slot.seen:
            slot.accumulators, slot.op = added, h.op
        elif h.op == SUM:
            slot.accumulators = [a + b for a, b in zip(slot.accumulators, added, strict=True)]
        else:
            slot.accumulators = [max(a, b) for a, b in zip(slot.accumulators, added, strict=True)]
        slot.seen.add(worker)
        if slot.seen != everybody:
            return "absorbed", 0, [], invalid
        if not h.owner:
            return "result", 0, [(b.workers, self.result(b, h, slot))], invalid
        owner = b.workers[h.owner - 1]
        others = [address for address in b.workers if address != owner]
        sent = [([owner], self.result(b, h, slot)), (others, self.ack(b, h))]
        return "result", 0, [(to, data) for to, data in sent if to], invalid

    def refusal(self, h: Header, source: Address) -> int:
        if h.kind != CONTRIBUTION:
            return 32
        if h.job not in self.bindings:
            return 33
        b = self.bindings[h.job]
        if source not in b.workers:
            return 34
        if h.token != b.token:
            return 35
        if h.format != (b.format.up if h.op == SUM else SCALE8):
            return 36
        if h.lanes != (b.lanes if h.op == SUM else client.scale_lanes(b.format, b.lanes)):
            return 37
        if not b.base <= h.slot < b.base + b.slots:
            return 38
        return 43 if h.owner > (len(b.workers) if b.scatters else 0) else 0

    def drop(self, reason: int, h: Header, source: Address) -> tuple[str, int, list[tuple[list[Address], bytes]], int]:
        if reason not in NOTICED:
            return "drop", reason, [], 0
        notice = replace(h, kind=NOTICE, lanes=0, owner=reason)
        return "drop", reason, [([source], client.build(notice, b""))], 0

    def ack(self, b: Binding, h: Header) -> bytes:
        return client.build(replace(h, kind=ACK, format=b.format.down, lanes=0), b"")

    def result(self, b: Binding, h: Header, slot: Slot) -> bytes:
        down = b.format.down if h.op == SUM else SCALE8
        codes = result_codes(b.format, h.op, slot.accumulators, b.seed, h.slot, h.generation)
        return client.build(replace(h, kind=RESULT, format=down), client.pack(down, codes))
