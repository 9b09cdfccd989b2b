"""The compiled programs against the golden vectors: conversations and results, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from tests.switch.core.test_golden import address, binding_of
from tests.vectors.load import Vector, label, vectors

from inagg_switch.driver import Binding
from inagg_switch.p4.builds import builds
from inagg_wire.formats import job_format
from inagg_wire.layout import LANE_MULTIPLE, Op
from inagg_wire.slots import Lease

from .conftest import MakeRig
from .rig import Rig

LANES = 32
"""Of the programs here; the vectors have as many or fewer."""


def program_for(format_name: str) -> str:
    """The program of `LANES` lanes that adds up a job format."""
    return next(name for name, b in builds().items() if format_name in b.formats and b.lanes == LANES)


def plays(vector: Vector) -> list[tuple[str, list[Vector]]]:
    """A trace as programs can play it: each of its jobs is served by one, with the steps of its job."""
    jobs: dict[str, set[int]] = {}
    for step in vector["steps"]:
        if "bind" in step:
            binding = binding_of(step["bind"])
            program = program_for(binding.format.name)
            if binding.lease.base + binding.lease.slots > builds()[program].slots:
                return []
            jobs.setdefault(program, set()).add(binding.job)
    if len(jobs) < 2:
        return [(next(iter(jobs), "nat8-32"), vector["steps"])]
    return [(program, [step for step in vector["steps"] if job_of(step) in mine]) for program, mine in jobs.items()]


def job_of(step: Vector) -> int:
    """The job that a step is about."""
    if "bind" in step:
        return int(step["bind"]["job"])
    return int(step["unbind"]) if "unbind" in step else int(step["datagram"][16:20], 16)


PLAYS = [(vector, program, steps) for vector in vectors("traces") for program, steps in plays(vector)]


def test_all_traces_are_played_but_one_beyond_the_slots_of_bmv2() -> None:
    assert [vector["what"] for vector in vectors("traces") if not plays(vector)] == [
        "32 workers: the bitmap is full with its highest bit; the last slot there is"
    ]
    assert all(steps for _, _, steps in PLAYS)


@pytest.mark.parametrize(
    ("program", "steps"),
    [(program, steps) for _, program, steps in PLAYS],
    ids=[f"{program}: {label(vector)}" for vector, program, _ in PLAYS],
)
def test_a_conversation_goes_as_written(make_rig: MakeRig, program: str, steps: list[Vector]) -> None:
    bindings = [binding_of(step["bind"]) for step in steps if "bind" in step]
    addresses = [worker[0] for binding in bindings for worker in binding.workers]
    addresses += [step["source"][0] for step in steps if "source" in step]
    rig = make_rig(program, addresses)
    for step in steps:
        play(rig, step)
    rig.check_counters()


def play(rig: Rig, step: Vector) -> None:
    if "bind" in step:
        rig.bind(binding_of(step["bind"]))
    elif "unbind" in step:
        rig.unbind(step["unbind"])
    else:
        outputs = rig.receive(bytes.fromhex(step["datagram"]), address(step["source"]))
        assert [(output.data.hex(), output.to) for output in outputs] == [
            (output["datagram"], tuple(map(address, output["to"]))) for output in step["outputs"]
        ], step["what"]


def small(vector: Vector) -> bool:
    return len(vector["codes"]) <= LANES and len(vector["contributions"]) <= 8


RESULTS: list[Any] = [vector for vector in vectors("results") if small(vector)]


@pytest.mark.parametrize("name", sorted({vector["format"] for vector in RESULTS}))
def test_contributions_give_the_result(make_rig: MakeRig, name: str) -> None:
    mine = [vector for vector in RESULTS if vector["format"] == name]
    rig = make_rig(program_for(name), [f"10.0.0.{rank + 1}" for rank in range(8)])
    for vector in mine:
        n, slot, lanes = len(vector["contributions"]), vector["slot"], len(vector["codes"])
        fmt, op = job_format(vector["format"]), Op(vector["op"])
        while fmt.lanes_for(op, lanes) < len(vector["codes"]):
            lanes += LANE_MULTIPLE
        workers = tuple((f"10.0.0.{rank + 1}", 5000) for rank in range(n))
        binding = Binding(vector["job"], vector["token"], fmt, lanes, Lease(slot & ~1, 2), vector["seed"], workers)
        rig.bind(binding)
        sent = [
            rig.receive(bytes.fromhex(contribution), worker)
            for contribution, worker in zip(vector["contributions"], workers, strict=True)
        ]
        assert [[output.data.hex() for output in outputs] for outputs in sent] == [
            *([] for _ in range(n - 1)),
            [vector["result"]],
        ], vector["what"]
        rig.check_counters()
        rig.unbind(binding.job)
