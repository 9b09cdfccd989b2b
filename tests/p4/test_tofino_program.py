"""What the compiler made of the Tofino program does what the reference does, as far as it can be executed here.

See tofino_chip.py for what that is. Nobody has run the program on a Tofino.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from tests.switch.aggregation.world import make_binding, make_contribution

from inagg_switch.aggregation.model import Model
from inagg_switch.binding import Address, Binding
from inagg_switch.p4.plane import Entry
from inagg_switch.p4.tofino.tofino_program import NOBODY, Outcome, job_entries
from inagg_wire import header as wire
from inagg_wire.errors import Reason
from inagg_wire.layout import GENERATION_MAX, Op
from inagg_wire.noise import switch_words
from inagg_wire.reencode import contribution_integers, result_codes

from .rig import make_network
from .tofino_chip import COMPILED, Chip, Fields

LANES = 32
MADE_RESULT = 1
ADDRESSES = tuple(f"10.77.0.{n + 1}" for n in range(31))
NETWORK = make_network(list(ADDRESSES))


def make_job(n: int, seed: int = 0x5EED0001) -> Binding:
    workers: tuple[Address, ...] = tuple((address, 5001) for address in ADDRESSES[:n])
    return make_binding(7, "nat8", n, lanes=LANES, base=8, slots=4, seed=seed, children=workers)


class Switch:
    """The chip with the entries of one job."""

    def __init__(self, job: Binding) -> None:
        self.chip = Chip()
        entries = [e for e in job_entries(job, NETWORK, row=0, epoch=1) if isinstance(e, Entry) and e.action == "bind"]
        self.bound = {(dict(e.params)["rank"], dict(e.params)["op"]): dict(e.params) for e in entries}

    def receive(self, data: bytes, rank: int) -> tuple[Outcome, Fields]:
        """A contribution that the binding takes; what became of it, and its fields on leaving the switch."""
        datagram = wire.parse(data)
        h = datagram.header
        fields = Fields(int, {f"meta.{name}": value for name, value in self.bound[rank, int(h.op)].items()})
        fields |= {"hdr.inagg.op": int(h.op), "hdr.inagg.slot": h.slot, "hdr.inagg.generation": h.generation}
        fields |= {lane(i): code for i, code in enumerate(datagram.payload)}
        self.chip.run("ingress", fields)
        if fields["meta.made"] == MADE_RESULT:
            self.chip.run("egress", fields)
        return Outcome(fields["meta.outcome"]), fields

    def complete(self, h: wire.Header, sums: list[int]) -> None:
        """A slot as it is when all have contributed, with these sums."""
        registers = self.chip.registers
        registers["Ingress.slot_tag.tags"][h.slot] = [h.generation, 0]
        registers["Ingress.slot_members.members"][h.slot] = [NOBODY, int(h.op)]
        for i, value in enumerate(sums):
            registers[f"Ingress.lane_{i}.acc"][h.slot] = [value & 0xFFFFFFFF, 0]

    def sums(self, slot: int) -> list[int]:
        """The accumulators of a slot, signed."""
        words = [self.chip.registers[f"Ingress.lane_{i}.acc"][slot][0] for i in range(LANES)]
        return [word - (word >> 31 << 32) for word in words]


def lane(i: int) -> str:
    """The field of a lane's code: the first twelve are encoded in the egress."""
    return f"hdr.{'late' if i < 12 else 'early'}.l{i}"


def codes_of(fields: Fields) -> bytes:
    return bytes(fields[lane(i)] for i in range(LANES))


def check(p4: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, p4 / "tofino/fit.py", "--check"], capture_output=True, text=True, check=False
    )


def test_what_is_executed_here_was_compiled_from_these_sources() -> None:
    """If this fails: `python p4/tofino/fit.py --write` with p4c's Tofino backend on PATH, and commit p4/tofino/."""
    done = check(COMPILED.parents[1])
    assert done.returncode == 0, done.stderr


def test_a_changed_source_makes_the_compiled_program_stale(tmp_path: Path) -> None:
    copy = tmp_path / "p4"
    for part in ("tofino", "include"):
        copytree(COMPILED.parents[1] / part, copy / part)
    with (copy / "include" / "check.p4").open("a") as source:
        source.write("// changed\n")
    done = check(copy)
    assert done.returncode == 1
    assert "stale" in done.stderr


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 16, 17, 31])
def test_each_code_adds_to_the_registers_what_it_is_in_the_reference(n: int) -> None:
    job = make_job(n)
    switch = Switch(job)
    for block, first in enumerate(range(0, 256, LANES)):
        codes = np.arange(first, first + LANES, dtype=np.uint32)
        data = make_contribution(job, block, codes)
        assert switch.receive(data, 0)[0] is Outcome.ABSORBED
        expected, _ = contribution_integers(Op.SUM, job.format, n, codes)
        assert switch.sums(wire.parse(data).header.slot) == expected.tolist()


EDGES = sorted(
    {sign * ((1 << k) + d) for k in range(31) for d in (-1, 0, 1) for sign in (-1, 1)} - {1 + (1 << 30), -1 - (1 << 30)}
)


@pytest.mark.parametrize("first", range(0, len(EDGES), LANES))
def test_each_sum_is_rounded_as_in_the_reference_with_the_noise_of_its_lane(first: int) -> None:
    """By a resend, as its result depends on the registers alone."""
    rng = random.Random(first)
    sums = np.array((EDGES + EDGES)[first : first + LANES], dtype=np.int64)
    for _ in range(4):
        job = make_job(3, seed=rng.getrandbits(32))
        block = rng.randrange(1 << 20)
        switch = Switch(job)
        data = make_contribution(job, block, np.zeros(LANES, dtype=np.uint32))
        h = wire.parse(data).header
        switch.complete(h, sums.tolist())
        outcome, fields = switch.receive(data, 1)
        noise = switch_words(job.seed, h.slot, h.generation, LANES)
        assert outcome is Outcome.RESEND
        assert codes_of(fields) == bytes(result_codes(Op.SUM, job.format, 3, sums, noise).tolist())
        rng.shuffle(lanes := sums.tolist())
        sums = np.array(lanes, dtype=np.int64)


def test_each_maximum_is_its_own_byte() -> None:
    job = make_job(1)
    switch = Switch(job)
    for block, first in enumerate(range(0, 256, LANES)):
        codes = np.arange(first, first + LANES, dtype=np.uint32)
        outcome, fields = switch.receive(make_contribution(job, block, codes, Op.MAX), 0)
        assert outcome is Outcome.RESULT
        assert codes_of(fields) == bytes(range(first, first + LANES))


def reference(model: Model, job: Binding, data: bytes, rank: int) -> tuple[Outcome, bytes | None]:
    """What became of a contribution in the reference, and the codes of the result if there is one."""

    def counts() -> dict[Outcome, int]:
        of = model.counters.jobs[job.job]
        return {
            Outcome.WRONG_OP: model.counters.drops.get(Reason.WRONG_OP, 0),
            # which is what the program counts generations as that are outside of the window, too
            Outcome.STALE: sum(of.stale) + model.counters.drops.get(Reason.OUTSIDE_WINDOW, 0),
            Outcome.DUPLICATE: sum(of.duplicates),
            Outcome.RESEND: sum(of.resends),
            Outcome.ABSORBED: sum(of.contributions) - of.results,
            Outcome.RESULT: of.results,
        }

    before = counts()
    outputs = model.receive(data, job.children[rank])
    (outcome,) = (outcome for outcome, count in counts().items() if count > before[outcome])
    if outcome not in (Outcome.RESULT, Outcome.RESEND):
        return outcome, None
    (output,) = outputs
    return outcome, wire.parse(output.data).payload


@pytest.mark.parametrize("n", [1, 2, 3, 31])
def test_contributions_become_what_they_become_in_the_reference(n: int) -> None:
    """Sums and maxima; repeated, too late by any number of generations, too early by two or more, of the wrong op."""
    rng = random.Random(n)
    job = make_job(n)
    switch, model = Switch(job), Model()
    model.bind(job)
    sent: list[tuple[bytes, int]] = []
    met = set()
    for block in range(64 // n + 6):
        op = rng.choice((Op.SUM, Op.SUM, Op.MAX))
        for rank in rng.sample(range(n), n):
            codes = np.array(rng.choices(range(256), k=LANES), dtype=np.uint32)
            other = Op.MAX if op is Op.SUM else Op.SUM
            turn = [(make_contribution(job, block, codes, op), rank)]
            turn += turn * (rng.random() < 0.3)
            turn += rng.choices(sent, k=rng.randrange(2)) if sent else []
            turn += [(make_contribution(job, block, codes, other), rank)] if rng.random() < 0.2 else []
            early = rng.choice((block // 4 + 3, GENERATION_MAX))
            turn += [(make_contribution(job, block, codes, op, generation=early), rank)] if rng.random() < 0.2 else []
            for data, worker in turn:
                expected, codes_expected = reference(model, job, data, worker)
                outcome, fields = switch.receive(data, worker)
                assert outcome is expected
                assert (fields["meta.made"] == MADE_RESULT) == (codes_expected is not None)
                if codes_expected is not None:
                    assert codes_of(fields) == codes_expected
                    assert bool(fields["meta.multicast"]) == (outcome is Outcome.RESULT)
                met.add(outcome)
            sent = [*sent, *turn][-8 * n :]
    assert met >= set(Outcome) - ({Outcome.ABSORBED, Outcome.DUPLICATE} if n == 1 else set())


@pytest.mark.parametrize("generation", [6, 9, GENERATION_MAX])
def test_a_generation_far_ahead_changes_nothing(generation: int) -> None:
    switch, job = Switch(make_job(2)), make_job(2)
    codes = np.ones(LANES, dtype=np.uint32)
    block = 3 * job.lease.slots
    h = wire.parse(make_contribution(job, block, codes)).header
    switch.complete(h, [7] * LANES)  # generation 4
    outcome, _ = switch.receive(make_contribution(job, block, codes, generation=generation), 0)
    assert outcome is Outcome.STALE
    assert switch.chip.registers["Ingress.slot_tag.tags"][h.slot][0] == h.generation
    assert switch.sums(h.slot) == [7] * LANES
    assert switch.receive(make_contribution(job, block + job.lease.slots, codes), 0)[0] is Outcome.ABSORBED
