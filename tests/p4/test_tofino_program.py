"""What the compiler made of the Tofino program does what the reference does, whole frames in and out.

See tofino/chip.py for how it is executed. Nobody has run the program on a Tofino.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from tests.switch.aggregation.test_golden import address, binding_of
from tests.switch.aggregation.world import make_binding, make_contribution
from tests.vectors.load import Vector, label, vectors

from inagg_switch.binding import Address, Binding
from inagg_switch.p4.tofino.tofino_program import NOBODY
from inagg_wire import header as wire
from inagg_wire.errors import Reason
from inagg_wire.layout import GENERATION_MAX, HEADER_BYTES, Op
from inagg_wire.noise import switch_words
from inagg_wire.reencode import contribution_integers, result_codes

from .golden import addresses_of
from .rig import Rig
from .tofino.chip import COMPILED
from .tofino.rig import alone, check_counters, chip_of, tofino_rig

CHUNK = 32
LANES = (32, 64, 96, 128)
PASS_SLOTS = 1 << 12
ADDRESSES = tuple(f"10.77.0.{n + 1}" for n in range(31))


def make_job(n: int, seed: int = 0x5EED0001, lanes: int = CHUNK) -> Binding:
    workers: tuple[Address, ...] = tuple((address, 5001) for address in ADDRESSES[:n])
    return make_binding(7, "nat8", n, lanes=lanes, base=8, slots=4, seed=seed, children=workers)


def bound(job: Binding) -> Rig:
    rig = tofino_rig([host for host, _ in job.children], job.lanes)
    rig.bind(job)
    return rig


def places(lanes: int) -> list[tuple[str, int]]:
    """The accumulators of each lane, and from which index on: of 32k lanes the first pass has the last 32."""
    passes = lanes // CHUNK
    return [(f"Ingress.lane_{i % CHUNK}.acc", (passes - 1 - i // CHUNK) * PASS_SLOTS) for i in range(lanes)]


def sums_of(rig: Rig, job: Binding, slot: int) -> list[int]:
    """The accumulators of a slot, signed."""
    words = [chip_of(rig).registers.words[name][first + slot][0] for name, first in places(job.lanes)]
    return [word - (word >> 31 << 32) for word in words]


def complete(rig: Rig, job: Binding, h: wire.Header, sums: list[int]) -> None:
    """A slot as it is when all have contributed, with these sums."""
    words = chip_of(rig).registers.words
    for first in range(0, job.lanes // CHUNK * PASS_SLOTS, PASS_SLOTS):
        words["Ingress.slot_tag.tags"][first + h.slot] = [h.generation, 0]
        words["Ingress.slot_members.members"][first + h.slot] = [NOBODY, int(h.op)]
    for (name, first), value in zip(places(job.lanes), sums, strict=True):
        words[name][first + h.slot] = [value & 0xFFFFFFFF, 0]


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
    job = make_job(n, lanes=128)
    rig = bound(job)
    for block, first in enumerate(range(0, 256, job.lanes)):
        codes = np.arange(first, first + job.lanes, dtype=np.uint32)
        data = make_contribution(job, block, codes)
        assert rig.receive(data, job.children[0]) == []
        expected, _ = contribution_integers(Op.SUM, job.format, n, codes)
        assert sums_of(rig, job, wire.parse(data).header.slot) == expected.tolist()


EDGES = sorted(
    {sign * ((1 << k) + d) for k in range(31) for d in (-1, 0, 1) for sign in (-1, 1)} - {1 + (1 << 30), -1 - (1 << 30)}
)


@pytest.mark.parametrize("lanes", LANES)
def test_each_sum_is_rounded_as_in_the_reference_with_the_noise_of_its_lane(lanes: int) -> None:
    """By a resend, as its result depends on the registers alone; the reference knows nothing of these sums."""
    rng = random.Random(lanes)
    for _ in range(512 // lanes):
        sums = np.array(rng.sample(EDGES, lanes), dtype=np.int64)
        job = make_job(3, seed=rng.getrandbits(32), lanes=lanes)
        data = make_contribution(job, rng.randrange(1 << 20), np.zeros(lanes, dtype=np.uint32))
        h = wire.parse(data).header
        rig = bound(job)
        complete(rig, job, h, sums.tolist())
        (out,) = alone(rig, data, job.children[1])
        noise = switch_words(job.seed, h.slot, h.generation, lanes)
        assert out[HEADER_BYTES:] == bytes(result_codes(Op.SUM, job.format, 3, sums, noise).tolist())


def test_each_maximum_is_its_own_byte() -> None:
    job = make_job(1, lanes=64)
    rig = bound(job)
    for block, first in enumerate(range(0, 256, job.lanes)):
        codes = np.arange(first, first + job.lanes, dtype=np.uint32)
        (output,) = rig.receive(make_contribution(job, block, codes, Op.MAX), job.children[0])
        assert output.data[HEADER_BYTES:] == bytes(range(first, first + job.lanes))


@pytest.mark.parametrize(("n", "lanes"), [(1, 64), (2, 32), (2, 128), (3, 96), (31, 32)])
def test_contributions_become_what_they_become_in_the_reference(n: int, lanes: int) -> None:
    """Sums and maxima; repeated, too late by any number of generations, of the wrong op, refused with a notice."""
    rng = random.Random(n + lanes)
    job = make_job(n, lanes=lanes)
    rig = bound(job)
    sent: list[tuple[bytes, Address]] = []
    for block in range(32 // n + 5):
        op = rng.choice((Op.SUM, Op.SUM, Op.MAX))
        for rank in rng.sample(range(n), n):
            codes = np.array(rng.choices(range(128), k=lanes), dtype=np.uint32)
            other = Op.MAX if op is Op.SUM else Op.SUM
            worker = job.children[rank]
            turn = [(make_contribution(job, block, codes, op), worker)]
            turn += turn * (rng.random() < 0.3)
            turn += rng.choices(sent, k=rng.randrange(2)) if sent else []
            turn += [(make_contribution(job, block, codes, other), worker)] if rng.random() < 0.2 else []
            turn += [(make_contribution(job, block, codes, op, token=9), worker)] if rng.random() < 0.1 else []
            for data, source in turn:
                rig.receive(data, source)
            sent = [*sent, *turn][-8 * n :]
    check_counters(rig)


@pytest.mark.parametrize("generation", [6, 9, GENERATION_MAX])
def test_a_generation_far_ahead_changes_nothing_and_is_counted_as_stale(generation: int) -> None:
    job = make_job(2, lanes=64)
    rig = bound(job)
    codes = np.ones(job.lanes, dtype=np.uint32)
    block = 3 * job.lease.slots
    h = wire.parse(make_contribution(job, block, codes)).header
    complete(rig, job, h, [7] * job.lanes)  # generation 4
    assert alone(rig, make_contribution(job, block, codes, generation=generation), job.children[0]) == []
    assert chip_of(rig).registers.words["Ingress.slot_tag.tags"][h.slot][0] == h.generation
    assert sums_of(rig, job, h.slot) == [7] * job.lanes
    assert rig.driver.counters(0).drops == {Reason.STALE: 1}
    assert alone(rig, make_contribution(job, block + job.lease.slots, codes), job.children[0]) == []
    assert rig.driver.counters(0).jobs[job.job].contributions == [1, 0]


# --- golden vectors ---

DIFFER = (
    "a slot takes the next generation when its sum is complete",
    "an epoch that begins two blocks before the generations wrap",
    "a new epoch: another token",
)
"""Where generations come that no worker sends: see "What differs" in p4/README.md."""
TRACES = [
    vector
    for vector in vectors("traces")
    if all(
        step["bind"]["format"] == "nat8" and not step["bind"]["scatters"] for step in vector["steps"] if "bind" in step
    )
    and not vector["what"].startswith(DIFFER)
]


def widened(step: Vector, lanes: int) -> Vector:
    """The same step of a job with more lanes: the lanes of the vector again and again, so the first have its codes."""
    if "bind" in step:
        return step | {"bind": step["bind"] | {"lanes": lanes}}
    if "datagram" not in step:
        return step
    narrow = 8
    step = dict(step)
    data = bytes.fromhex(step["datagram"])
    says, codes = int.from_bytes(data[6:8]), data[HEADER_BYTES:]
    if says == narrow:  # as much too long or too short as it was
        more = codes[narrow:]
        codes = (codes[:narrow] * lanes)[: lanes - narrow + len(codes[:narrow])] + more
        data = data[:6] + lanes.to_bytes(2) + data[8:HEADER_BYTES] + codes
    elif says == len(codes):  # lanes of another number, which this program can take out of a notice
        other = 64 if lanes == 32 else 32
        data = data[:6] + other.to_bytes(2) + data[8:HEADER_BYTES] + (codes * other)[:other]
    step["datagram"] = data.hex()
    return step


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("vector", TRACES, ids=map(label, TRACES))
def test_a_conversation_of_the_golden_vectors_goes_as_written(vector: Vector, lanes: int) -> None:
    """The reference says what the lanes beyond the vector's must be; the first ones are as written."""
    rig = tofino_rig(addresses_of(vector["steps"]), lanes)
    for step in vector["steps"]:
        wide = widened(step, lanes)
        if "bind" in wide:
            rig.bind(binding_of(wide["bind"]))
        elif "unbind" in wide:
            rig.unbind(wide["unbind"])
        else:
            outputs = rig.receive(bytes.fromhex(wide["datagram"]), address(wide["source"]))
            written = [bytes.fromhex(output["datagram"]) for output in step["outputs"]]
            assert [output.data[HEADER_BYTES:][:8] for output in outputs] == [data[HEADER_BYTES:] for data in written]
    check_counters(rig)
