"""The golden vectors as P4 programs play them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.switch.aggregation.test_golden import address, binding_of
from tests.vectors.load import Vector, vectors

from inagg_switch.binding import Binding
from inagg_switch.p4.builds import FLAT, Build, builds
from inagg_wire.formats import CHILDREN_MAX, FORMATS, job_format
from inagg_wire.layout import LANE_MULTIPLE, Op
from inagg_wire.slots import Lease

from .rig import Rig

RESULT_WORKERS = tuple((f"10.0.0.{rank + 1}", 5000) for rank in range(CHILDREN_MAX))
"""Who contributes to the vectors of results."""
P4_FORMATS = [name for name, fmt in FORMATS.items() if not fmt.roundings]
"""All but those of trees."""
FLAT_BUILDS = {name: build for name, build in builds().items() if build.role == FLAT}
"""The programs for a switch that is no part of a tree, by name."""


def conversations(build: Build) -> list[tuple[Vector, list[Vector]]]:
    """The traces that a program can play, with the steps of the jobs that it serves."""
    return [(vector, steps) for vector in vectors("traces") if (steps := steps_for(vector, build))]


def steps_for(vector: Vector, build: Build) -> list[Vector]:
    """What a program can play of a trace: nothing, if none of its jobs fits."""
    bindings = [binding_of(step["bind"]) for step in vector["steps"] if "bind" in step]
    jobs = {binding.job for binding in bindings}
    mine = {binding.job for binding in bindings if fits(binding, build)}
    if mine == jobs:
        return list(vector["steps"])
    return [step for step in vector["steps"] if job_of(step) in mine] if mine else []


def fits(binding: Binding, build: Build) -> bool:
    """Whether a program serves such a job."""
    return binding.format.name in build.formats and binding.lease.base + binding.lease.slots <= build.slots


def job_of(step: Vector) -> int:
    """The job that a step is about."""
    if "bind" in step:
        return int(step["bind"]["job"])
    return int(step["unbind"]) if "unbind" in step else int(step["datagram"][16:20], 16)


def addresses_of(steps: Sequence[Vector]) -> list[str]:
    """All hosts that a conversation names."""
    bindings = [binding_of(step["bind"]) for step in steps if "bind" in step]
    addresses = [worker[0] for binding in bindings for worker in binding.children]
    return [*addresses, *(step["source"][0] for step in steps if "source" in step)]


def converse(rig: Rig, steps: Sequence[Vector]) -> None:
    """Play a conversation; what comes out must be what is written, and the counters those of the model."""
    for step in steps:
        if "bind" in step:
            rig.bind(binding_of(step["bind"]))
        elif "unbind" in step:
            rig.unbind(step["unbind"])
        else:
            outputs = rig.receive(bytes.fromhex(step["datagram"]), address(step["source"]))
            assert [(output.data.hex(), output.to) for output in outputs] == [
                (output["datagram"], tuple(map(address, output["to"]))) for output in step["outputs"]
            ], step["what"]
    rig.check_counters()


def results(format_name: str) -> list[Vector]:
    """The vectors of contributions and their result in a job format."""
    return [vector for vector in vectors("results") if vector["format"] == format_name]


def add_up(rig: Rig, vector: Vector) -> None:
    """Have all contributions of a vector added up, by a job that comes and goes."""
    n, slot, lanes = len(vector["contributions"]), vector["slot"], len(vector["codes"])
    fmt, op = job_format(vector["format"]), Op(vector["op"])
    while fmt.lanes_for(op, lanes) < len(vector["codes"]):
        lanes += LANE_MULTIPLE
    workers = RESULT_WORKERS[:n]
    lease, block = Lease(slot & ~1, 2), 2 * (vector["generation"] - 1) + (slot & 1)
    binding = Binding(vector["job"], vector["token"], fmt, lanes, lease, vector["seed"], workers, block)
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
