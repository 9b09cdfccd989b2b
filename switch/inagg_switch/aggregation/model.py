"""The switch, one packet at a time: the executable specification.

Plain and slow on purpose. The batch aggregator and the P4 programs do the same, bit for bit; where they differ,
they are wrong. The protocol is SwitchML's (Sapio et al., NSDI 2021) with generations in place of its version bit,
so that a duplicate can never be taken for a new contribution, however late it comes.

A switch with a parent sends the sum of its children up, as a contribution like any other, and hands down what comes
back. So it is one child of its parent, and the proof that slots can be used again (`inagg_wire.slots`) holds on every
level: it sends block b + 2P up only when all its children have sent it, so they have the result of b + P, so every
worker has sent b + P, so every worker has the result of b.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inagg_wire import header as wire
from inagg_wire.errors import NOTICED, Reason, WireError
from inagg_wire.layout import Kind, Op
from inagg_wire.noise import partial_words, switch_words
from inagg_wire.payload import pack, unpack
from inagg_wire.reencode import Integers, combine, integers, partial_codes, result_codes

from ..binding import Address, Binding, Uplink
from ..driver import BY_RANK, Counters, JobCounters


@dataclass(slots=True)
class Slot:
    """State of one slot."""

    tag: int
    """The generation that it serves."""
    seen: int = 0
    """Bitmap of the workers whose contribution is in ``acc``."""
    op: Op = Op.SUM
    acc: Integers | None = None
    here: dict[int, bytes] = field(default_factory=dict)
    """Payload of each part of the result that the parent has sent."""
    bare: int = 0
    """Bitmap of the parts that the parent has acknowledged, as their result goes to a rank elsewhere."""
    asked: int = 0
    """Bitmap of the children who have repeated their contribution since the sum went up to the parent last."""


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
            self.slots[slot] = Slot(lease.first_generation(slot, binding.first_part))
        counts = self.counters.jobs.setdefault(binding.job, JobCounters([], [], [], [], []))
        for name in BY_RANK:
            by_rank = getattr(counts, name)
            by_rank.extend([0] * (len(binding.children) - len(by_rank)))  # an epoch may have more than the last

    def unbind(self, job: int) -> None:
        """Drop the job's further datagrams and forget its counters."""
        self.bindings.pop(job, None)
        self.counters.jobs.pop(job, None)

    def receive(self, data: bytes, source: Address) -> list[Output]:
        """Take one datagram; returns what it causes."""
        self.counters.datagrams_in += 1
        self.counters.bytes_in += len(data)
        try:
            datagram = wire.parse(data)
        except WireError as error:
            return self._drop(error.reason)
        h = datagram.header
        binding = self.bindings.get(h.job)
        down = h.kind in (Kind.RESULT, Kind.ACK)
        if binding is not None and down and binding.uplink is not None and source == binding.uplink.parent:
            return self._take_result(binding, binding.uplink, datagram)
        child, refusal = self._admit(binding, h, source)
        if refusal is not None or binding is None:
            return self._drop(refusal or Reason.UNKNOWN_JOB, h, source)
        self.counters.jobs[binding.job].bytes_in[child] += len(data)
        return self._aggregate(binding, child, datagram, source)

    def _admit(self, binding: Binding | None, h: wire.Header, source: Address) -> tuple[int, Reason | None]:
        """The child that has sent a datagram, or why it is none of ``binding``'s. Changes nothing."""
        if h.kind is not Kind.CONTRIBUTION:
            return 0, Reason.WRONG_KIND
        if binding is None:
            return 0, Reason.UNKNOWN_JOB
        if source not in binding.children:
            return 0, Reason.UNKNOWN_SOURCE
        refusals = (
            (Reason.WRONG_TOKEN, h.token != binding.token),
            (Reason.WRONG_FORMAT, h.format is not binding.encoding(h.op)),
            (Reason.WRONG_LANES, h.lanes != binding.lanes_for(h.op)),
            (Reason.SLOT_OUTSIDE_LEASE, not binding.lease.contains(h.slot)),
            (Reason.WRONG_OWNER, h.owner > binding.owners),
        )
        return binding.children.index(source), next((why for why, refused in refusals if refused), None)

    def _aggregate(self, binding: Binding, child: int, datagram: wire.Datagram, source: Address) -> list[Output]:
        h, slot, counts = datagram.header, self.slots[datagram.header.slot], self.counters.jobs[binding.job]
        if h.generation < slot.tag:
            counts.stale[child] += 1
            return self._drop(Reason.STALE)
        if h.generation > slot.tag:  # lazy reset between generations
            if h.generation != slot.tag + 1 or not self._is_done(binding, slot):
                return self._drop(Reason.OUTSIDE_WINDOW, h, source)
            slot.tag, slot.seen, slot.here, slot.bare, slot.asked = h.generation, 0, {}, 0, 0
        before, bit = slot.seen, 1 << child
        if before and h.op is not slot.op:
            return self._drop(Reason.WRONG_OP, h, source)
        if before & bit:
            its_own = h.owner == 0 or binding.child_of(h.owner) == child
            if self._is_done(binding, slot) and not (its_own and slot.bare):
                counts.resends[child] += 1
                answer = self._result if its_own else self._ack
                return self._send(answer(binding, h.slot, h.owner), (source,))
            counts.duplicates[child] += 1
            self._drop(Reason.DUPLICATE)
            return self._send_up_again(binding, h, bit) if before == binding.full else []
        codes = unpack(h.format, datagram.payload)
        contribution, invalid = integers(h.format, codes, binding.levels(h.op))
        slot.acc = contribution if slot.acc is None or not before else combine(h.op, slot.acc, contribution)
        slot.seen, slot.op = before | bit, h.op
        counts.contributions[child] += 1
        counts.invalid_codes += invalid
        if slot.seen != binding.full:
            return []
        if binding.uplink is not None:
            return self._send_up(binding, binding.uplink, h, again=False)
        counts.results += 1
        return self._send_down(binding, h.slot, h.owner)

    def _send_down(self, binding: Binding, number: int, owner: int) -> list[Output]:
        """The result of a slot that is done, to all children; or to that with the ``owner`` alone, if there is one,
        and acknowledgements to the others, or to all, if the result has gone elsewhere. (If its parts have come for
        different owners, one of them damaged on its way, children will ask again.)"""
        bare = self.slots[number].bare
        if not owner:
            return [] if bare else self._send(self._result(binding, number), binding.everyone)
        ack = self._ack(binding, number, owner)
        if bare:
            return self._send(ack, binding.everyone)
        child = binding.child_of(owner)
        others = binding.everyone_but(child)
        result = self._send(self._result(binding, number, owner), (binding.children[child],))
        return result + (self._send(ack, others) if others else [])

    def _is_done(self, binding: Binding, slot: Slot) -> bool:
        """Whether all children can have the result, or its acknowledgement."""
        return slot.seen == binding.full and (binding.uplink is None or len(slot.here) == binding.uplink.parts)

    # --- with a parent ---

    def _send_up(self, binding: Binding, up: Uplink, h: wire.Header, *, again: bool) -> list[Output]:
        """The parts of a complete sum whose result is not here, for the owner that contribution ``h`` has."""
        number = h.slot
        slot, counts = self.slots[number], self.counters.jobs[binding.job]
        assert slot.acc is not None  # complete, so someone has contributed
        encoding, lanes = binding.format.partial(slot.op, binding.world), binding.lanes_up(slot.op)
        first = up.base + (number - binding.lease.base) * up.parts
        block, above = divmod(number, binding.parts)  # of the workers, and the part of it that is here
        noise = partial_words(up.key, binding.seed, block, slot.tag, lanes * up.parts * binding.parts)
        here = above * up.parts
        outputs: list[Output] = []
        for part in range(up.parts):
            if part in slot.here and not slot.bare >> part & 1:
                continue
            counts.partials += not again
            counts.partials_again += again
            head = wire.Header(
                Kind.CONTRIBUTION,
                slot.op,
                encoding,
                lanes,
                binding.job,
                binding.token,
                first + part,
                slot.tag,
                owner=h.owner,
            )
            sums, words = slot.acc[part * lanes :][:lanes], noise[(here + part) * lanes :][:lanes]
            codes = partial_codes(slot.op, binding.format, binding.world, sums, words)
            data = wire.Datagram(head, pack(encoding, codes)).pack()
            outputs += self._send(data, (up.parent,))
        return outputs

    def _send_up_again(self, binding: Binding, h: wire.Header, bit: int) -> list[Output]:
        """A child has repeated its contribution before the result came, or it wants one that has gone elsewhere. A
        switch has no timers, those of the workers drive it: the sum goes up again for the first child that asks since
        it went up last, and for one that asks twice, so once in a round of time-outs, however many children there are.
        """
        slot = self.slots[h.slot]
        if binding.uplink is None:
            return []
        if slot.asked and not slot.asked & bit:
            slot.asked |= bit
            return []
        slot.asked = bit
        return self._send_up(binding, binding.uplink, h, again=True)

    def _take_result(self, binding: Binding, up: Uplink, datagram: wire.Datagram) -> list[Output]:
        """A part of a result comes from the parent, or its acknowledgement, if its owner is elsewhere. Nothing that is
        wrong with it is told to the parent."""
        h = datagram.header
        bare = h.kind is Kind.ACK
        offset = h.slot - up.base
        refusals: tuple[tuple[Reason, bool], ...] = (
            (Reason.WRONG_TOKEN, h.token != binding.token),
            (Reason.WRONG_FORMAT, h.format is not binding.result_encoding(h.op)),
            (Reason.WRONG_LANES, h.lanes != (0 if bare else binding.lanes_up(h.op))),
            (Reason.SLOT_OUTSIDE_LEASE, not 0 <= offset < binding.lease.slots * up.parts),
            (Reason.WRONG_OWNER, h.owner > binding.owners or bare != (h.owner != 0 and binding.child_of(h.owner) < 0)),
        )
        refusal = next((why for why, refused in refusals if refused), None)
        if refusal is not None:
            return self._drop(refusal)
        number, part = binding.lease.base + offset // up.parts, offset % up.parts
        slot = self.slots[number]
        later = h.generation > slot.tag or slot.seen != binding.full
        refusals = (
            (Reason.STALE, h.generation < slot.tag),
            (Reason.OUTSIDE_WINDOW, later),
            (Reason.WRONG_OP, h.op is not slot.op),
            (Reason.DUPLICATE, part in slot.here and (bare or not slot.bare >> part & 1)),
        )
        refusal = next((why for why, refused in refusals if refused), None)
        if refusal is not None:
            return self._drop(refusal)
        before = self._is_done(binding, slot)
        slot.here[part] = datagram.payload
        slot.bare = slot.bare & ~(1 << part) | bare << part
        if not self._is_done(binding, slot) or (before and slot.bare):
            return []
        self.counters.jobs[binding.job].results += not before
        return self._send_down(binding, number, h.owner)

    def _result(self, binding: Binding, number: int, owner: int = 0) -> bytes:
        """The result of a slot that is done and here, for its ``owner``, if it has one: what the parent has sent, or,
        at the root, a pure function of its sum, seed, slot and generation. A block that comes in parts has the noise
        that it has where it comes in one."""
        slot = self.slots[number]
        lanes, encoding = binding.lanes_for(slot.op), binding.result_encoding(slot.op)
        head = wire.Header(
            Kind.RESULT, slot.op, encoding, lanes, binding.job, binding.token, number, slot.tag, owner=owner
        )
        if binding.uplink is not None:
            return wire.Datagram(head, b"".join(slot.here[part] for part in range(binding.uplink.parts))).pack()
        assert slot.acc is not None  # complete, so someone has contributed
        block, part = divmod(number, binding.parts)
        noise = switch_words(binding.seed, block, slot.tag, lanes * binding.parts)[part * lanes : (part + 1) * lanes]
        codes = result_codes(slot.op, binding.format, binding.world, slot.acc, noise, binding.unit_shift)
        return wire.Datagram(head, pack(encoding, codes)).pack()

    def _ack(self, binding: Binding, number: int, owner: int) -> bytes:
        """The acknowledgement that a child gets in place of a result that goes to another one alone."""
        slot = self.slots[number]
        encoding = binding.result_encoding(slot.op)
        return wire.Header(
            Kind.ACK, slot.op, encoding, 0, binding.job, binding.token, number, slot.tag, owner=owner
        ).pack()

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
