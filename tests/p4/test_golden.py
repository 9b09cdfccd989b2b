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


def steps_for(vector: Vector) -> list[Vector]:
    """The steps of a trace, if one program can serve all of its jobs; else none."""
    bindings = [binding_of(step["bind"]) for step in vector["steps"] if "bind" in step]
    if not bindings:
        return list(vector["steps"])
    build = builds()[program_for(bindings[0].format.name)]
    fits = all(
        binding.format.name in build.formats and binding.lease.base + binding.lease.slots <= build.slots
        for binding in bindings
    )
    return list(vector["steps"]) if fits else []


TRACES = [(vector, steps) for vector in vectors("traces") if (steps := steps_for(vector))]


def test_all_traces_but_two_are_played() -> None:
    """One has a slot beyond those of bmv2, one two jobs of formats that no one program adds up."""
    left = [vector["what"] for vector in vectors("traces") if not steps_for(vector)]
    assert len(left) == 2
    assert "two jobs" in left[0]
    assert "the last slot there is" in left[1]


@pytest.mark.parametrize(("vector", "steps"), TRACES, ids=[label(vector) for vector, _ in TRACES])
def test_a_conversation_goes_as_written(make_rig: MakeRig, vector: Vector, steps: list[Vector]) -> None:
    bindings = [binding_of(step["bind"]) for step in steps if "bind" in step]
    addresses = [worker[0] for binding in bindings for worker in binding.workers]
    addresses += [step["source"][0] for step in steps if "source" in step]
    rig = make_rig(program_for(bindings[0].format.name if bindings else "nat8"), addresses)
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
