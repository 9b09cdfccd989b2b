"""The aggregator is the model: hypothesis looks for any sequence of bindings and datagrams that tells them apart.

Everything is small, so that what is rare in a network is common here: few slots, jobs, addresses and generations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inagg_switch.binding import Address, Binding, Place, Uplink
from inagg_switch.driver import DriverError
from inagg_wire.formats import FORMATS, JobFormat
from inagg_wire.layout import GENERATION_MAX, LANE_BITS, Encoding, Kind, Op
from inagg_wire.noise_keys import BlockKey
from inagg_wire.payload import Codes
from inagg_wire.slots import Lease

from .hostile import put
from .pair import Pair
from .world import STRANGER, make_contribution, random_codes

SLOTS, LANES = 16, 64
POOL: list[Address] = [(f"10.9.0.{i}", 6000 + i) for i in range(40)]
PARENTS: list[Address] = [(f"10.8.0.{i}", 7000) for i in range(2)]
TOKENS = st.sampled_from([1, 2, 0x80000000, 0xFFFFFFFF])
SEEDS = st.sampled_from([0, 0x12345678, 0xFFFFFFFF])


@st.composite
def places(draw: st.DrawFn, fmt: JobFormat, children: int, lanes: int) -> Place | None:
    """Somewhere in a tree, or alone."""
    if draw(st.booleans()):
        return None
    whole = [k for k in (1, 2, 4) if all(fmt.lanes_for(op, lanes) % (8 * k) == 0 for op in Op)]
    parts, from_switches, root = draw(st.sampled_from(whole)), draw(st.booleans()), draw(st.booleans())
    key = BlockKey(draw(SEEDS), draw(SEEDS))
    up = Uplink(draw(st.sampled_from(PARENTS)), 64 * draw(st.integers(0, 3)), 1 if from_switches else parts, key)
    world = min(children * draw(st.sampled_from([1, 2, 16, 1024])), fmt.workers_max)
    step = draw(st.sampled_from([1, 5]))
    below = [step * rank % (children + (not root)) for rank in range(world)]  # the last is none, where there can be
    child_of = tuple(-1 if child == children else child for child in below)
    return Place(world, from_switches, parts if from_switches else 1, None if root else up, child_of)


@st.composite
def bindings(draw: st.DrawFn) -> Binding:
    """A job on few slots, with addresses that other jobs may have as well."""
    fmt = FORMATS[draw(st.sampled_from(sorted(FORMATS)))]
    n = draw(st.sampled_from([1, 2, 2, 3, 3, 4, 8, 32]))
    first, step = draw(st.integers(0, 39)), draw(st.sampled_from([1, 3, 7]))
    workers = tuple(POOL[(first + step * i) % 40] for i in range(n))
    slots = draw(st.sampled_from([2, 2, 4, 8]))
    base = draw(st.integers(0, SLOTS // slots - 1)) * slots
    lanes = draw(st.integers(fmt.min_lanes // 8, LANES // 8)) * 8
    block = draw(st.sampled_from([0, 0, 0, 1, 5, 23, slots * GENERATION_MAX - 3]))
    place = draw(places(fmt, n, lanes))
    job, token, seed = draw(st.integers(1, 4)), draw(TOKENS), draw(SEEDS)
    scatters = draw(st.booleans())
    return Binding(job, token, fmt, lanes, Lease(base, slots), seed, workers, block, None, scatters, place)


OTHER_HEADERS: dict[str, st.SearchStrategy[int]] = {
    "magic": st.sampled_from([0, 0x494F]),
    "version": st.sampled_from([0, 2]),
    "kind": st.sampled_from([0, *(int(kind) for kind in Kind if kind is not Kind.CONTRIBUTION), 5]),
    "op": st.sampled_from([0, 1, 2, 3]),
    "format": st.integers(0, 11),
    "lanes": st.integers(0, 80),
    "job": st.integers(0, 6),
    "owner": st.sampled_from([0, 1, 2, 35, 32768, 32769]),
    "token": TOKENS | st.just(0),
    "slot": st.integers(0, SLOTS + 2) | st.sampled_from([1 << 24, 0xFFFFFFFF]),
    "generation": st.integers(0, 5) | st.sampled_from([GENERATION_MAX, GENERATION_MAX + 1]),
}


def partial_sums(rng: np.random.Generator, binding: Binding) -> Codes:
    """Of workers who keep to the format, as the sums of all fit an accumulator then; and some that count as zero."""
    most = binding.levels(Op.SUM)
    share, lanes = most // len(binding.children), binding.lanes_for(Op.SUM)
    sums = rng.integers(-share, share + 1, lanes)
    bits = LANE_BITS[binding.encoding(Op.SUM)]
    if most < (1 << bits - 1) - 1:
        beyond = rng.integers(most + 1, 1 << bits - 1, lanes) * rng.choice([-1, 1], lanes)
        sums = np.where(rng.random(lanes) < 0.05, beyond, sums)
    return (sums & ((1 << bits) - 1)).astype(np.uint32)


def rounded_partial_sums(codes: Codes, binding: Binding) -> Codes:
    """The same, of sums that were rounded again: no valid level is so high that the sums of all do not fit."""
    levels = codes & np.uint32(127)
    most = 30 - (len(binding.children) - 1).bit_length()
    return np.where(levels <= binding.levels(Op.SUM), codes & np.uint32(128) | np.minimum(levels, most), codes)


class Equivalence(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(SLOTS, LANES, jobs=3)

    def job(self, data: st.DataObject) -> Binding:
        return self.pair.bindings[data.draw(st.sampled_from(sorted(self.pair.bindings)))]

    def contribution(self, data: st.DataObject, binding: Binding, block: int, **other: Any) -> bytes:
        op = Op.MAX if (block % 5 == 2) != (data.draw(st.integers(0, 19)) == 19) else Op.SUM  # mostly one for a block
        rng = np.random.default_rng(data.draw(st.integers(0, 255)))
        if binding.owners and op is Op.SUM:  # mostly one for a block
            owners = binding.owners + 1
            other = {"owner": (block + (data.draw(st.integers(0, 9)) == 9)) % owners} | other
        wide = binding.encoding(op) in (Encoding.INT16, Encoding.FIX32)
        if wide and binding.place is not None and binding.place.from_switches:
            codes = partial_sums(rng, binding)
        else:
            codes = random_codes(rng, binding.encoding(op), binding.format, binding.world, binding.lanes_for(op))
            if binding.place is not None and binding.place.from_switches and binding.encoding(op) is Encoding.NAT8:
                codes = rounded_partial_sums(codes, binding)
        return make_contribution(binding, block, codes, op, **other)

    def block(self, data: st.DataObject, binding: Binding) -> int:
        """One whose slot serves it, or served it, or will soon."""
        lease = binding.lease
        slot = data.draw(st.integers(0, lease.slots - 1))
        tag = self.pair.model.slots[lease.base + slot].tag
        generation = max(1, tag + data.draw(st.sampled_from([0, 0, 0, 1, 1, 1, -1, 2])))
        return (generation - 1) * lease.slots + slot

    @initialize(binding=bindings())
    def bind_one(self, binding: Binding) -> None:
        self.pair.bind(binding)

    @rule(binding=bindings())
    def bind(self, binding: Binding) -> None:
        overlaps = any(
            other.job != binding.job
            and other.lease.base < binding.lease.base + binding.lease.slots
            and binding.lease.base < other.lease.base + other.lease.slots
            for other in self.pair.bindings.values()
        )
        no_room = len(self.pair.bindings) == 3 and binding.job not in self.pair.bindings
        refused = False
        try:
            self.pair.bind(binding)
        except DriverError:
            refused = True
        assert refused == (overlaps or no_room)

    @rule(job=st.integers(1, 4))
    def unbind(self, job: int) -> None:
        self.pair.unbind(job)

    @precondition(lambda self: self.pair.bindings)
    @rule(data=st.data(), backwards=st.booleans())
    def complete_a_block(self, data: st.DataObject, backwards: bool) -> None:
        """Every rank sends it, and then one of them once more."""
        binding = self.job(data)
        block = self.block(data, binding)
        contribution = self.contribution(data, binding, block)
        for source in [*(reversed(binding.children) if backwards else binding.children), binding.children[0]]:
            self.pair.receive(contribution, source)

    @precondition(lambda self: self.pair.bindings)
    @rule(data=st.data(), count=st.integers(1, 6))
    def contribute_some(self, data: st.DataObject, count: int) -> None:
        """A batch of one worker: blocks in any order, some of them twice."""
        binding = self.job(data)
        source = data.draw(st.sampled_from(binding.children))
        self.pair.receive([self.contribution(data, binding, self.block(data, binding)) for _ in range(count)], source)

    @precondition(lambda self: self.pair.bindings)
    @rule(data=st.data(), what=st.sampled_from(["source", "token", "format", "lanes", "slot", "job", "kind"]))
    def contribute_what_does_not_fit_the_binding(self, data: st.DataObject, what: str) -> None:
        """Valid in itself; only the switch can tell. By chance it may fit, or fit another job."""
        binding, source = self.job(data), None
        other: dict[str, Any] = {}
        if what == "source":
            source = data.draw(st.sampled_from([*POOL, STRANGER]))
        elif what == "format":
            fmt = FORMATS[data.draw(st.sampled_from(sorted(FORMATS)))]
            binding = replace(binding, format=fmt, lanes=max(binding.lanes, 8 * binding.parts * fmt.min_lanes))
        elif what == "lanes":
            binding = replace(binding, lanes=data.draw(st.integers(4, 12)) * binding.format.min_lanes * binding.parts)
        elif what == "kind":
            op, lanes = Op.SUM, binding.lanes_for(Op.SUM)
            codes = np.zeros(lanes, np.uint32)
            other = {"kind": Kind.RESULT, "op": op, "format": binding.result_encoding(op), "lanes": lanes}
            datagram = make_contribution(binding, 1, codes, **other)
        else:
            values = {"token": TOKENS, "slot": st.integers(0, SLOTS + 2), "job": st.integers(1, 6)}
            other = {what: data.draw(values[what])}
        if what != "kind":
            datagram = self.contribution(data, binding, data.draw(st.integers(0, 8)), **other)
        self.pair.receive(datagram, source or data.draw(st.sampled_from(binding.children)))

    @precondition(lambda self: self.pair.bindings)
    @rule(data=st.data(), name=st.sampled_from(sorted(OTHER_HEADERS)))
    def contribute_with_another_header(self, data: st.DataObject, name: str) -> None:
        binding, cut = self.job(data), data.draw(st.sampled_from([0, 0, 0, 0, -1, -30, 1, 40]))
        datagram = self.contribution(data, binding, data.draw(st.integers(0, 8)))
        datagram = put(datagram, name, data.draw(OTHER_HEADERS[name]))
        datagram = datagram + bytes(cut) if cut > 0 else datagram[: len(datagram) + cut]
        if datagram:
            self.pair.receive([datagram] * data.draw(st.integers(1, 3)), data.draw(st.sampled_from(binding.children)))

    @precondition(lambda self: any(b.uplink for b in self.pair.bindings.values()))
    @rule(data=st.data(), parts=st.integers(1, 16), wrong=st.sampled_from([None] * 6 + ["format", "lanes", "token"]))
    def answer_from_above(self, data: st.DataObject, parts: int, wrong: str | None) -> None:
        """Parts of results of the parent's, or their acknowledgements, for a slot that serves them or did, or will;
        codes are any."""
        binding = data.draw(st.sampled_from([b for b in self.pair.bindings.values() if b.uplink is not None]))
        up, slot = binding.uplink, data.draw(st.integers(0, binding.lease.slots - 1))
        assert up is not None
        model = self.pair.model.slots[binding.lease.base + slot]
        op = model.op if data.draw(st.integers(0, 9)) else Op.MAX
        owner = data.draw(st.integers(0, min(binding.owners, 6))) if op is Op.SUM else 0
        elsewhere = owner > 0 and binding.child_of(owner) < 0
        bare = owner > 0 and elsewhere != (data.draw(st.integers(0, 9)) == 9)  # now and then what no parent sends
        fields = {
            "kind": Kind.ACK if bare else Kind.RESULT,
            "owner": owner,
            "format": binding.result_encoding(op),
            "lanes": 0 if bare else binding.lanes_up(op),
            "generation": min(GENERATION_MAX, max(1, model.tag + data.draw(st.sampled_from([0, 0, 0, 0, 1, -1])))),
        }
        if bare and wrong == "lanes":
            wrong = None  # then it would not be an acknowledgement at all
        if wrong == "format":
            fields["format"] = Encoding.INT16 if op is Op.SUM else Encoding.SCALE8
        elif wrong is not None:
            fields[wrong] = 8 if wrong == "lanes" else 7
        rng = np.random.default_rng(data.draw(st.integers(0, 255)))
        batch = []
        for part in range(up.parts) if data.draw(st.booleans()) else [parts % up.parts]:
            codes = rng.integers(0, 1 << LANE_BITS[Encoding(fields["format"])], fields["lanes"], np.uint64)
            fields["slot"] = up.base + slot * up.parts + part
            batch.append(make_contribution(binding, 0, codes.astype(np.uint32), op, **fields))
        self.pair.receive(batch, up.parent)

    @rule(datagram=st.binary(min_size=1, max_size=120), source=st.sampled_from(POOL))
    def send_noise(self, datagram: bytes, source: Address) -> None:
        self.pair.receive(datagram, source)

    @invariant()
    def state_and_counters_are_equal(self) -> None:
        self.pair.check()

    @invariant()
    def each_datagram_is_counted_once(self) -> None:
        # Counts of jobs that have ended are gone, so this holds as an equality only until one ends.
        c = self.pair.model.counters
        used = sum(sum(j.contributions) + sum(j.resends) for j in c.jobs.values())
        assert used + sum(c.drops.values()) <= c.datagrams_in

    def teardown(self) -> None:
        for job in list(self.pair.bindings):
            self.pair.unbind(job)
        assert self.pair.aggregator._sources._names == {}


TestEquivalence: Any = Equivalence.TestCase
TestEquivalence.settings = settings(max_examples=150, stateful_step_count=40)
