"""The switch, one packet at a time: the executable specification.

Plain and slow on purpose. The batch aggregator and the P4 programs do the same, bit for bit; where they differ,
they are wrong. The protocol is SwitchML's (Sapio et al., NSDI 2021) with generations in place of its version bit,
so that a duplicate can never be taken for a new contribution, however late it comes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inagg_wire import header as wire
from inagg_wire.errors import NOTICED, Reason, WireError
from inagg_wire.layout import Kind, Op
from inagg_wire.noise import switch_words
from inagg_wire.payload import pack, unpack
from inagg_wire.reencode import Integers, combine, contribution_integers, result_codes

from ..driver import Address, Binding, Counters, JobCounters


@dataclass(slots=True)
class Slot:
    """What a switch keeps of one slot."""

    tag: int
    """The generation that it serves."""
    seen: int = 0
    """Bitmap of the workers whose contribution is in ``acc``."""
    op: Op = Op.SUM
    acc: Integers | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A datagram to send, and to whom."""

    data: bytes
    to: tuple[Address, ...]


@dataclass(slots=True)
class Model:
    """A switch with any number of slots. Time plays no part: a switch has no time-outs."""

    bindings: dict[int, Binding] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)

    def bind(self, binding: Binding) -> None:
        """Admit a job or its new epoch; clears its slots."""
        self.bindings[binding.job] = binding
        lease = binding.lease
        for slot in range(lease.base, lease.base + lease.slots):
            self.slots[slot] = Slot(lease.first_generation(slot, binding.resume_block))
        counts = self.counters.jobs.setdefault(binding.job, JobCounters([], [], [], [], []))
        for by_rank in (counts.contributions, counts.duplicates, counts.resends, counts.stale, counts.bytes_in):
            by_rank.extend([0] * (len(binding.workers) - len(by_rank)))  # an epoch may have more workers than the last

    def unbind(self, job: int) -> None:
        """Drop the job's further datagrams and forget its counters."""
        self.bindings.pop(job, None)
        self.counters.jobs.pop(job, None)

    def receive(self, data: bytes, source: Address) -> list[Output]:
        """Take one datagram; returns at most one output."""
        self.counters.datagrams_in += 1
        self.counters.bytes_in += len(data)
        try:
            datagram = wire.parse(data)
        except WireError as error:
            return self._drop(error.reason)
        binding, worker, refusal = self._admit(datagram.header, source)
        if refusal is not None or binding is None:
            return self._drop(refusal or Reason.UNKNOWN_JOB, datagram.header, source)
        self.counters.jobs[binding.job].bytes_in[worker] += len(data)
        return self._aggregate(binding, worker, datagram, source)

    def _admit(self, h: wire.Header, source: Address) -> tuple[Binding | None, int, Reason | None]:
        """The binding of a datagram and the worker who sent it, or why it has none. Changes nothing."""
        if h.kind is not Kind.CONTRIBUTION:
            return None, 0, Reason.WRONG_KIND
        binding = self.bindings.get(h.job)
        if binding is None:
            return None, 0, Reason.UNKNOWN_JOB
        if source not in binding.workers:
            return None, 0, Reason.UNKNOWN_SOURCE
        refusals = (
            (Reason.WRONG_TOKEN, h.token != binding.token),
            (Reason.WRONG_FORMAT, h.format is not binding.format.encoding(h.op)),
            (Reason.WRONG_LANES, h.lanes != binding.format.lanes_for(h.op, binding.lanes)),
            (Reason.SLOT_OUTSIDE_LEASE, not binding.lease.contains(h.slot)),
        )
        refusal = next((why for why, refused in refusals if refused), None)
        return binding, binding.workers.index(source), refusal

    def _aggregate(self, binding: Binding, worker: int, datagram: wire.Datagram, source: Address) -> list[Output]:
        h, slot, counts = datagram.header, self.slots[datagram.header.slot], self.counters.jobs[binding.job]
        if h.generation < slot.tag:
            counts.stale[worker] += 1
            return self._drop(Reason.STALE)
        if h.generation > slot.tag:  # lazy reset between generations
            if h.generation != slot.tag + 1 or slot.seen != binding.full:
                return self._drop(Reason.OUTSIDE_WINDOW, h, source)
            slot.tag, slot.seen = h.generation, 0
        before, bit = slot.seen, 1 << worker
        if before and h.op is not slot.op:
            return self._drop(Reason.WRONG_OP, h, source)
        if before & bit:
            if before != binding.full:
                counts.duplicates[worker] += 1
                return self._drop(Reason.DUPLICATE)
            counts.resends[worker] += 1
            return self._send(self._result(binding, h, slot), (source,))
        codes = unpack(h.format, datagram.payload)
        contribution, invalid = contribution_integers(h.op, binding.format, len(binding.workers), codes)
        slot.acc = contribution if slot.acc is None or not before else combine(h.op, slot.acc, contribution)
        slot.seen, slot.op = before | bit, h.op
        counts.contributions[worker] += 1
        counts.invalid_codes += invalid
        if slot.seen != binding.full:
            return []
        counts.results += 1
        return self._send(self._result(binding, h, slot), binding.everyone)

    def _result(self, binding: Binding, h: wire.Header, slot: Slot) -> bytes:
        """The result of a complete slot: a pure function of its sum, seed, slot and generation."""
        assert slot.acc is not None  # complete, so someone has contributed
        noise = switch_words(binding.seed, h.slot, h.generation, h.lanes)
        codes = result_codes(h.op, binding.format, len(binding.workers), slot.acc, noise)
        encoding = binding.result_encoding(h.op)
        head = wire.Header(Kind.RESULT, h.op, encoding, h.lanes, h.job, h.token, h.slot, h.generation)
        return wire.Datagram(head, pack(encoding, codes)).pack()

    def _drop(self, why: Reason, h: wire.Header | None = None, source: Address | None = None) -> list[Output]:
        """Count a datagram that is dropped; tell its sender if `NOTICED` says so."""
        self.counters.drops[why] = self.counters.drops.get(why, 0) + 1
        if h is None or source is None or why not in NOTICED:
            return []
        self.counters.notices += 1
        head = wire.Header(Kind.NOTICE, h.op, h.format, 0, h.job, h.token, h.slot, h.generation, why)
        return self._send(head.pack(), (source,))

    def _send(self, data: bytes, to: tuple[Address, ...]) -> list[Output]:
        self.counters.datagrams_out += len(to)
        self.counters.bytes_out += len(data) * len(to)
        return [Output(data, to)]
